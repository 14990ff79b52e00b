"""What texts, lists and dictionaries can be asked to do: their harmless methods, metered."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from jinja2.exceptions import SecurityError
from jinja2.runtime import Undefined

from edgespec.models.jinja.formats import fields
from edgespec.models.jinja.meter import ITEM, OBJECT, Meter
from edgespec.models.jinja.values import (
    Function,
    Namespace,
    as_key,
    is_equal,
    items_of,
    joined,
    stepped,
    text,
    type_name,
    undefined,
    whole,
)

Method = Callable[..., Any]
_LINE_ENDS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"


def num_lines(written: str) -> int:
    """At least as many as `splitlines` makes."""
    return 1 + sum(map(written.count, _LINE_ENDS))


def _cheap(name: str) -> Method:
    """A method whose result is a number or a truth."""

    def method(meter: Meter, own: str, /, *args: Any) -> Any:
        meter.read(2 * len(own))
        return getattr(own, name)(*args)

    return method


def _same_size(name: str, growth: int = 1) -> Method:
    """A method whose result is a text, at most so many times as long."""

    def method(meter: Meter, own: str, /, *args: Any) -> Any:
        meter.make_text(growth * len(own))
        return getattr(own, name)(*args)

    return method


def _splitting(name: str) -> Method:
    """A method whose result is a list of texts."""

    def method(meter: Meter, own: str, /, *args: Any, **kwargs: Any) -> Any:
        separator = args[0] if args else kwargs.get("sep")
        if name == "splitlines":
            pieces = num_lines(own)
        elif isinstance(separator, str) and separator:
            pieces = own.count(separator) + 1
        else:
            pieces = len(own) // 2 + 1
        meter.make_text(len(own))
        meter.make(pieces * (ITEM + OBJECT))
        return getattr(own, name)(*args, **kwargs)

    return method


def replace(meter: Meter, own: str, old: Any, new: Any, count: Any = -1, /) -> str:
    if not isinstance(old, str) or not isinstance(new, str):
        raise TypeError("texts are replaced by texts")
    most = whole(count, "count")
    found = own.count(old)
    meter.make_text(len(own) + (found if most < 0 else min(found, most)) * len(new))
    return own.replace(old, new, most)


def _join(meter: Meter, own: str, parts: Any, /) -> str:
    found = list(stepped(meter, items_of(meter, parts)))
    if not all(isinstance(part, str) for part in found):
        raise TypeError("only texts can be joined")
    return joined(meter, found, own)


def _format(meter: Meter, own: str, /, *args: Any, **kwargs: Any) -> str:
    return fields(meter, own, partial(attribute, meter), *args, **kwargs)


def _get(meter: Meter, own: Mapping[Any, Any], key: Any, default: Any = None, /) -> Any:
    return own.get(as_key(meter, key), default)


def _of_mapping(name: str, size_bytes: int) -> Method:
    def method(meter: Meter, own: Mapping[Any, Any], /) -> list[Any]:
        meter.make(len(own) * size_bytes + OBJECT)
        return list(getattr(own, name)())

    return method


def _count(meter: Meter, own: Any, value: Any, /) -> int:
    return sum(is_equal(meter, value, one) for one in own)


def _index(meter: Meter, own: Any, value: Any, /) -> int:
    for place, one in enumerate(own):
        if is_equal(meter, value, one):
            return place
    raise ValueError("no such item")


def _copy(meter: Meter, own: Any, /) -> Any:
    meter.make(len(own) * 2 * ITEM + OBJECT)
    return own.copy()


_ASKING = (
    "count", "endswith", "find", "index", "isalnum", "isalpha", "isascii", "isdecimal", "isdigit",
    "isidentifier", "islower", "isnumeric", "isprintable", "isspace", "istitle", "isupper",
    "rfind", "rindex", "startswith",
)  # fmt: skip
_SAME = ("lstrip", "removeprefix", "removesuffix", "rstrip", "strip")
_LETTERS = ("capitalize", "casefold", "lower", "swapcase", "title", "upper")
_PARTS = ("partition", "rpartition", "rsplit", "split", "splitlines")

_OF_TEXT: dict[str, Method] = {
    **{name: _cheap(name) for name in _ASKING},
    **{name: _same_size(name) for name in _SAME},
    **{name: _same_size(name, 3) for name in _LETTERS},
    **{name: _splitting(name) for name in _PARTS},
    "format": _format, "join": _join, "replace": replace,
}  # fmt: skip
_OF_LIST: dict[str, Method] = {"copy": _copy, "count": _count, "index": _index}
_OF_MAPPING: dict[str, Method] = {
    "copy": _copy,
    "get": _get,
    "items": _of_mapping("items", 2 * OBJECT),
    "keys": _of_mapping("keys", ITEM),
    "values": _of_mapping("values", ITEM),
}
_METHODS: tuple[tuple[Any, dict[str, Method]], ...] = (
    (str, _OF_TEXT),
    (list, _OF_LIST),
    (tuple, _OF_LIST),
    (Mapping, _OF_MAPPING),
)


def attribute(meter: Meter, value: Any, name: str) -> Any:
    """`value.name`: a method before an item; raises SecurityError for what Python has besides."""
    meter.spend()
    if isinstance(value, Namespace):
        return value.attributes.get(name, undefined(name))
    found = _own(meter, value, name)
    if found is not None:
        return found
    return value[name] if isinstance(value, Mapping) and name in value else undefined(name, value)


def item(meter: Meter, value: Any, key: Any) -> Any:
    """`value[key]`: an item before a method."""
    meter.spend()
    if isinstance(value, Undefined):
        value._fail_with_undefined_error()
    if isinstance(value, str | list | tuple | range) and isinstance(key, slice):
        size = len(range(*key.indices(len(value))))
        meter.make(size * ITEM + OBJECT)
        return value[key]
    if isinstance(value, Mapping):
        if as_key(meter, key) in value:
            return value[key]
    elif isinstance(value, str | list | tuple | range) and isinstance(key, int):
        if -len(value) <= key < len(value):
            return value[key]
        return undefined(str(key), value)
    if isinstance(key, str):
        return attribute(meter, value, key)
    return undefined(text(meter, key), value)


def look_up(meter: Meter, value: Any, path: Any, default: Any = None) -> Any:
    """What filters mean by an attribute: "a.b.0"."""
    steps = path.split(".") if isinstance(path, str) else [path]
    for step in steps:
        value = item(meter, value, int(step) if isinstance(step, str) and step.isdigit() else step)
        if isinstance(value, Undefined) and default is not None:
            value = default
    return value


def _own(meter: Meter, value: Any, name: str) -> Function | None:
    if isinstance(value, Undefined):
        value._fail_with_undefined_error()
    for kind, methods in _METHODS:
        if isinstance(value, kind):
            if name in methods:
                return Function(name, partial(methods[name], meter, value))
            break
    if name.startswith("_") or hasattr(type(value), name):
        raise SecurityError(f"{name!r} of a {type_name(value)} is out of reach")
    return None
