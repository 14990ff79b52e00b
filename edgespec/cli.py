"""The command line: arguments in, text and exit codes out. The work is done elsewhere.

Nothing heavy is imported before a command runs: `edgespec --help` is to answer at once.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from edgespec.errors import EdgeSpecError, OptionError
from edgespec.terminal import bench_commands, files, replay_command, stores
from edgespec.terminal import prefix as prefixes
from edgespec.terminal.arguments import (
    Accept,
    Backend,
    Context,
    DraftBackend,
    Drafters,
    DraftModel,
    IgnoreEos,
    Json,
    KvType,
    MaxBatch,
    MaxTokens,
    Memory,
    MinP,
    Model,
    ModelArgument,
    NoSpeculation,
    OnOverflow,
    Out,
    Overlap,
    Penalty,
    PrefixName,
    Prompt,
    Prompts,
    Raw,
    Ray,
    Seed,
    Stats,
    Store,
    System,
    Temperature,
    Threads,
    TopK,
    TopP,
    Version,
    Vram,
    Workers,
)
from edgespec.terminal.options import (
    LoadOptions,
    ReplyOptions,
    drafting_options,
    one_model,
)
from edgespec.terminal.text_io import print_json, printable, read_prompt, tolerate_any_encoding
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


app.add_typer(bench_commands.app, name="bench")
app.command()(replay_command.replay)


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
        print_json(made.as_dict())
        return
    from edgespec.terminal.tables import print_plan

    print_plan(made, options.model)


for command in (files.show, files.export, files.prepare, files.adapt):
    app.command()(command)


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
    from edgespec.terminal.serve_worker import run_worker

    run_worker(host, port, memory, threads, allow_public=allow_public)


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
        print_json({"version": __version__, "problems": problems, "findings": values})
    else:
        from edgespec.terminal.tables import print_findings

        print_findings(findings)
    if problems:
        raise typer.Exit(1)
