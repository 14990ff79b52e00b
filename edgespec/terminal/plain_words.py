"""Command lines that say plainly what they mean, read without Typer.

Importing Typer and making its options takes longer than a short reply. So what most people type is
read here, and whatever is not plain is left to Typer: help, a mistake, an abbreviation, a value
that could be read in two ways. Both give the same options, which a test holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from types import NoneType
from typing import Any, NamedTuple, get_args

from edgespec.system.option_fields import options_of


class _Word(NamedTuple):
    """What an option's name stands for."""

    field: str
    takes: type
    value: bool | None = None
    """What a flag means by itself; None for an option that is followed by its value."""


def plain_words(
    words: Iterable[str], kinds: Sequence[type], leave_out: tuple[str, ...] = ()
) -> tuple[list[str], list[Any]] | None:
    """What is no option, and an object of each dataclass; None where Typer has to read it."""
    known = {name: word for kind in kinds for name, word in _names(kind, leave_out)}
    given: dict[str, Any] = {}
    others: list[str] = []
    rest = iter(words)
    for typed in rest:
        name, equals, value = typed.partition("=")
        if not typed.startswith("-"):
            others.append(typed)
        elif (found := known.get(name)) is None:
            return None
        elif found.value is not None:
            if equals:
                return None
            given[found.field] = found.value
        else:
            read = _value(value if equals else next(rest, "-"), found.takes)
            if read is None:
                return None
            given[found.field] = read
    return others, [_made(kind, given) for kind in kinds]


def typed_as(type_: Any) -> type:
    """The type of what is typed: text where a field may be text."""
    members = [one for one in get_args(type_) or (type_,) if one is not NoneType]
    return str if str in members or Any in members else members[0]


def _names(kind: type, leave_out: tuple[str, ...]) -> Iterator[tuple[str, _Word]]:
    for field, (_, type_, option) in options_of(kind).items():
        if not option.shell or field in leave_out:
            continue
        takes, long = typed_as(type_), option.long(field)
        word = _Word(field, takes, not option.off if takes is bool else None)
        yield long, word
        if option.short:
            yield option.short, word
        if is_switch(type_):
            yield option.negative(field), word._replace(value=False)


def is_switch(type_: Any) -> bool:
    """Whether an option is yes, no, or left as it comes: it has a name for yes and one for no."""
    return {NoneType, bool} <= set(get_args(type_))


def _made(kind: Any, given: dict[str, Any]) -> Any:
    return kind(**{name: given[name] for name in options_of(kind) if name in given})


def _value(text: str, takes: type) -> Any:
    """The value, None where it is not plainly one."""
    if text.startswith("-"):
        return None
    if takes is str:
        return text
    digits = text.replace(".", "", 1) if takes is float else text
    return takes(text) if digits.isascii() and digits.isdigit() else None
