"""`edgespec pull`, `list` and `rm`: models on this machine, and those of a hub."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from edgespec.errors import EdgeSpecError, ModelFileError, OptionError
from edgespec.loading.load_options import LoadOptions
from edgespec.terminal.parameters import Json, Memory, parameter
from edgespec.terminal.text_io import print_json, printable

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Answer every question with yes.")]


def pull(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="hf:ORG/REPO, hf:ORG/REPO:Q4_K_M, hf:ORG/REPO:FILE.gguf, the address of a "
            "repository, or a recommended model's name.",
        ),
    ],
    alias: Annotated[
        str | None,
        typer.Option("--name", metavar="NAME", help="A short name to use with --model."),
    ] = None,
    memory: Memory = "auto",
    context: Annotated[int | None, parameter(LoadOptions, "context")] = None,
    look_first: Annotated[
        bool,
        typer.Option("--plan/--no-plan", help="First see whether the model fits in --memory."),
    ] = True,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Download a model from Hugging Face.

    Before the download, the model's header is read and planned: whether it fits in --memory, with
    which context, and how fast it should be. A stopped download goes on where it stopped. The file
    lands in the cache that other programs share (HF_HOME); HF_TOKEN and HF_ENDPOINT are respected.
    """
    from edgespec.terminal import pulling

    load = LoadOptions(memory=memory, context=context)
    pulled = pulling.pull(name, load, look_first=look_first, yes=yes, alias=alias)
    if pulled is None:
        raise EdgeSpecError(f"{name} was not downloaded")
    if as_json:
        print_json(pulled.as_dict())
    else:
        print(printable(str(pulled.path)))


def list_models(
    wanted: Annotated[
        bool, typer.Option("--recommended", help="List models to start with instead.")
    ] = False,
    as_json: Json = False,
) -> None:
    """List the models on this machine."""
    from edgespec.terminal import model_list

    rows = model_list.recommended_rows() if wanted else model_list.model_rows()
    if as_json:
        print_json(rows)
    else:
        model_list.print_rows(rows)


def rm(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="A model or short name that `list` shows.")
    ],
    yes: Yes = False,
) -> None:
    """Delete a downloaded model.

    The file is gone for every program that shares the cache. With a short name of your own, the
    name is forgotten too.
    """
    from edgespec.models.hub.kept import find_kept, kept_models
    from edgespec.models.hub.names import name_model, own_names, reference_of
    from edgespec.system.size import format_size

    reference = reference_of(name)
    if reference is None:
        raise OptionError(f"{name!r} is no downloaded model; `edgespec list` shows them")
    path = find_kept(reference)
    found = next((one for one in kept_models() if path is not None and path in one.paths), None)
    if found is None and name not in own_names():
        raise ModelFileError(f"{name} is not on this machine; `edgespec list` shows what is")
    if found is not None:
        question = f"Delete {found.reference} ({format_size(found.size_bytes)})?"
        if not yes:
            if not sys.stdin.isatty():
                raise OptionError(f"{question} Nobody can answer here; add --yes")
            print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
            if sys.stdin.readline().strip().lower() not in ("y", "yes"):
                raise EdgeSpecError(f"{name} was kept")
        print(f"freed {format_size(found.remove())}")
    if name in own_names():
        name_model(name, None)
