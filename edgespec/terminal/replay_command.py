"""`edgespec replay`: what speculation would have brought for replies that are in a log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

File = Annotated[
    str,
    typer.Argument(
        metavar="FILE",
        help='Lines of {"prompt": ..., "output": ...}, each text or a list of token ids.',
    ),
]
Vocab = Annotated[
    str | None,
    typer.Option(
        "--vocab",
        metavar="MODEL",
        help="The .gguf file whose tokenizer reads the texts; the bundled one if left out.",
    ),
]
MaxNodes = Annotated[
    int, typer.Option("--max-nodes", metavar="N", help="Most tokens drafted in a step.")
]
Drafters = Annotated[
    str,
    typer.Option(
        "--drafters",
        metavar="LIST|auto|all",
        help="Who is replayed, alone and in the market: names, auto as in run, or all.",
    ),
]
Curve = Annotated[
    str | None,
    typer.Option(
        "--cost-curve",
        metavar="FILE",
        help="What passes take: the JSON of `bench kernels`, or seconds by tokens; if left out, "
        "what was measured when the model was last loaded here, or else a typical curve.",
    ),
]
Plot = Annotated[
    Path | None,
    typer.Option("--plot", metavar="FILE", help="Draw the table to a .png or .svg file."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout and nothing else.")]


def replay(
    file: File,
    vocab: Vocab = None,
    max_nodes: MaxNodes = 8,
    drafters: Drafters = "auto",
    cost_curve: Curve = None,
    plot: Plot = None,
    as_json: Json = False,
) -> None:
    """Tell what speculation would bring for the replies in a log, of any model.

    Each drafter and the market of all of them guess along with what was written, and so does prompt
    lookup as others ship it. No model runs; nothing is kept.
    """
    from edgespec.models.open_model import open_model
    from edgespec.models.registry import resolve
    from edgespec.terminal.progress import ProgressLine
    from edgespec.terminal.replay_plot import ReplayPlotter
    from edgespec.terminal.text_io import printable
    from edgespec.tools.replay.replay import ReplayOptions
    from edgespec.tools.replay.replay import replay as run
    from edgespec.tools.replay.report_text import lines

    options = ReplayOptions.parse(file, vocab, max_nodes, drafters, cost_curve)
    plotter = None if plot is None else ReplayPlotter(plot)
    with open_model(resolve(vocab)) as model, ProgressLine() as progress:
        report = run(options, model, progress)
    if plotter is not None:
        plotter.draw(report)
    if as_json:
        print(
            json.dumps(report.as_dict() | {"plot": None if plot is None else str(plot)}, indent=2)
        )
        return
    for line in lines(report):
        print(printable(line))
    if plot is not None:
        print(f"\nplot: {plot}")
