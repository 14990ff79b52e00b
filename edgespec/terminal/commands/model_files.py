"""Commands about model files: what is in one, and what can be made of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from edgespec.terminal.parameters import (
    Json,
    Memory,
    Model,
    ModelArgument,
    Source,
    Threads,
    one_model,
)
from edgespec.terminal.text_io import print_json, printable


def show(
    model_argument: ModelArgument = None,
    model: Model = None,
    tensors: Annotated[bool, typer.Option("--tensors", help="Also list every tensor.")] = False,
    as_json: Json = False,
) -> None:
    """Show what is in a model file."""
    from edgespec.terminal.model_facts import facts_of

    facts = facts_of(one_model(model_argument, model), tensors=tensors)
    if as_json:
        print_json(facts)
        return
    from edgespec.terminal.model_table import print_model

    print_model(facts)


def export(
    source: Source,
    out: Annotated[str, typer.Argument(metavar="OUT", help="Folder to write to.")],
    format: Annotated[
        str, typer.Option("--format", metavar="onnx", help="Format to write.")
    ] = "onnx",
    bits: Annotated[
        int | None,
        typer.Option(
            "--bits",
            metavar="4|8|16|32",
            help="Bits per weight; by default whatever is closest to the file's.",
        ),
    ] = None,
    exit_layer: Annotated[
        int | None,
        typer.Option("--exit-layer", metavar="E", help="Keep only the first E layers, to draft."),
    ] = None,
    context: Annotated[
        int | None,
        typer.Option(
            "--context", metavar="N", help="Maximum context length; by default at most 32768."
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a model that is in OUT.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Export a model to another format.

    Writes an ONNX graph, its weights, tokenizer and chat template to the folder OUT, laid out as
    onnxruntime-genai does, and compares its logits with MODEL's. Run it with `--model OUT`.
    """
    from edgespec.terminal.export_report import export_model

    facts = export_model(
        source, out, format, bits, exit_layer, context, overwrite=overwrite, quiet=as_json
    )
    if as_json:
        print_json(facts)


def prepare(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A .gguf file.")],
    exit_layer: Annotated[
        int, typer.Option("--exit-layer", metavar="E", help="Number of layers in the first file.")
    ],
    out: Annotated[
        str | None,
        typer.Argument(
            metavar="OUT", help="Path prefix of the new files; by default next to the model."
        ),
    ] = None,
) -> None:
    """Split a model so that its first layers can draft for it.

    Writes two files with the same tensors, which run as one model. The first file holds E layers
    and is a smaller model in its own right; on llama.cpp the early-exit drafter uses it without
    loading any weight twice.
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
            help='Plain text, or .jsonl of {"text": ...} or {"prompt": ..., "response": ...}.',
        ),
    ],
    exit_layer: Annotated[
        str,
        typer.Option(
            "--exit-layer",
            metavar="E|auto",
            help="Fit this exit only; auto fits every exit that drafts may use.",
        ),
    ] = "auto",
    memory: Memory = "auto",
    threads: Threads = None,
    max_tokens: Annotated[
        int | None,
        typer.Option("--max-tokens", metavar="N", help="Maximum number of tokens to read."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Fit an adapter for better drafts from early exits.

    The adapter is written next to the model, where the early-exit drafter finds it. The model's
    text stays the same. Exits that do not improve on held-out text are left out.
    """
    from edgespec.terminal.adapt_report import adapt_model

    facts = adapt_model(model, data, exit_layer, memory, threads, max_tokens, quiet=as_json)
    if as_json:
        print_json(facts)
