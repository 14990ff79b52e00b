"""What a template's names stand for, and what a loop tells of itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any

from edgespec.models.jinja.values import Function, undefined
from edgespec.system.records import dataclass


@dataclass(slots=True, eq=False)
class Scope:
    """Names that were set, and around them the names of outer scopes."""

    names: dict[str, Any] = field(default_factory=dict)
    outer: Scope | None = None

    def inner(self, names: dict[str, Any] | None = None) -> Scope:
        return Scope({} if names is None else names, self)

    def find(self, name: str) -> Any:
        """The value, or what is undefined."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.names:
                return scope.names[name]
            scope = scope.outer
        return undefined(name)


@dataclass(slots=True, eq=False)
class Loop:
    """`loop`, inside of one."""

    items: Sequence[Any]
    depth: int
    again: Callable[..., str] | None
    """What goes through other items in the same way, in a recursive loop."""
    place: int = 0
    _seen: tuple[Any, ...] | None = None

    def facts(self) -> Mapping[str, Any]:
        place, count = self.place, len(self.items)
        return {
            "depth": self.depth + 1,
            "depth0": self.depth,
            "first": not place,
            "index": place + 1,
            "index0": place,
            "last": place + 1 == count,
            "length": count,
            "nextitem": undefined("next item") if place + 1 >= count else self.items[place + 1],
            "previtem": self.items[place - 1] if place else undefined("previous item"),
            "revindex": count - place,
            "revindex0": count - place - 1,
        }

    def tell(self, name: str) -> Any:
        """An attribute of `loop`."""
        if name == "cycle":
            return Function("cycle", self._cycle)
        if name == "changed":
            return Function("changed", self._changed)
        return self.facts().get(name, undefined(name))

    def _cycle(self, *values: Any) -> Any:
        return values[self.place % len(values)]

    def _changed(self, *values: Any) -> bool:
        # By identity and for plain values: others may share parts without end.
        same = self._seen is not None and len(values) == len(self._seen)
        if same and self._seen is not None:
            same = all(
                one is other or (_is_plain(one) and _is_plain(other) and one == other)
                for one, other in zip(values, self._seen, strict=True)
            )
        self._seen = values
        return not same


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | float | str)
