"""`edgespec prefix`: save system messages with their keys and values, and list them."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from edgespec.engine.reply_options import ReplyOptions
from edgespec.loading.load_options import LoadOptions
from edgespec.terminal.help_layout import App, Group
from edgespec.terminal.parameters import Json, Memory, Model, parameter
from edgespec.terminal.text_io import print_json, printable, read_prompt

app = App(
    cls=Group,
    help="Save system messages so that they need not be computed again.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the prefix.")]


@app.command()
def save(
    name: Name,
    text: Annotated[
        str | None,
        typer.Argument(metavar="TEXT", help="The system message.", show_default=False),
    ] = None,
    model: Model = None,
    memory: Memory = "auto",
    context: Annotated[int | None, parameter(LoadOptions, "context")] = None,
    kv_type: Annotated[str, parameter(LoadOptions, "kv_type")] = "auto",
    raw: Annotated[
        bool,
        typer.Option("--raw", help="Save the start of a text, for `run --raw`."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Compute a system message once, to be used by `run` and `chat` with --prefix NAME.

    The message is TEXT, standard input, or both, separated by a blank line. It replaces a saved
    prefix of the same name. With another model or KV cache type it is computed again.
    """
    from edgespec.memory.kv.saved_prefixes import check_name
    from edgespec.system.size import format_size
    from edgespec.terminal.opened_engine import opened_engine

    check_name(name)
    message = read_prompt(text, sys.stdin.buffer, stdin_is_terminal=sys.stdin.isatty())
    load = LoadOptions(model, memory=memory, context=context, kv_type=kv_type)
    with opened_engine(load, ReplyOptions(speculation=False)) as (engine, _):
        saved = engine.save_prefix(name, message, raw=raw)
    if as_json:
        print_json(saved.as_dict())
    else:
        print(f"{name}: {len(saved.header.ids)} tokens, {format_size(saved.size_bytes)}")


@app.command("list")
def list_all(as_json: Json = False) -> None:
    """List saved prefixes with their models and sizes."""
    from edgespec.errors import KvFileError
    from edgespec.memory.kv import saved_prefixes
    from edgespec.system.size import format_size

    found = []
    for name in saved_prefixes.saved():
        try:
            found.append(saved_prefixes.read(name))
        except KvFileError as error:
            print(f"edgespec: {printable(str(error))}", file=sys.stderr)
    if as_json:
        print_json([prefix.as_dict() for prefix in found])
        return
    if not found:
        print("edgespec: no prefixes are saved; see `edgespec prefix save --help`", file=sys.stderr)
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
    from edgespec.memory.kv import saved_prefixes

    saved_prefixes.remove(name)
