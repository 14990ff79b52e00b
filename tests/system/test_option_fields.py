"""Options that are spelled out once, and what functions and commands make of them."""

from __future__ import annotations

import inspect
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import numpy as np
import pytest

import edgespec
from edgespec import cli
from edgespec.engine.reply_options import ReplyKeywords, ReplyOptions
from edgespec.errors import OptionError
from edgespec.loading.load_options import LoadOptions
from edgespec.system.option_fields import (
    Option,
    changed,
    check_types,
    made,
    options_of,
    spells,
    takes,
)
from edgespec.terminal.parameters import expand
from tests.support.command_line import ROOT, environment


@dataclass(frozen=True, slots=True, kw_only=True)
class Tea:
    cups: Annotated[int, Option("How many.", metavar="N", short="-c")] = 1
    leaf: Annotated[str | None, Option("Which.", flag="--tea")] = None
    hot: Annotated[bool, Option("Whether it steams.", off="Let it cool.")] = True
    host: Annotated[str, Option("Who.", shell=False)] = "me"


@takes(Tea)
def brewed(options: Tea) -> Tea:
    """Brew."""
    return options


class Pot:
    @spells(Tea)
    def pour(self, guest: str, *, again: bool = False, **options: Any) -> tuple[str, Tea, bool]:
        """Pour."""
        return guest, made(Tea, "pour", options), again


def test_a_function_takes_the_fields_as_keywords() -> None:
    assert Pot().pour("you", cups=2, again=True) == ("you", Tea(cups=2), True)
    assert Pot().pour(guest="you") == ("you", Tea(), False)
    assert brewed(cups=3) == Tea(cups=3)
    shown = str(inspect.signature(Pot.pour))
    assert shown.startswith("(self, guest: 'str', *, again: 'bool' = False, cups: int = 1, leaf: ")
    for function in (Pot.pour, brewed):
        assert function.__doc__ is not None
        assert "\n\ncups: How many.\nleaf: Which.\n" in function.__doc__


def test_a_wrong_name_is_a_type_error_with_the_right_one() -> None:
    for function in (Pot().pour, brewed):
        with pytest.raises(TypeError, match="argument 'cup'; did you mean 'cups'?"):
            function(**{"guest": "you"} if function is not brewed else {}, cup=1)
    with pytest.raises(TypeError, match="takes 0 positional arguments but 1 were given"):
        brewed(3)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"cups": "5"}, "cups is '5', which is not a whole number"),
        ({"cups": 2.0}, "cups is 2.0, which is not a whole number"),
        ({"cups": True}, "cups is True, which is not a whole number"),
        ({"leaf": b"oolong"}, "leaf is b'oolong', which is not a text or None"),
        ({"hot": 1}, "hot is 1, which is not True or False"),
    ],
)
def test_a_value_of_another_type_is_refused(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        check_types(Tea(**wrong))
    check_types(Tea(cups=np.int64(3)))  # type: ignore[arg-type]


def test_keywords_for_type_checkers_are_those_of_the_dataclass() -> None:
    known = get_type_hints(ReplyKeywords)
    assert known == {name: type_ for name, (_, type_, _) in options_of(ReplyOptions).items()}
    assert list(known) == list(options_of(ReplyOptions))


def test_mypy_knows_the_options(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    program = tmp_path / "program.py"
    program.write_text(
        "import edgespec\n"
        "with edgespec.load(memory='1GiB') as engine:\n"
        "    engine.generate('hello', temperature=1.0)\n"
        "    engine.generate('hello', temprature=1.0)\n"
        "    engine.stream_batch(['hello'], temprature=1.0)\n"
        "    engine.chat().send('hello', seed='5')\n"
    )
    command = [sys.executable, "-m", "mypy", "--follow-imports=silent", str(program)]
    found = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    lines = [line for line in found.stdout.splitlines() if "error" in line]
    assert [int(line.split(".py:")[1].split(":")[0]) for line in lines[:3]] == [4, 5, 6], lines
    assert len(lines) == 4  # the last is their number


def test_what_is_at_its_default_need_not_be_said() -> None:
    assert changed(Tea(cups=1, leaf="oolong", hot=True)) == {"leaf": "oolong"}


def test_a_command_takes_the_fields_as_options() -> None:
    made: list[object] = []

    @expand("leaf", cups=3)
    def brew(*, tea: Tea, slow: bool = False) -> None:
        made.append((tea, slow))

    found = inspect.signature(brew).parameters
    assert list(found) == ["cups", "no_hot", "slow"]
    assert (found["cups"].default, found["no_hot"].default) == (3, False)
    brew(cups=4, no_hot=True, slow=True)
    assert made == [(Tea(cups=4, hot=False), True)]


def test_load_and_plan_show_what_they_take() -> None:
    for function in (edgespec.load, edgespec.plan):
        shown = inspect.signature(function).parameters
        names = [name for name, one in shown.items() if one.kind is one.KEYWORD_ONLY]
        assert list(shown) == ["model", *names]
        assert {"memory", "backend", "threads", "context", "sequences", "progress"} <= set(names)
        with pytest.raises(TypeError, match="unexpected keyword argument 'memry'"):
            function(memry="1GiB")


def test_commands_have_the_defaults_of_the_dataclasses() -> None:
    for command in (cli.run, cli.chat):
        shown = inspect.signature(command).parameters
        for kind in (LoadOptions, ReplyOptions):
            for name, (field, _, option) in options_of(kind).items():
                if option.shell and not option.off and name != "sequences":
                    assert shown[name].default == field.default, name


def test_no_option_has_two_names_on_the_command_line_or_one_name_two_meanings() -> None:
    names = [
        option.long(name)
        for kind in (LoadOptions, ReplyOptions)
        for name, (_, _, option) in options_of(kind).items()
        if option.shell
    ]
    assert len(names) == len(set(names))


def test_options_are_known_without_anything_heavy() -> None:
    program = (
        "import sys; import edgespec.engine.reply_options, edgespec.loading.load_options\n"
        "print({'numpy', 'numba', 'typer'} & set(sys.modules))"
    )
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment()
    )
    assert found.stdout == "set()\n", found.stderr
