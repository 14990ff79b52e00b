"""What a user can type after a command: every argument and option, once."""

from __future__ import annotations

from typing import Annotated

import typer

from edgespec.version import __version__


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"edgespec {__version__}")
        raise typer.Exit


_SIZE = "2GiB, 512MiB, 50% or auto"
Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        "-m",
        metavar="PATH_OR_NAME",
        help="A .gguf file, or an ONNX model; the bundled model if left out.",
    ),
]
ModelArgument = Annotated[
    str | None, typer.Argument(metavar="MODEL", help="The same as --model.", show_default=False)
]
Prompt = Annotated[
    str | None, typer.Argument(metavar="PROMPT", help="What to answer.", show_default=False)
]
Backend = Annotated[
    str,
    typer.Option(
        "--backend",
        metavar="auto|native|llamacpp|onnx|reference",
        help="What computes; auto is the fastest here of those that run the model.",
    ),
]
Memory = Annotated[
    str, typer.Option("--memory", metavar="SIZE", help=f"Most memory to be resident in: {_SIZE}.")
]
Vram = Annotated[
    str,
    typer.Option(
        "--vram",
        metavar="SIZE",
        help="Most memory to take of GPUs and workers; auto leaves GPUs a reserve, 0 all.",
    ),
]
Workers = Annotated[
    str | None,
    typer.Option(
        "--workers",
        metavar="HOST:PORT,...",
        help="Other machines that run `edgespec worker`, to hold layers of the model.",
    ),
]
Context = Annotated[
    int | None,
    typer.Option("--context", metavar="N", help="Tokens of prompt and reply together."),
]
Threads = Annotated[
    int | None, typer.Option("--threads", metavar="N", help="Threads; one per core if left out.")
]
KvType = Annotated[
    str,
    typer.Option(
        "--kv-type",
        metavar="auto|f16|int8|q4",
        help="How keys and values are kept: int8 takes half of f16's memory, q4 a bit over a "
        "quarter and changes the text; auto takes f16, or int8 where f16 does not fit.",
    ),
]
MaxTokens = Annotated[
    int, typer.Option("--max-tokens", "-n", metavar="N", help="Most tokens to write.")
]
Temperature = Annotated[
    float, typer.Option("--temperature", "-t", metavar="T", help="0 takes the likeliest token.")
]
TopK = Annotated[
    int, typer.Option("--top-k", metavar="N", help="Draw from the N likeliest tokens; 0 is off.")
]
TopP = Annotated[
    float,
    typer.Option("--top-p", metavar="P", help="Draw from the likeliest that sum to P; 1 is off."),
]
MinP = Annotated[
    float,
    typer.Option("--min-p", metavar="P", help="Drop tokens under P times the best; 0 is off."),
]
Penalty = Annotated[
    float, typer.Option("--repetition-penalty", metavar="R", help="Above 1 repeats less.")
]
Seed = Annotated[
    int | None,
    typer.Option("--seed", metavar="S", help="The same seed, the same text; drawn if left out."),
]
Drafters = Annotated[
    str, typer.Option("--drafters", metavar="LIST|auto", help="Who guesses ahead: names, or none.")
]
Store = Annotated[
    str | None,
    typer.Option("--store", metavar="FILE", help="A datastore for the drafter hierarchy."),
]
DraftModel = Annotated[
    str | None,
    typer.Option("--draft-model", metavar="FILE", help="A smaller model that guesses ahead."),
]
Overlap = Annotated[
    str,
    typer.Option(
        "--overlap",
        metavar="auto|on|off",
        help="Whether the draft model works while the model verifies; auto: where that is faster.",
    ),
]
DraftBackend = Annotated[
    str,
    typer.Option(
        "--draft-backend",
        metavar="auto|native|llamacpp|onnx",
        help="What computes the draft model; auto is native where that reads it.",
    ),
]
NoSpeculation = Annotated[
    bool,
    typer.Option("--no-speculation", help="One token at a time; the text is the same, only later."),
]
PrefixName = Annotated[
    str | None,
    typer.Option(
        "--prefix", metavar="NAME", help="Begin with what `edgespec prefix save NAME` computed."
    ),
]
System = Annotated[
    str | None, typer.Option("--system", "-s", metavar="TEXT", help="A system message.")
]
Raw = Annotated[
    bool, typer.Option("--raw", help="Send the prompt as it is, without the chat template.")
]
IgnoreEos = Annotated[
    bool, typer.Option("--ignore-eos", help="Write on when the model would end its reply.")
]
Accept = Annotated[
    str,
    typer.Option(
        "--accept",
        metavar="exact|typical",
        help="Which drafts stay: those the model would write, or, lossy, those typical enough.",
    ),
]
OnOverflow = Annotated[
    str,
    typer.Option(
        "--on-overflow",
        metavar="stop|drop-turns|sliding",
        help="When the context is full: stop, drop the oldest turns, or keep a sliding window.",
    ),
]
Stats = Annotated[
    bool | None,
    typer.Option(
        "--stats/--no-stats",
        help="The numbers on stderr after the reply, or not; by default on a terminal.",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout and nothing else.")]
Prompts = Annotated[
    str, typer.Argument(metavar="FILE", help="Prompts, a JSON object a line; - is standard input.")
]
Out = Annotated[
    str | None,
    typer.Option("--out", "-o", metavar="FILE", help="Where replies go; stdout if left out."),
]
MaxBatch = Annotated[
    int, typer.Option("--max-batch", metavar="N", help="Most replies written at once.")
]
Ray = Annotated[
    str | None,
    typer.Option(
        "--ray",
        metavar="ADDRESS",
        help="Use every node of a Ray cluster: HOST:PORT of its head, auto or local.",
    ),
]
Format = Annotated[str, typer.Option("--format", metavar="onnx", help="What to write.")]
Bits = Annotated[
    int | None,
    typer.Option(
        "--bits", metavar="4|8|16|32", help="Of each weight; nearest to the file's if left out."
    ),
]
ExitLayer = Annotated[
    int | None,
    typer.Option("--exit-layer", metavar="E", help="Keep the first E layers only, to draft with."),
]
Positions = Annotated[
    int | None,
    typer.Option(
        "--context", metavar="N", help="Positions it will take, at most 32768 by default."
    ),
]
Source = Annotated[str, typer.Argument(metavar="MODEL", help="A .gguf file, or a bundled name.")]
Folder = Annotated[str, typer.Argument(metavar="OUT", help="A folder for what is written.")]
Tensors = Annotated[bool, typer.Option("--tensors", help="List every tensor too.")]
Version = Annotated[
    bool,
    typer.Option(
        "--version", callback=_print_version, is_eager=True, help="Print the version and leave."
    ),
]
