"""`edgespec bench`: measurements a user can run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    help="Measure this machine and what EdgeSpec makes of it.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

ModelArgument = Annotated[
    str | None, typer.Argument(metavar="MODEL", help="The same as --model.", show_default=False)
]
Model = Annotated[
    str | None,
    typer.Option(
        "--model", "-m", metavar="PATH_OR_NAME", help="A .gguf file; the bundled model if left out."
    ),
]
Threads = Annotated[
    int | None, typer.Option("--threads", metavar="N", help="Threads; one per core if left out.")
]
Context = Annotated[
    int, typer.Option("--context", metavar="N", help="Tokens in the cache when passes are timed.")
]
Nodes = Annotated[
    str, typer.Option("--nodes", metavar="LIST", help="Tokens of a pass, ascending; 1 is added.")
]
Rounds = Annotated[
    int, typer.Option("--rounds", metavar="N", help="Times that everything has its turn.")
]
Peers = Annotated[
    str,
    typer.Option(
        "--peers",
        metavar="auto|none|LIST",
        help="Who is measured beside EdgeSpec: llamacpp, onnx; auto is those installed.",
    ),
]
Plot = Annotated[
    Path | None,
    typer.Option("--plot", metavar="FILE", help="Draw the curves to a .png or .svg file."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout and nothing else.")]


@app.callback()
def _bench() -> None:
    """Without this, Typer would take the one command's place for the group's."""


@app.command()
def kernels(
    model_argument: ModelArgument = None,
    model: Model = None,
    threads: Threads = None,
    context: Context = 256,
    nodes: Nodes = "1,2,4,8,16",
    rounds: Rounds = 7,
    peers: Peers = "auto",
    plot: Plot = None,
    as_json: Json = False,
) -> None:
    """Hold the kernels against this machine's limits, and against other engines.

    Times passes over n tokens, T(n), in turns with reading, copying and multiplying at full speed
    and with the peers. Nothing is asserted. Close other programs first.
    """
    from edgespec.terminal.options import one_model
    from edgespec.terminal.progress import ProgressLine
    from edgespec.terminal.text_io import printable
    from edgespec.tools.bench.kernel_plot import Plotter
    from edgespec.tools.bench.kernel_text import lines
    from edgespec.tools.bench.kernels import KernelOptions, measure

    options = KernelOptions.parse(
        one_model(model_argument, model), threads, context, nodes, rounds, peers
    )
    plotter = None if plot is None else Plotter(plot)  # what it lacks is told before minutes pass
    with ProgressLine() as progress:
        report = measure(options, progress)
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
