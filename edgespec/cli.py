"""The command line: arguments in, text and exit codes out. The work is done elsewhere.

Nothing heavy is imported before a command runs: `edgespec --help` is to answer at once.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Annotated, Any, cast

import typer

from edgespec.engine.reply_options import ReplyOptions
from edgespec.errors import OptionError
from edgespec.loading.load_options import LoadOptions
from edgespec.terminal.commands import (
    datastores,
    hub_models,
    measure,
    model_files,
    prefixes,
    serving,
    texts,
)
from edgespec.terminal.config_file import config_place, defaults_of
from edgespec.terminal.help_layout import App, Group
from edgespec.terminal.outcome import abandon_output, exit_code, faults_told
from edgespec.terminal.parameters import (
    Json,
    ModelArgument,
    expand,
    one_model,
    parameter,
)
from edgespec.terminal.plain_run import LEFT_OUT
from edgespec.terminal.run_reply import RunOptions, check_system, run_reply
from edgespec.terminal.text_io import print_json
from edgespec.version import __version__


class Commands(Group):
    """All commands; what they raise becomes one line on stderr and an exit code."""

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        try:
            return super().make_context(*arguments, **options)
        except BrokenPipeError:  # of --help and --version
            abandon_output()
            raise typer.Exit(0) from None

    def invoke(self, ctx: Any) -> Any:
        command = super().invoke
        code = exit_code(lambda: command(ctx))
        if code:
            raise typer.Exit(code)


app = App(
    cls=Commands,
    help="Run language models fast on your own machine, within a memory budget.",
    epilog="Exit codes: 0 success, 1 failure, 2 wrong usage, 130 interrupted.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """Run the command line of this process."""
    with faults_told():
        _keep_command(sys.argv[1:2])
        app(prog_name="edgespec")


def _keep_command(typed: list[str]) -> None:
    """Leave out commands that are not asked for, as making them all takes as long as `--help`;
    `config.toml` is checked against all of them.
    """
    asked = [
        one
        for one in app.registered_commands
        if [one.name or (one.callback and one.callback.__name__)] == typed
    ]
    if asked and not config_place().exists():
        app.registered_commands, app.registered_groups = asked, []


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"edgespec {__version__}")
        raise typer.Exit


Prompt = Annotated[
    str | None, typer.Argument(metavar="PROMPT", help="The prompt.", show_default=False)
]
System = Annotated[str | None, parameter(RunOptions, "system")]


_TEXTS, _FILES, _MACHINE = "Texts", "Model files", "This machine"
"""Panels of commands below those of every day."""


@app.callback()
def _root(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    del version
    context.default_map = defaults_of(context)


@app.command()
@expand(*LEFT_OUT)
def run(
    *,
    prompt: Prompt = None,
    load: LoadOptions,
    reply: ReplyOptions,
    options: RunOptions,
) -> None:
    """Generate one reply.

    The prompt is PROMPT, standard input, or both, separated by a blank line.
    """
    run_reply(prompt, load, reply, options)


@app.command()
@expand("sequences", hidden=("raw",))
def chat(
    *,
    prompt: Prompt = None,
    load: LoadOptions,
    reply: ReplyOptions,
    system: System = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the last conversation.")
    ] = False,
    markdown: Annotated[
        bool,
        typer.Option("--markdown/--no-markdown", help="Lay out replies as Markdown."),
    ] = False,
    yes: hub_models.Yes = False,
    as_json: Json = False,
) -> None:
    """Chat with a model.

    /help in the chat lists its commands. If standard input is a pipe, each of its lines is a
    message.
    """
    from edgespec.terminal.chat.hold_chat import hold_chat
    from edgespec.terminal.pulling import with_model

    if reply.raw:
        raise OptionError(
            "a chat needs the chat template; use `edgespec run --raw` to continue a text"
        )
    check_system(system, reply)
    load = with_model(load, yes=yes)
    done = hold_chat(
        prompt, load, reply, system=system, resume=resume, markdown=markdown, as_json=as_json
    )
    if not done:
        raise typer.Exit(1)


@app.command()
@expand()
def plan(
    *,
    model_argument: ModelArgument = None,
    load: LoadOptions,
    no_speculation: Annotated[bool, parameter(ReplyOptions, "speculation")] = False,
    verbose: Annotated[
        bool,
        typer.Option("--verbose", "-v", help="Show where every byte goes, and every reason."),
    ] = False,
    device: Annotated[
        str | None,
        typer.Option(
            "--device",
            metavar="NAME",
            help="Plan for another machine, such as pixel-8, iphone-15 or pi-5.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show whether a model fits, how it would run, and how fast.

    Nothing is loaded. The plan is the one that `run` and `chat` use with the same options. With -v
    it is itemised, with the reason for each choice, and below it what changing one setting would
    give. Of a model on a hub that is not here yet, only the header is downloaded.
    """
    from edgespec.terminal.pulling import plan_here_or_there

    load = replace(load, model=one_model(model_argument, cast("str | None", load.model)))
    made = plan_here_or_there(load.without_drafts() if no_speculation else load, device)
    if as_json:
        print_json(made.as_dict())
        return
    from edgespec.terminal.plan_table import print_plan, print_summary

    (print_plan if verbose else print_summary)(made, load.model)


app.command()(hub_models.pull)
app.command(name="list")(hub_models.list_models)
app.command()(hub_models.rm)
app.command()(serving.serve)


@app.command(rich_help_panel=_TEXTS)
@expand(sequences=8)
def batch(
    *,
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="Prompts, one JSON object per line; - for stdin.")
    ],
    out: Annotated[
        str | None,
        typer.Option("--out", "-o", metavar="FILE", help="File to write to; stdout by default."),
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(
            "--ray",
            metavar="ADDRESS",
            help="Use every node of a Ray cluster: HOST:PORT of its head, auto or local.",
        ),
    ] = None,
    load: LoadOptions,
    reply: ReplyOptions,
) -> None:
    """Answer a file of prompts, several at once.

    Each line of FILE looks like {"prompt": "..."} and may have an id and options of its own, such
    as max_tokens or top_p. The output has one line per prompt, in the same order. If --out already
    holds some of them, those are kept. With --ray, --memory is per node, and the model must have
    the same path on every node.
    """
    from edgespec.terminal.prompt_file import run_batch

    if ray is not None and load.workers is not None:
        raise OptionError("--workers serve a single machine, and --ray uses several; drop one")
    if not run_batch(file, out, load, reply, ray=ray):
        raise typer.Exit(1)


_of_texts, _of_files = (app.command(rich_help_panel=panel) for panel in (_TEXTS, _FILES))
_of_texts(texts.embed)
_of_texts(texts.tokenize)
_of_texts(texts.score)
_of_files(model_files.show)
_of_files(model_files.export)
_of_files(model_files.prepare)
_of_files(model_files.adapt)
app.add_typer(datastores.app, name="store", rich_help_panel=_FILES)
app.add_typer(prefixes.app, name="prefix", rich_help_panel=_FILES)


app.command(rich_help_panel=_MACHINE)(serving.worker)


@app.command(rich_help_panel=_MACHINE)
def doctor(as_json: Json = False) -> None:
    """Check this machine and installation, and give advice.

    Exits with 1 if something does not work.
    """
    from edgespec.terminal.doctor import examine

    findings = examine()
    problems = sum(finding.status == "problem" for finding in findings)
    if as_json:
        values = [finding.as_dict() for finding in findings]
        print_json({"version": __version__, "problems": problems, "findings": values})
    else:
        from edgespec.terminal.findings_table import print_findings

        print_findings(findings)
    if problems:
        raise typer.Exit(1)


app.command(rich_help_panel=_FILES)(datastores.forget)
app.add_typer(measure.bench, name="bench", rich_help_panel=_MACHINE)
app.command(rich_help_panel=_MACHINE)(measure.replay)


@app.command(rich_help_panel=_MACHINE)
def man() -> None:
    """Print the manual page.

    `edgespec man > edgespec.1` makes a file of it, and `man ./edgespec.1` shows that.
    """
    from edgespec.terminal.man_page import man_page

    print(man_page(typer.main.get_command(app)), end="")
