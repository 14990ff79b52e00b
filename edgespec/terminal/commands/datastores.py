"""`edgespec store`: build a datastore of text or code, and show what is in one."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from edgespec.terminal.help_layout import App, Group
from edgespec.terminal.parameters import Json
from edgespec.terminal.text_io import print_json, printable

app = App(
    cls=Group,
    help="Build datastores of text or code to look up drafts in.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


def forget() -> None:
    """Delete what `--learn` kept of replies and `--prompt-cache` of prompts, for all models."""
    from edgespec.drafting.text.kept_past import forget_history
    from edgespec.memory.kv.prompt_cache import forget_prompts

    try:
        num_files = forget_history() + forget_prompts()
    except OSError as error:
        typer.echo(f"edgespec: cannot delete what was kept: {error.strerror or error}", err=True)
        raise typer.Exit(1) from None
    typer.echo(f"deleted {num_files} file{'' if num_files == 1 else 's'}")


@app.command()
def build(
    folder: Annotated[
        str, typer.Argument(metavar="FOLDER", help="Folder of text files, searched recursively.")
    ],
    out: Annotated[str, typer.Option("--out", "-o", metavar="FILE", help="File to write.")],
    vocab: Annotated[
        str | None,
        typer.Option(
            "--vocab",
            metavar="MODEL",
            help="Model whose tokenizer is used; the bundled model by default.",
        ),
    ] = None,
    max_bytes: Annotated[
        str, typer.Option("--max-bytes", metavar="SIZE", help="Maximum size of the file.")
    ] = "64MiB",
    near: Annotated[
        str | None,
        typer.Option(
            "--near", metavar="FILE", help="File of FOLDER whose neighbours are read first."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Build a datastore from a folder of text or code.

    Hidden files, links and files that are not UTF-8 text are skipped. If no file has changed since
    the datastore was built, it is left as it is. Building takes about six times its size in memory.
    """
    from edgespec.drafting.text.store_builder import build_store
    from edgespec.models.registry import resolve
    from edgespec.models.vocabulary_file import open_vocabulary
    from edgespec.system.size import format_size, parse_size
    from edgespec.terminal.progress import ProgressLine

    size = parse_size(max_bytes)
    with open_vocabulary(resolve(vocab)) as model, ProgressLine(sys.stderr) as line:
        report = build_store(
            folder,
            model.tokenizer,
            out,
            size,
            lambda done, whole: line("store", done, whole),
            near,
        )
    if as_json:
        print_json(
            {
                "path": out,
                "files": report.files,
                "skipped": report.skipped,
                "tokens": report.tokens,
                "bytes": report.size_bytes,
                "was_current": report.was_current,
            }
        )
        return
    current = "; nothing has changed" if report.was_current else ""
    print(
        f"{printable(out)}: {format_size(report.size_bytes)}, {report.tokens} tokens from "
        f"{report.files} files; {report.skipped} skipped{current}"
    )


@app.command()
def info(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A datastore.")],
    as_json: Json = False,
) -> None:
    """Check a datastore and show what is in it."""
    from edgespec.drafting.text.store import VERSION, Store
    from edgespec.drafting.text.store_kernels import LONGEST
    from edgespec.system.size import format_size

    store = Store(file)
    facts = {
        "path": file,
        "version": VERSION,
        "bytes": store.size_bytes,
        "tokens": store.header.num_tokens - store.header.num_files,
        "files": store.header.num_files,
        "longest_context": LONGEST,
        "vocabulary": store.header.vocab_size,
        "fingerprint": store.header.vocabulary.hex(),
    }
    if as_json:
        print_json(facts)
        return
    print(
        f"{printable(file)}: {format_size(store.size_bytes)}, checked\n"
        f"{facts['tokens']} tokens from {facts['files']} files, contexts of up to {LONGEST}\n"
        f"for a vocabulary of {facts['vocabulary']} tokens, fingerprint {facts['fingerprint']}"
    )
