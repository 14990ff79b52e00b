"""Options as dataclasses: each is spelled out once, with its help, and read from there.

A field of a frozen dataclass is `Annotated` with an `Option`. `takes` and `spells` turn such a
class into the keywords of a function, `edgespec.terminal.parameters` into options of a command.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, Field, fields
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, ParamSpec, TypeVar, cast, get_args, get_origin, get_type_hints

from edgespec.errors import OptionError
from edgespec.system.records import dataclass

P = ParamSpec("P")
R = TypeVar("R")
OptionsT = TypeVar("OptionsT")
FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Option:
    """What a field is for, and how it is typed on a command line."""

    help: str
    """A sentence for the command line and for docstrings."""
    _: KW_ONLY
    metavar: str = ""
    """What stands for the value in a usage line."""
    flag: str = ""
    """The long name, where it is not the field's own with dashes: "--max-batch"."""
    short: str = ""
    """One letter with its dash: "-m"."""
    off: str = ""
    """For a field that is True by default: what leaving it out means, the help of "--no-NAME"."""
    shell: bool = True
    """Whether commands take it too; the rest is for Python alone."""
    tuning: bool = False
    """Whether it works well as it is: listed after what people need every day."""

    def long(self, field: str) -> str:
        """The name on a command line."""
        return self.flag or f"--{'no-' if self.off else ''}{field.replace('_', '-')}"

    def negative(self, field: str) -> str:
        """The name for no, of an option that is yes, no or left as it comes."""
        return f"--no-{self.long(field).removeprefix('--')}"


@functools.cache
def options_of(kind: type) -> dict[str, tuple[Field[Any], Any, Option]]:
    """Each option of a dataclass by its name: its field, its type without `Option`, and that."""
    hints = get_type_hints(kind, include_extras=True)
    found = {}
    for field in fields(kind):
        type_, *notes = get_args(hints[field.name]) or (hints[field.name],)
        for note in notes:
            if isinstance(note, Option):
                found[field.name] = (field, type_, note)
    return found


def changed(options: Any) -> dict[str, Any]:
    """The options that are not at their defaults, as keywords for a function that `takes` them."""
    values = {
        field.name: (getattr(options, field.name), field.default) for field in fields(options)
    }
    return {name: value for name, (value, default) in values.items() if value != default}


def check_types(options: Any) -> None:
    """Raise OptionError for an option whose value is of another type than its field's."""
    for name, (_, type_, _) in options_of(options.__class__).items():
        value, members = getattr(options, name), _members(type_)
        if not any(_fits(value, member) for member in members):
            words = [_WORDS.get(get_origin(one) or one, str(one)) for one in members]
            raise OptionError(f"{name} is {value!r}, which is not {' or '.join(words)}")


_WORDS: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "True or False",
    str: "a text",
    NoneType: "None",
    Mapping: "a dictionary",
    Sequence: "a list",
    os.PathLike: "a path",
    Callable: "a function",
}


def _members(type_: Any) -> tuple[Any, ...]:
    return get_args(type_) if isinstance(type_, UnionType) else (type_,)


def _fits(value: Any, type_: Any) -> bool:
    kind = get_origin(type_) or type_
    if kind in (int, float):
        number = Integral if kind is int else Real
        return isinstance(value, number) and not isinstance(value, bool)
    if kind is Sequence:
        return isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray)
    return kind is Any or not isinstance(kind, type) or isinstance(value, kind)


def made(kind: type[OptionsT], function: str, keywords: Mapping[str, Any]) -> OptionsT:
    """The options that keywords give; raises TypeError for a name that is none, as Python does."""
    known = [field.name for field in fields(cast(Any, kind))]
    for name in keywords:
        if name not in known:
            from difflib import get_close_matches

            near = get_close_matches(name, known, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise TypeError(f"{function}() got an unexpected keyword argument {name!r}{hint}")
    return kind(**keywords)


def spells(kind: type) -> Callable[[FunctionT], FunctionT]:
    """A decorator for a function with `**options: Unpack[...]`: its signature and its docstring
    spell the options of a dataclass out.
    """

    def decorate(function: FunctionT) -> FunctionT:
        own = inspect.signature(function)
        merged = [*_merged(own.parameters, kind)]
        merged.sort(key=lambda parameter: parameter.kind)  # stable: keywords go last
        known: Any = function
        known.__signature__ = own.replace(parameters=merged)
        known.__doc__ = f"{inspect.getdoc(function) or ''}\n\n{_lines(kind)}"
        return function

    return decorate


def takes(kind: Callable[P, OptionsT]) -> Callable[[Callable[[OptionsT], R]], Callable[P, R]]:
    """A decorator for a function of one parameter `options`, a dataclass: callers give its fields,
    and see them in the signature and, one line each, in the docstring.
    """
    own: Any = kind

    def decorate(function: Callable[[OptionsT], R]) -> Callable[P, R]:
        accepted = inspect.signature(own)
        leading = [name for name, one in accepted.parameters.items() if one.kind < one.KEYWORD_ONLY]

        @functools.wraps(function)
        def called(*values: P.args, **keywords: P.kwargs) -> R:
            if len(values) > len(leading):
                raise TypeError(
                    f"{function.__name__}() takes {len(leading)} positional arguments but "
                    f"{len(values)} were given"
                )
            given = dict(zip(leading, values, strict=False))
            return function(made(own, function.__name__, {**keywords, **given}))

        shown: Any = called
        spells(own)(shown)
        return called

    return decorate


def _merged(own: Any, kind: type) -> Iterator[inspect.Parameter]:
    for name, parameter in own.items():
        if name != "options":
            yield parameter
            continue
        yield from _taken(kind)


@functools.cache
def _taken(kind: type) -> tuple[inspect.Parameter, ...]:
    """A dataclass's fields as parameters."""
    types = {name: type_ for name, (_, type_, _) in options_of(kind).items()}
    return tuple(
        taken.replace(annotation=types.get(taken.name, taken.annotation))
        for taken in inspect.signature(kind).parameters.values()
    )


@functools.cache
def _lines(kind: type) -> str:
    """A docstring's lines on the options."""
    return "\n".join(f"{name}: {option.help}" for name, (_, _, option) in options_of(kind).items())
