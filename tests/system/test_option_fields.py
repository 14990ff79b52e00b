"""Options that are spelled out once, and what functions and commands make of them."""

from __future__ import annotations

import inspect
import subprocess
import sys
from dataclasses import dataclass
from typing import Annotated

import pytest

import edgespec
from edgespec import cli
from edgespec.engine.reply_options import ReplyOptions
from edgespec.loading.load_options import LoadOptions
from edgespec.system.option_fields import Option, changed, options_of, takes
from edgespec.terminal.parameters import expand
from tests.support.command_line import environment


@dataclass(frozen=True, slots=True, kw_only=True)
class Tea:
    cups: Annotated[int, Option("How many.", metavar="N", short="-c")] = 1
    leaf: Annotated[str | None, Option("Which.", flag="--tea")] = None
    hot: Annotated[bool, Option("Whether it steams.", off="Let it cool.")] = True
    host: Annotated[str, Option("Who.", shell=False)] = "me"


class Pot:
    @takes(Tea)
    def pour(self, guest: str, options: Tea, *, again: bool = False) -> tuple[str, Tea, bool]:
        """Pour."""
        return guest, options, again


def test_a_function_takes_the_fields_as_keywords() -> None:
    assert Pot().pour("you", cups=2, again=True) == ("you", Tea(cups=2), True)
    assert Pot().pour(guest="you") == ("you", Tea(), False)
    shown = str(inspect.signature(Pot.pour))
    assert shown.startswith("(self, guest: 'str', *, cups: int = 1, leaf: str | None = None, ")
    assert Pot.pour.__doc__ is not None
    assert Pot.pour.__doc__.startswith("Pour.\n\ncups: How many.\nleaf: Which.\n")


@pytest.mark.parametrize(
    ("leading", "keywords", "words"),
    [
        (("you",), {"cup": 1}, "pour.* got an unexpected keyword argument 'cup'"),
        ((), {"cups": 1}, "missing 1 required positional argument: 'guest'"),
        (("you", 3), {}, "positional argument"),
    ],
)
def test_a_wrong_call_is_a_type_error(
    leading: tuple[object, ...], keywords: dict[str, object], words: str
) -> None:
    with pytest.raises(TypeError, match=words):
        Pot().pour(*leading, **keywords)


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
