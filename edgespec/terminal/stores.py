"""`edgespec store`: build a datastore of text or code, and tell what is in one."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer

from edgespec.terminal.text_io import printable

app = typer.Typer(
    help="Datastores of text or code that drafts are looked up in.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Folder = Annotated[str, typer.Argument(metavar="FOLDER", help="Text files, at any depth.")]
File = Annotated[str, typer.Argument(metavar="FILE", help="A datastore.")]
Vocab = Annotated[
    str | None,
    typer.Option(
        "--vocab",
        metavar="MODEL",
        help="The model whose tokens it is for; the bundled one if left out.",
    ),
]
Out = Annotated[str, typer.Option("--out", "-o", metavar="FILE", help="Where to write it.")]
MaxBytes = Annotated[
    str, typer.Option("--max-bytes", metavar="SIZE", help="Its largest size, like 64MiB.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout and nothing else.")]


@app.command()
def build(
    folder: Folder,
    out: Out,
    vocab: Vocab = None,
    max_bytes: MaxBytes = "256MiB",
    as_json: Json = False,
) -> None:
    """Read a folder of text or code into a datastore.

    Files that are not UTF-8 text, hidden files and links are left out.
    """
    from edgespec.drafting.text.store_builder import build_store
    from edgespec.models.open_model import open_model
    from edgespec.models.registry import resolve
    from edgespec.system.size import format_size, parse_size
    from edgespec.terminal.progress import ProgressLine

    size = parse_size(max_bytes)
    with open_model(resolve(vocab)) as model, ProgressLine(sys.stderr) as line:
        report = build_store(
            folder, model.tokenizer, out, size, lambda done, whole: line("store", done, whole)
        )
    if as_json:
        _print(
            {
                "path": out,
                "files": report.files,
                "skipped": report.skipped,
                "tokens": report.tokens,
                "bytes": report.size_bytes,
            }
        )
        return
    print(
        f"{printable(out)}: {format_size(report.size_bytes)}, {report.tokens} tokens of "
        f"{report.files} files; {report.skipped} were not text"
    )


@app.command()
def info(file: File, as_json: Json = False) -> None:
    """Check a datastore and tell what is in it."""
    from edgespec.drafting.text.store import ORDERS, VERSION, Store
    from edgespec.system.size import format_size

    store = Store(file)
    facts = {
        "path": file,
        "version": VERSION,
        "bytes": store.size_bytes,
        "tokens": store.header.num_tokens,
        "contexts": store.num_contexts(),
        "longest_context": ORDERS,
        "vocabulary": store.header.vocab_size,
        "fingerprint": store.header.vocabulary.hex(),
    }
    if as_json:
        _print(facts)
        return
    print(
        f"{printable(file)}: {format_size(store.size_bytes)}, checked\n"
        f"{facts['contexts']} contexts of up to {ORDERS} tokens, of {facts['tokens']} tokens read\n"
        f"for a vocabulary of {facts['vocabulary']} tokens, fingerprint {facts['fingerprint']}"
    )


def _print(values: dict[str, Any]) -> None:
    print(json.dumps(values, indent=2, ensure_ascii=False))
