"""`dataclass` of the standard library, with its methods made when a class is first used.

The standard library compiles up to six functions for each class when its module is imported. A
start imports two hundred such classes and makes objects of some: that was a fifth of its time.
Here `__init__` is compiled for the first object, and the other methods are never compiled: they
read the fields by name. What a class does is the same, which a test compares.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import MISSING, Field, FrozenInstanceError, fields
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(*, slots, frozen=False, eq=True, kw_only=False):
        """A class decorator, with the standard library's options that are used here."""

        def decorate(cls):
            written = set(vars(cls))
            if not cls.__doc__:
                cls.__doc__ = cls.__name__  # the signature would be looked up to stand here
            made = dataclasses.dataclass(
                init=False, repr=False, eq=False, slots=slots, kw_only=kw_only
            )(cls)
            methods = _common(made, frozen) | (_comparing(made, frozen) if eq else {})
            if frozen:
                methods |= _freezing(made)
            for name, method in methods.items():
                if name not in written:
                    setattr(made, name, method)
            return made

        return decorate


class _Factory:
    """Stands for what a factory makes, in signatures."""

    def __repr__(self) -> str:
        return "<factory>"


_MADE = _Factory()


class _Signature:
    """What `inspect.signature` finds: that of the real `__init__`, made for it."""

    def __init__(self, frozen: bool) -> None:
        self._frozen = frozen

    def __get__(self, instance: Any, owner: type) -> Any:
        from inspect import signature

        own = signature(_init_of(owner, self._frozen))
        return own.replace(parameters=[*own.parameters.values()][1:])


def _common(cls: Any, frozen: bool) -> dict[str, Any]:
    def __init__(self: Any, *values: Any, **named: Any) -> None:
        cls.__init__ = _init_of(cls, frozen)
        cls.__init__(self, *values, **named)

    @recursive_repr()
    def __repr__(self: Any) -> str:
        shown = (f"{one.name}={getattr(self, one.name)!r}" for one in fields(self) if one.repr)
        return f"{self.__class__.__qualname__}({', '.join(shown)})"

    return {"__init__": __init__, "__repr__": __repr__, "__signature__": _Signature(frozen)}


def _comparing(cls: Any, frozen: bool) -> dict[str, Any]:
    values = _values([one.name for one in fields(cls) if one.compare])

    def __eq__(self: Any, other: Any) -> Any:
        if other.__class__ is self.__class__:
            return values(self) == values(other)
        return NotImplemented

    def __hash__(self: Any) -> int:
        return hash(values(self))

    return {"__eq__": __eq__, "__hash__": __hash__ if frozen else None}


def _values(names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    if len(names) > 1:
        return attrgetter(*names)
    return lambda self: tuple(getattr(self, name) for name in names)


def _freezing(cls: Any) -> dict[str, Any]:
    names = {one.name for one in fields(cls)}

    def __setattr__(self: Any, name: str, value: Any) -> None:
        if type(self) is cls or name in names:
            raise FrozenInstanceError(f"cannot assign to field {name!r}")
        super(cls, self).__setattr__(name, value)

    def __delattr__(self: Any, name: str) -> None:
        if type(self) is cls or name in names:
            raise FrozenInstanceError(f"cannot delete field {name!r}")
        super(cls, self).__delattr__(name)

    return {
        "__setattr__": __setattr__,
        "__delattr__": __delattr__,
        "__getstate__": _state,
        "__setstate__": _restore,
    }


def _state(self: Any) -> list[Any]:
    return [getattr(self, one.name) for one in fields(self)]


def _restore(self: Any, state: list[Any]) -> None:
    for one, value in zip(fields(self), state, strict=True):
        object.__setattr__(self, one.name, value)


def _init_of(cls: Any, frozen: bool) -> Any:
    """`__init__` of a class, compiled."""
    listed = fields(cls)
    known: dict[str, Any] = {"_set": object.__setattr__, "_made": _MADE}
    parameters = [_parameter(one, known) for one in listed if one.init and not one.kw_only]
    keywords = [_parameter(one, known) for one in listed if one.init and one.kw_only]
    lines = [line for one in listed if (line := _assignment(one, known, frozen))]
    if hasattr(cls, "__post_init__"):
        lines.append("self.__post_init__()")
    taken = ", ".join(["self", *parameters, *(["*", *keywords] if keywords else [])])
    exec(f"def __init__({taken}):\n  " + "\n  ".join(lines or ["pass"]), known)
    made = known["__init__"]
    made.__qualname__ = f"{cls.__qualname__}.__init__"
    made.__annotations__ = {one.name: one.type for one in listed if one.init} | {"return": None}
    return made


def _parameter(field: Field[Any], known: dict[str, Any]) -> str:
    """A field as a parameter; its default goes into `known`."""
    if field.default_factory is not MISSING:
        return f"{field.name}=_made"
    if field.default is MISSING:
        return field.name
    known[f"_default_{field.name}"] = field.default
    return f"{field.name}=_default_{field.name}"


def _assignment(field: Field[Any], known: dict[str, Any], frozen: bool) -> str:
    """The line that sets a field, "" for one that is set later."""
    name = value = field.name
    if field.default_factory is not MISSING:
        known[f"_make_{name}"] = field.default_factory
        value = (
            f"_make_{name}() if {name} is _made else {name}" if field.init else f"_make_{name}()"
        )
    elif not field.init:
        if field.default is MISSING:
            return ""
        known[f"_default_{name}"] = field.default
        value = f"_default_{name}"
    return f'_set(self, "{name}", {value})' if frozen else f"self.{name} = {value}"
