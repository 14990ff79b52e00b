"""Commands about model files: what is in one, and what can be made of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from edgespec.terminal.arguments import (
    Bits,
    ExitLayer,
    Folder,
    Format,
    Json,
    Memory,
    Model,
    ModelArgument,
    Positions,
    Source,
    Tensors,
    Threads,
)
from edgespec.terminal.options import one_model
from edgespec.terminal.text_io import print_json, printable


def show(
    model_argument: ModelArgument = None,
    model: Model = None,
    tensors: Tensors = False,
    as_json: Json = False,
) -> None:
    """Tell what is in a model file."""
    from edgespec.terminal.about import about

    facts = about(one_model(model_argument, model), tensors=tensors)
    if as_json:
        print_json(facts)
        return
    from edgespec.terminal.tables import print_about

    print_about(facts)


def export(
    source: Source,
    out: Folder,
    format: Format = "onnx",
    bits: Bits = None,
    exit_layer: ExitLayer = None,
    context: Positions = None,
    as_json: Json = False,
) -> None:
    """Write a model in another format.

    OUT becomes a folder with an ONNX graph, its weights, tokenizer and chat template, as
    onnxruntime-genai lays them out; `--model OUT` runs it. Its logits are compared with MODEL's.
    """
    from edgespec.terminal.exports import export_model

    facts = export_model(source, out, format, bits, exit_layer, context, quiet=as_json)
    if as_json:
        print_json(facts)


def prepare(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A .gguf file.")],
    exit_layer: Annotated[
        int, typer.Option("--exit-layer", metavar="E", help="Layers of the first part.")
    ],
    out: Annotated[
        str | None,
        typer.Argument(metavar="OUT", help="How names begin; beside the model if left out."),
    ] = None,
) -> None:
    """Write a model in two files, the first of which is a smaller model of its own.

    The files hold the same tensors and run as the whole on llama.cpp; the first, of E layers,
    drafts for the whole on the same pages of memory (the drafter early-exit).
    """
    from edgespec.models.gguf.splitting import split_model
    from edgespec.models.registry import resolve
    from edgespec.system.size import format_size

    path = resolve(model)
    place = Path(out) if out else path.with_name(f"{path.stem}-exit{exit_layer}")
    for part in split_model(path, exit_layer, place):
        print(f"{printable(str(part))}  {format_size(part.stat().st_size)}")


def adapt(
    model: Source,
    data: Annotated[
        str,
        typer.Option(
            "--data",
            metavar="FILE",
            help='A plain text, or .jsonl of {"text": ...} or {"prompt": ..., "response": ...}.',
        ),
    ],
    exit_layer: Annotated[
        str,
        typer.Option(
            "--exit-layer", metavar="E|auto", help="Fit this exit; auto all that drafts may take."
        ),
    ] = "auto",
    memory: Memory = "auto",
    threads: Threads = None,
    max_tokens: Annotated[
        int | None,
        typer.Option("--max-tokens", metavar="N", help="How much of the text to read at most."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Fit an adapter that lets early exits of a model say more often what the whole would.

    It is written beside the model, where the drafter early-exit finds it; no text changes.
    Exits that do not gain on text kept apart have none.
    """
    from edgespec.terminal.adapts import adapt_model

    facts = adapt_model(model, data, exit_layer, memory, threads, max_tokens, quiet=as_json)
    if as_json:
        print_json(facts)
