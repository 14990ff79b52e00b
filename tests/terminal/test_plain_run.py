"""The shortest way to a reply: what it reads is what Typer reads, and it imports little."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer.testing

from edgespec import cli
from edgespec.engine.reply_options import ReplyOptions
from edgespec.loading.load_options import LoadOptions
from edgespec.system import precompiled
from edgespec.system.option_fields import options_of
from edgespec.terminal import plain_run
from edgespec.terminal.plain_words import is_switch, plain_words, typed_as
from edgespec.terminal.run_reply import RunOptions
from tests.support.command_line import edgespec, environment

KINDS = (LoadOptions, ReplyOptions, RunOptions)
HEAVY = (
    *("typer", "rich", "pygments", "pydantic", "prompt_toolkit", "jinja2", "psutil", "numba"),
    *(
        "asyncio",
        "concurrent.futures",
        "difflib",
        "email",
        "fractions",
        "http",
        "logging",
        "socket",
    ),
    *("importlib.metadata", "ssl", "subprocess", "tomllib", "uuid"),
    *("edgespec.cli", "edgespec.models.hub", "edgespec.models.jinja", "edgespec.server"),
    *("edgespec.tools", "edgespec.backends.llamacpp.remote", "edgespec.models.architectures.qwen"),
)
"""What a reply of the bundled model does not need."""
PROGRAM = f"""
import sys
sys.argv = ["edgespec", "run", "--backend", "native", "--max-tokens", "2", "--seed", "1", "hello"]
from edgespec.__main__ import main
main()
print([name for name in {HEAVY} if name in sys.modules], file=sys.stderr)
"""
NO_LIBRARY = precompiled.refusal()


def _by_typer(words: list[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """What `edgespec run` gets for these words."""
    given: list[Any] = []
    monkeypatch.setattr(cli, "run_reply", lambda *values: given.append(values))
    result = typer.testing.CliRunner().invoke(cli.app, ["run", *words])
    assert (result.exit_code, result.output) == (0, "")
    return given[0]


def _spellings() -> list[list[str]]:
    """Every option of `run`, each as it may be typed."""
    made = []
    for kind in KINDS:
        for name, (_, type_, option) in options_of(kind).items():
            if not option.shell or name in plain_run.LEFT_OUT:
                continue
            takes, long = typed_as(type_), option.long(name)
            value = {int: ["7"], float: ["0.25"], bool: []}.get(takes, ["some text"])
            made.append([long, *value])
            made += [[option.short, *value]] * bool(option.short)
            made += [[f"{long}={value[0]}"]] if value else []
            made += [[option.negative(name)]] * is_switch(type_)
    return made


@pytest.mark.parametrize("words", _spellings(), ids=" ".join)
def test_every_option_is_read_as_typer_reads_it(
    words: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("EDGESPEC_CONFIG", str(tmp_path / "none.toml"))
    for typed in (words, ["a prompt", *words], [*words, "a prompt"]):
        read = plain_words(typed, KINDS, plain_run.LEFT_OUT)
        assert read is not None
        prompts, options = read
        assert (*(prompts or [None]), *options) == _by_typer(typed, monkeypatch)


@pytest.mark.parametrize(
    "words",
    [
        *(["--help"], ["-h"], ["--"], ["-"], ["--sed", "1"], ["-n5"], ["--nothing"], ["--seed"]),
        *(["--seed", "-1"], ["--seed", "1.5"], ["--seed", "1_0"], ["--seed", "x"], ["--json=1"]),
        *(["--temperature", "nan"], ["--temperature", "1e3"], ["--max-batch", "2"], ["--seed="]),
        *(["--system", "-x"], ["--seed", "٣"]),
    ],
    ids=" ".join,
)
def test_whatever_is_not_plain_is_left_to_typer(words: list[str]) -> None:
    assert plain_words(words, KINDS, plain_run.LEFT_OUT) is None


@pytest.mark.parametrize("words", [[], ["plan"], ["run", "a", "b"], ["--version"]], ids=" ".join)
def test_other_command_lines_too(words: list[str]) -> None:
    assert not plain_run.plain_run(words)


def test_a_configuration_is_read_by_typer(tmp_path: Path) -> None:
    place = tmp_path / "config.toml"
    place.write_text("nonsense = 1\n", "utf-8")
    found = edgespec("run", "hello", EDGESPEC_CONFIG=str(place))
    assert found.code != 0
    assert "nonsense" in found.err


def test_errors_are_the_same_either_way() -> None:
    plainly = edgespec("run", "--max-tokens", "0", "hello")
    by_typer = edgespec("run", "--max-tokens", "+0", "hello")
    assert plainly == by_typer
    plainly.assert_refused(2, "max_tokens")


@pytest.mark.skipif(bool(NO_LIBRARY), reason=f"no precompiled kernels: {NO_LIBRARY}")
def test_a_plain_run_imports_nothing_heavy() -> None:
    """Once the machine was measured. On ARM, `tests/backends/test_arm_python.py` does the same with
    the wheel made there.
    """
    for _ in range(2):
        found = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env=environment() | {"EDGESPEC_KERNELS": "library"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
    assert (found.returncode, found.stderr) == (0, "[]\n")
    assert found.stdout
