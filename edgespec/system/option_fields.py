"""Options as dataclasses: each is spelled out once, with its help, and read from there.

A field of a frozen dataclass is `Annotated` with an `Option`. `takes` turns such a class into the
keywords of a Python function, `edgespec.terminal.parameters` into options of a command.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, Field, dataclass, fields
from typing import (
    Any,
    Concatenate,
    ParamSpec,
    Protocol,
    TypeVar,
    cast,
    get_args,
    get_type_hints,
    overload,
)

P = ParamSpec("P")
R = TypeVar("R")
A = TypeVar("A")
B = TypeVar("B")
OptionsT = TypeVar("OptionsT")


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

    def long(self, field: str) -> str:
        """The name on a command line."""
        return self.flag or f"--{'no-' if self.off else ''}{field.replace('_', '-')}"


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


class Taking(Protocol[P, OptionsT]):  # type: ignore[misc]
    """Makes a function's last positional parameter, its options, the keywords of a caller."""

    @overload
    def __call__(self, function: Callable[[OptionsT], R]) -> Callable[P, R]: ...
    @overload
    def __call__(self, function: Callable[[A, OptionsT], R]) -> Callable[Concatenate[A, P], R]: ...
    @overload
    def __call__(
        self, function: Callable[[A, B, OptionsT], R]
    ) -> Callable[Concatenate[A, B, P], R]: ...
    @overload
    def __call__(self, function: Callable[..., R]) -> Callable[..., R]: ...
    def __call__(self, function: Callable[..., R]) -> Callable[..., R]: ...


def takes(kind: Callable[P, OptionsT]) -> Taking[P, OptionsT]:
    """A decorator for a function with a parameter `options` of a dataclass: callers give its fields
    as keywords, and see them in the signature and, one line each, in the docstring.

    The function's other parameters stay as they are; an unknown keyword is a TypeError.
    """
    names = frozenset(field.name for field in fields(cast(Any, kind)))

    def decorate(function: Callable[..., R]) -> Callable[..., R]:
        own = inspect.signature(function)
        num_leading = list(own.parameters).index("options")

        @functools.wraps(function)
        def called(*leading: Any, **keywords: Any) -> R:
            given = {name: keywords.pop(name) for name in names & keywords.keys()}
            options = cast(Any, kind)(*leading[num_leading:], **given)
            return function(*leading[:num_leading], options=options, **keywords)

        merged = [*_merged(own.parameters, cast(type, kind))]
        merged.sort(key=lambda parameter: parameter.kind)  # stable: keywords go last
        called.__signature__ = own.replace(parameters=merged)  # type: ignore[attr-defined]
        called.__doc__ = f"{inspect.getdoc(function) or ''}\n\n{_lines(cast(type, kind))}"
        return called

    return cast("Taking[P, OptionsT]", decorate)


def takes_also(kind: Callable[..., Any]) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """`takes` for a function with keywords of its own, which type checkers cannot follow."""
    return takes(kind)


def _merged(own: Any, kind: type) -> Iterator[inspect.Parameter]:
    types = {name: type_ for name, (_, type_, _) in options_of(kind).items()}
    for name, parameter in own.items():
        if name != "options":
            yield parameter
            continue
        for taken in inspect.signature(kind).parameters.values():
            yield taken.replace(annotation=types.get(taken.name, taken.annotation))


def _lines(kind: type) -> str:
    """A docstring's lines on the options."""
    return "\n".join(f"{name}: {option.help}" for name, (_, _, option) in options_of(kind).items())
