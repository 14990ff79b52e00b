"""The list of all functions that are called from outside machine code, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from edgespec.system.records import dataclass

CODES = {
    "int16": "h",
    "int32": "i",
    "int64": "l",
    "uint8": "B",
    "uint64": "L",
    "float32": "f",
    "float64": "d",
    "bool": "?",
}
"""Letters of types of numbers, for the library of precompiled functions."""
NUM_ARGUMENTS = 3
"""64-bit integers that what is called by address takes, unless it says otherwise."""


@dataclass(frozen=True, slots=True)
class Signature:
    """What Python calls a kernel with, and what comes back.

    A type is "int64", ..., "float32[:,:]" for an array without gaps, or a tuple of types.
    """

    arguments: tuple[Any, ...]
    results: tuple[str, ...] = ()

    @classmethod
    def of(cls, arguments: tuple[Any, ...], result: str | tuple[str, ...]) -> Signature:
        """`result` is "int64", or several, or () for none. Raises KeyError for an unknown type."""
        made = cls(arguments, (result,) if isinstance(result, str) else result)
        _ = made.letters
        return made

    @property
    def letters(self) -> str:
        """How the library is told: "1i2d(ll)>l"."""
        return "".join(map(_letters, self.arguments)) + ">" + "".join(map(_letters, self.results))


def _letters(kind: Any) -> str:
    if isinstance(kind, tuple):
        return f"({''.join(map(_letters, kind))})"
    name, axes = scalar_and_axes(kind)
    return (str(axes) if axes else "") + CODES[name]


def scalar_and_axes(kind: str) -> tuple[str, int]:
    """The type of an array's numbers and how many axes it has, 0 for a number."""
    name, _, axes = kind.partition("[")
    return name, axes.count(":")


@dataclass(frozen=True, slots=True)
class Entry:
    """One function that is called from outside machine code."""

    name: str
    make: Callable[[], Callable[..., Any]]
    """The function: a compiled kernel, or what is to be called by address, uncompiled."""
    signature: Signature | None = None
    """Of a kernel; what is called by address takes 64-bit integers."""
    num_arguments: int = NUM_ARGUMENTS
    gives: bool = True
    """Whether what is called by address gives a 64-bit integer back."""


ENTRIES: dict[str, Entry] = {}


def name_of(function: Callable[..., Any]) -> str:
    """What a function is called in `ENTRIES`: "drafting.market.step.draft"."""
    return f"{function.__module__.removeprefix('edgespec.')}.{function.__qualname__}"
