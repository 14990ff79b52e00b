"""The command line: arguments in, text and exit codes out. The work is done elsewhere.

Nothing heavy is imported before a command runs: `edgespec --help` is to answer at once.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from edgespec.errors import EdgeSpecError, OptionError
from edgespec.terminal import bench, replay, stores
from edgespec.terminal import prefix as prefixes
from edgespec.terminal.options import (
    LoadOptions,
    ReplyOptions,
    drafting_options,
    one_model,
)
from edgespec.terminal.text import printable, read_prompt, tolerate_any_encoding
from edgespec.version import __version__


class Commands(TyperGroup):
    """All commands; what they raise becomes one line on stderr and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except EdgeSpecError as error:
            if _debugging():
                raise
            _say(str(error))
            raise typer.Exit(error.exit_code) from None
        except KeyboardInterrupt:
            raise typer.Exit(130) from None
        except BrokenPipeError:
            _abandon_output()  # the reader has what it wanted
            raise typer.Exit(0) from None


app = typer.Typer(
    cls=Commands,
    help="Language models at full speed on the machine you own, inside a memory budget.",
    epilog="Exit codes: 0 done, 1 the work failed, 2 wrong usage, 130 interrupted.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


app.add_typer(stores.app, name="store")
app.add_typer(prefixes.app, name="prefix")


def main() -> None:
    """Run the command line of this process."""
    tolerate_any_encoding()
    try:
        app(prog_name="edgespec")
    except Exception as error:  # a fault of ours: say so, and where to learn more
        if _debugging():
            raise
        what = " ".join(f"{type(error).__name__}: {error}".split())
        _say(f"{what}; this is a fault of EdgeSpec: EDGESPEC_DEBUG=1 shows where, please report it")
        try:
            sys.stdout.flush()
        except OSError:
            _abandon_output()
        sys.exit(1)


def _abandon_output() -> None:
    """Let what is still buffered go nowhere: Python would fail to flush it at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _say(message: str) -> None:
    print(f"edgespec: {printable(message)}", file=sys.stderr)


def _debugging() -> bool:
    return os.environ.get("EDGESPEC_DEBUG", "") not in ("", "0")


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
        help="Most memory to take of GPUs and workers; auto takes none of GPUs.",
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


app.add_typer(bench.app, name="bench")
app.command()(replay.replay)


@app.callback()
def _root(version: Version = False) -> None:
    del version


@app.command()
def run(
    prompt: Prompt = None,
    model: Model = None,
    backend: Backend = "auto",
    memory: Memory = "auto",
    vram: Vram = "auto",
    workers: Workers = None,
    context: Context = None,
    kv_type: KvType = "auto",
    threads: Threads = None,
    max_tokens: MaxTokens = 512,
    temperature: Temperature = 0.8,
    top_k: TopK = 40,
    top_p: TopP = 0.95,
    min_p: MinP = 0.05,
    repetition_penalty: Penalty = 1.0,
    seed: Seed = None,
    drafters: Drafters = "auto",
    store: Store = None,
    draft_model: DraftModel = None,
    overlap: Overlap = "auto",
    draft_backend: DraftBackend = "auto",
    no_speculation: NoSpeculation = False,
    system: System = None,
    prefix: PrefixName = None,
    raw: Raw = False,
    ignore_eos: IgnoreEos = False,
    accept: Accept = "exact",
    on_overflow: OnOverflow = "stop",
    stats: Stats = None,
    as_json: Json = False,
) -> None:
    """Write one reply.

    It answers PROMPT, the text on standard input, or both, joined by a blank line.
    """
    from edgespec.terminal.replies import run_once

    if prefix is not None and system is not None:
        raise OptionError("--prefix brings a system message of its own; drop it or --system")
    if raw and system is not None:
        raise OptionError(
            "--system needs the chat template that --raw leaves out; drop one of them"
        )
    reply = ReplyOptions(
        max_tokens, temperature, top_k, top_p, min_p, repetition_penalty, seed,
        not no_speculation, ignore_eos, accept, on_overflow,
    )  # fmt: skip
    text = read_prompt(prompt, sys.stdin.buffer, stdin_is_terminal=sys.stdin.isatty())
    drafting = drafting_options(drafters, draft_model, draft_backend, overlap, none=no_speculation)
    load = LoadOptions(
        model, memory, backend, threads, context, kv_type=kv_type, store=store,
        vram=vram, workers=workers, **drafting,
    )  # fmt: skip
    run_once(text, load, reply, system=system, prefix=prefix, raw=raw, stats=stats, as_json=as_json)


@app.command()
def chat(
    prompt: Prompt = None,
    model: Model = None,
    backend: Backend = "auto",
    memory: Memory = "auto",
    vram: Vram = "auto",
    workers: Workers = None,
    context: Context = None,
    kv_type: KvType = "auto",
    threads: Threads = None,
    max_tokens: MaxTokens = 512,
    temperature: Temperature = 0.8,
    top_k: TopK = 40,
    top_p: TopP = 0.95,
    min_p: MinP = 0.05,
    repetition_penalty: Penalty = 1.0,
    seed: Seed = None,
    drafters: Drafters = "auto",
    store: Store = None,
    draft_model: DraftModel = None,
    overlap: Overlap = "auto",
    draft_backend: DraftBackend = "auto",
    no_speculation: NoSpeculation = False,
    system: System = None,
    prefix: PrefixName = None,
    raw: Raw = False,
    ignore_eos: IgnoreEos = False,
    accept: Accept = "exact",
    on_overflow: OnOverflow = "stop",
    as_json: Json = False,
) -> None:
    """Talk with a model.

    When standard input is a pipe, each of its lines is a turn.
    """
    from edgespec.terminal.replies import hold_chat

    if prefix is not None and system is not None:
        raise OptionError("--prefix brings a system message of its own; drop it or --system")
    if raw:
        raise OptionError(
            "a chat needs the chat template; continue a text with `edgespec run --raw`"
        )
    reply = ReplyOptions(
        max_tokens, temperature, top_k, top_p, min_p, repetition_penalty, seed,
        not no_speculation, ignore_eos, accept, on_overflow,
    )  # fmt: skip
    drafting = drafting_options(drafters, draft_model, draft_backend, overlap, none=no_speculation)
    load = LoadOptions(
        model, memory, backend, threads, context, kv_type=kv_type, store=store,
        vram=vram, workers=workers, **drafting,
    )  # fmt: skip
    if not hold_chat(prompt, load, reply, system=system, prefix=prefix, as_json=as_json):
        raise typer.Exit(1)


@app.command()
def batch(
    file: Prompts,
    out: Out = None,
    max_batch: MaxBatch = 8,
    ray: Ray = None,
    model: Model = None,
    backend: Backend = "auto",
    memory: Memory = "auto",
    vram: Vram = "auto",
    workers: Workers = None,
    context: Context = None,
    kv_type: KvType = "auto",
    threads: Threads = None,
    max_tokens: MaxTokens = 512,
    temperature: Temperature = 0.8,
    seed: Seed = None,
    drafters: Drafters = "auto",
    draft_model: DraftModel = None,
    draft_backend: DraftBackend = "auto",
    no_speculation: NoSpeculation = False,
    raw: Raw = False,
    on_overflow: OnOverflow = "stop",
) -> None:
    """Write the replies to a file of prompts, several at once.

    Each line of FILE is like {"prompt": "..."}, with max_tokens, temperature, top_k, top_p, min_p,
    repetition_penalty, seed, ignore_eos, accept, raw and an id if wanted; each line of the output
    is the reply to the line at its place. Lines that --out holds already are left out. With --ray,
    the budget is each node's own, and the model must be at the same place on every node.
    """
    from edgespec.terminal.batches import run_batch

    if ray is not None and workers is not None:
        raise OptionError("a worker serves one machine, and --ray has several; drop one of both")
    reply = ReplyOptions(
        max_tokens,
        temperature,
        seed=seed,
        speculation=not no_speculation,
        on_overflow=on_overflow,
    )
    drafting = drafting_options(drafters, draft_model, draft_backend, none=no_speculation)
    load = LoadOptions(
        model, memory, backend, threads, context, kv_type=kv_type, sequences=max_batch,
        vram=vram, workers=workers, **drafting,
    )  # fmt: skip
    if not run_batch(file, out, load, reply, raw=raw, ray=ray):
        raise typer.Exit(1)


@app.command()
def plan(
    model_argument: ModelArgument = None,
    model: Model = None,
    backend: Backend = "auto",
    memory: Memory = "auto",
    vram: Vram = "auto",
    workers: Workers = None,
    context: Context = None,
    kv_type: KvType = "auto",
    threads: Threads = None,
    drafters: Drafters = "auto",
    store: Store = None,
    draft_model: DraftModel = None,
    overlap: Overlap = "auto",
    draft_backend: DraftBackend = "auto",
    no_speculation: NoSpeculation = False,
    max_batch: MaxBatch = 1,
    as_json: Json = False,
) -> None:
    """Show where every byte would go, and why.

    Nothing is loaded; the plan is the one that `run` and `chat` would use. Below it: what each
    lever would give.
    """
    drafting = drafting_options(drafters, draft_model, draft_backend, overlap, none=no_speculation)
    named = one_model(model_argument, model)
    options = LoadOptions(
        named, memory, backend, threads, context, kv_type=kv_type, store=store,
        sequences=max_batch, vram=vram, workers=workers, **drafting,
    )  # fmt: skip
    made = options.plan()
    if as_json:
        _print_json(made.as_dict())
        return
    from edgespec.terminal.tables import print_plan

    print_plan(made, options.model)


@app.command()
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
        _print_json(facts)
        return
    from edgespec.terminal.tables import print_about

    print_about(facts)


@app.command()
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
        _print_json(facts)


@app.command()
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

    The files hold the same tensors and run as the whole on llama.cpp; the first, of E layers, can
    draft for the whole on the same pages of memory.
    """
    from pathlib import Path

    from edgespec.memory.size import format_size
    from edgespec.models import resolve
    from edgespec.models.splitting import split_model

    path = resolve(model)
    place = Path(out) if out else path.with_name(f"{path.stem}-exit{exit_layer}")
    for part in split_model(path, exit_layer, place):
        print(f"{printable(str(part))}  {format_size(part.stat().st_size)}")


@app.command()
def worker(
    host: Annotated[
        str, typer.Option("--host", metavar="HOST", help="The address to listen on.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", metavar="N", help="The TCP port; 0 is a free one.")
    ] = 50052,
    memory: Memory = "auto",
    threads: Threads = None,
    allow_public: Annotated[
        bool,
        typer.Option("--allow-public", help="Listen where other machines can reach it."),
    ] = False,
) -> None:
    """Hold layers of models that run on another machine, and compute them.

    `--workers HOST:PORT` of run and chat uses it, through llama.cpp's RPC backend. It has no
    authentication and no encryption: it listens on this machine alone unless told otherwise.
    """
    from edgespec.terminal.worker import run_worker

    run_worker(host, port, memory, threads, allow_public=allow_public)


@app.command()
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
        _print_json(facts)


@app.command()
def doctor(as_json: Json = False) -> None:
    """Look this machine and installation over.

    Prints advice where something could be better; exits with 1 if something cannot work.
    """
    from edgespec.terminal.doctor import examine

    findings = examine()
    problems = sum(finding.status == "problem" for finding in findings)
    if as_json:
        values = [finding.as_dict() for finding in findings]
        _print_json({"version": __version__, "problems": problems, "findings": values})
    else:
        from edgespec.terminal.tables import print_findings

        print_findings(findings)
    if problems:
        raise typer.Exit(1)


def _print_json(values: dict[str, Any]) -> None:
    print(json.dumps(values, indent=2, ensure_ascii=False))
