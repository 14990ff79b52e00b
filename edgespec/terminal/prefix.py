"""`edgespec prefix`: save a beginning with its keys and values, and tell which there are."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from edgespec.terminal.options import LoadOptions
from edgespec.terminal.text_io import printable, read_prompt

app = typer.Typer(
    help="Saved beginnings of prompts, which are not computed again.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="What to call it.")]
Text = Annotated[
    str | None, typer.Argument(metavar="TEXT", help="The system message.", show_default=False)
]
Model = Annotated[
    str | None,
    typer.Option(
        "--model", "-m", metavar="PATH_OR_NAME", help="A .gguf file; the bundled model if left out."
    ),
]
Memory = Annotated[
    str, typer.Option("--memory", metavar="SIZE", help="Most memory to be resident in.")
]
Context = Annotated[
    int | None, typer.Option("--context", metavar="N", help="Most tokens, of which it takes some.")
]
KvType = Annotated[
    str, typer.Option("--kv-type", metavar="TYPE", help="As `run` will have it: see there.")
]
Raw = Annotated[bool, typer.Option("--raw", help="Save the beginning of a text for `run --raw`.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout and nothing else.")]


@app.command()
def save(
    name: Name,
    text: Text = None,
    model: Model = None,
    memory: Memory = "auto",
    context: Context = None,
    kv_type: KvType = "auto",
    raw: Raw = False,
    as_json: Json = False,
) -> None:
    """Compute a system message once, for `run` and `chat` with --prefix NAME.

    It is TEXT, the text on standard input, or both, joined by a blank line. One of that name is
    replaced. Used with another model or KV type it is computed again.
    """
    from edgespec.memory.kv.prompt_cache import check_name
    from edgespec.system.size import format_size
    from edgespec.terminal.progress import ProgressLine

    check_name(name)
    said = read_prompt(text, sys.stdin.buffer, stdin_is_terminal=sys.stdin.isatty())
    load = LoadOptions(model, memory, context=context, kv_type=kv_type, drafters="none")
    with ProgressLine() as progress, load.load(progress) as engine:
        saved = engine.save_prefix(name, said, raw=raw)
    if as_json:
        print(json.dumps(saved.as_dict(), indent=2, ensure_ascii=False))
    else:
        print(f"{name}: {len(saved.header.ids)} tokens, {format_size(saved.size_bytes)}")


@app.command("list")
def list_all(as_json: Json = False) -> None:
    """Tell which prefixes are saved, for which models, and how large they are."""
    from edgespec.errors import KvFileError
    from edgespec.memory.kv import prompt_cache
    from edgespec.system.size import format_size

    found = []
    for name in prompt_cache.saved():
        try:
            found.append(prompt_cache.read(name))
        except KvFileError as error:
            print(f"edgespec: {printable(str(error))}", file=sys.stderr)
    if as_json:
        values = [prefix.as_dict() for prefix in found]
        print(json.dumps(values, indent=2, ensure_ascii=False))
        return
    for prefix in found:
        start = printable(" ".join(prefix.text.split())[:40])
        size = format_size(prefix.size_bytes)
        print(
            f"{prefix.name}: {len(prefix.header.ids)} tokens of {printable(prefix.model)}, {size}: "
            f"{start}"
        )


@app.command()
def remove(name: Name) -> None:
    """Delete a saved prefix."""
    from edgespec.memory.kv import prompt_cache

    prompt_cache.remove(name)
