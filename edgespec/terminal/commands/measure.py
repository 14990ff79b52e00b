"""`edgespec bench` and `edgespec replay`: measurements that a user can run."""

from __future__ import annotations

from typing import Annotated

import typer

from edgespec.errors import OptionError
from edgespec.terminal.help_layout import App, Group
from edgespec.terminal.parameters import Json, Model, ModelArgument, Plot, Threads, one_model
from edgespec.terminal.text_io import print_json, printable

bench = App(
    cls=Group,
    help="Measure this machine and how EdgeSpec runs on it.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@bench.callback()
def _bench() -> None:
    """Without this, Typer would take the one command's place for the group's."""


@bench.command()
def kernels(
    model_argument: ModelArgument = None,
    model: Model = None,
    threads: Threads = None,
    context: Annotated[
        int,
        typer.Option("--context", metavar="N", help="Tokens in the KV cache during each pass."),
    ] = 256,
    nodes: Annotated[
        str,
        typer.Option(
            "--nodes", metavar="LIST", help="Numbers of tokens per pass, ascending; 1 is added."
        ),
    ] = "1,2,4,8,16",
    rounds: Annotated[
        int, typer.Option("--rounds", metavar="N", help="Number of times to measure everything.")
    ] = 7,
    peers: Annotated[
        str,
        typer.Option(
            "--peers",
            metavar="auto|none|LIST",
            help="Engines to compare with: llamacpp, onnx; auto uses those installed.",
        ),
    ] = "auto",
    plot: Plot = None,
    as_json: Json = False,
) -> None:
    """Compare the kernels with this machine's limits and with other engines.

    Measures passes over n tokens, T(n), in alternation with reading, copying and multiplying at
    full speed and with the other engines. Close other programs first.
    """
    from edgespec.terminal.progress import ProgressLine
    from edgespec.tools.bench.kernel_plot import Plotter
    from edgespec.tools.bench.kernel_text import lines

    try:
        from edgespec.tools.bench.kernels import KernelOptions, measure
    except ModuleNotFoundError as error:
        raise OptionError(
            "bench kernels compiles loops that find this machine's limits, and "
            f"{error.name} is not installed: pip install 'edgespec[jit]'"
        ) from None

    named = one_model(model_argument, model)
    options = KernelOptions.parse(named, threads, context, nodes, rounds, peers)
    plotter = None if plot is None else Plotter(plot)  # what it lacks is said before minutes pass
    with ProgressLine() as progress:
        report = measure(options, progress)
    if plotter is not None:
        plotter.draw(report)
    if as_json:
        print_json(report.as_dict() | {"plot": None if plot is None else str(plot)})
        return
    for line in (*lines(report), *([] if plot is None else ["", f"plot: {plot}"])):
        print(printable(line))


def replay(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help='Lines of {"prompt": ..., "output": ...}, '
            "as text or lists of token ids; "
            "may be gzipped.",
        ),
    ],
    vocab: Annotated[
        str | None,
        typer.Option(
            "--vocab",
            metavar="MODEL",
            help="Model whose tokenizer reads the texts; the bundled model by default.",
        ),
    ] = None,
    max_nodes: Annotated[
        int, typer.Option("--max-nodes", metavar="N", help="Maximum tokens drafted per step.")
    ] = 8,
    store: Annotated[
        str | None,
        typer.Option("--store", metavar="FILE", help="Datastore for the hierarchy drafter."),
    ] = None,
    drafters: Annotated[
        str,
        typer.Option(
            "--drafters",
            metavar="LIST|auto|all",
            help="Drafters to replay, alone and together; auto uses those of `run`.",
        ),
    ] = "auto",
    cost_curve: Annotated[
        str | None,
        typer.Option(
            "--cost-curve",
            metavar="FILE",
            help="Time per pass: JSON from `bench kernels`, or seconds by number of tokens. By "
            "default what was last measured here for this model, else a typical curve.",
        ),
    ] = None,
    plot: Plot = None,
    as_json: Json = False,
) -> None:
    """Estimate what speculation would gain on logged replies.

    Each drafter, all of them together, and prompt lookup as in other engines guess along with what
    a model, any model, has written. No model runs, and nothing is stored. Drafters that learn from
    logits need lines that `run --record` wrote.
    """
    from edgespec.models.registry import resolve
    from edgespec.models.vocabulary_file import open_vocabulary
    from edgespec.terminal.progress import ProgressLine
    from edgespec.terminal.replay_plot import ReplayPlotter
    from edgespec.tools.replay.replay import ReplayOptions
    from edgespec.tools.replay.replay import replay as run
    from edgespec.tools.replay.report_text import lines

    options = ReplayOptions.parse(file, vocab, max_nodes, drafters, cost_curve, store)
    plotter = None if plot is None else ReplayPlotter(plot)
    with open_vocabulary(resolve(vocab)) as model, ProgressLine() as progress:
        report = run(options, model, progress)
    if plotter is not None:
        plotter.draw(report)
    if as_json:
        print_json(report.as_dict() | {"plot": None if plot is None else str(plot)})
        return
    for line in (*lines(report), *([] if plot is None else ["", f"plot: {plot}"])):
        print(printable(line))
