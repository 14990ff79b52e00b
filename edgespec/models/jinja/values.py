"""Operations on a template's values: text, truth, equality, order, arithmetic, all metered.

Values are None, booleans, numbers, texts, lists, tuples, dictionaries, ranges, what is undefined,
and the classes below. Values may share parts, so a walk over one is metered at every visit.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field
from typing import Any

from jinja2.exceptions import SecurityError
from jinja2.runtime import Undefined
from markupsafe import Markup

from edgespec.models.jinja.meter import ITEM, MAX_DEPTH, OBJECT, Meter
from edgespec.system.records import dataclass

MAX_BITS = 1 << 12
"""Size of any one whole number: its digits stay within what Python converts."""
ESCAPED = 5
"""Characters at most in the place of one that has a meaning in HTML."""
MAX_ITEMS = 1 << 16
"""Length of any one range, and of a list times a number."""


class Lazy:
    """What Jinja's generators are: true, of no length, and empty once it was read."""

    def __init__(self, items: list[Any]) -> None:
        self._items = items

    def take(self) -> list[Any]:
        items, self._items = self._items, []
        return items


@dataclass(slots=True, eq=False)
class Namespace:
    """What `namespace()` makes: attributes that inner scopes may set."""

    attributes: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Function:
    """Something to be called with a template's arguments."""

    name: str
    call: Callable[..., Any]


def undefined(name: str | None = None, obj: Any = None) -> Undefined:
    """A value that there is not, which says so when it is used."""
    if obj is None:
        return Undefined(name=name)
    return Undefined(f"{type_name(obj)} has no {name!r}")


def type_name(value: Any) -> str:
    return "None" if value is None else type(value).__name__


def is_true(value: Any) -> bool:
    return bool(value) if not isinstance(value, Namespace | Lazy | Function) else True


def length(value: Any) -> int:
    if isinstance(value, str | list | tuple | Mapping | range | Undefined):
        return len(value)
    raise TypeError(f"a {type_name(value)} has no length")


def items_of(meter: Meter, value: Any) -> Iterable[Any]:
    """What a loop over a value goes through; whoever does spends the steps."""
    if isinstance(value, Lazy):
        return value.take()
    if isinstance(value, str | list | tuple | Mapping | range):
        return value
    if isinstance(value, Undefined):
        return list(value)
    raise TypeError(f"a {type_name(value)} cannot be gone through")


def listed(meter: Meter, value: Any) -> list[Any]:
    """A list of what a value holds."""
    if isinstance(value, Lazy):
        return value.take()
    found = items_of(meter, value)
    count = length(value)
    meter.make(count * (ITEM + OBJECT if isinstance(value, str | range) else ITEM) + OBJECT)
    return list(found)


def stepped(meter: Meter, values: Iterable[Any]) -> Iterator[Any]:
    """The values, a step taken for each."""
    for value in values:
        meter.spend()
        yield value


def text(meter: Meter, value: Any) -> str:
    """What is written for a value: `str` of it."""
    if isinstance(value, str):
        return str(value)  # and no Markup
    if isinstance(value, list | tuple | Mapping | Namespace):
        parts: list[str] = []
        _represent(meter, value, parts, 0)
        return joined(meter, parts)
    return _short(meter, value)


def joined(meter: Meter, parts: list[str], between: str = "") -> str:
    """The texts as one."""
    meter.make_text(sum(map(len, parts)) + len(between) * len(parts))
    return between.join(parts)


def _short(meter: Meter, value: Any) -> str:
    meter.make(OBJECT)
    if isinstance(value, Lazy):
        return "<generator>"
    if isinstance(value, Function):
        return f"<{value.name}>"
    if value is None or isinstance(value, bool | int | float | range | Undefined):
        return str(value)
    raise SecurityError(f"a {type_name(value)} cannot be written in a chat template")


def _represent(meter: Meter, value: Any, parts: list[str], depth: int) -> None:
    """Add Python's `repr` of a value."""
    meter.make(OBJECT)
    if depth > MAX_DEPTH:
        raise SecurityError(f"values nested more than {MAX_DEPTH} deep")
    if isinstance(value, str):
        meter.make_text(len(value) if value.isprintable() else 10 * len(value))
        parts.append(repr(value))
    elif isinstance(value, Namespace):
        parts.append("<Namespace ")
        _represent(meter, value.attributes, parts, depth + 1)
        parts.append(">")
    elif isinstance(value, Mapping):
        parts.append("{")
        for place, (key, one) in enumerate(value.items()):
            parts.append(", " if place else "")
            _represent(meter, key, parts, depth + 1)
            parts.append(": ")
            _represent(meter, one, parts, depth + 1)
        parts.append("}")
    elif isinstance(value, list | tuple):
        parts.append("[" if isinstance(value, list) else "(")
        for place, one in enumerate(value):
            parts.append(", " if place else "")
            _represent(meter, one, parts, depth + 1)
        alone = isinstance(value, tuple) and len(value) == 1
        parts.append("]" if isinstance(value, list) else ",)" if alone else ")")
    else:
        parts.append("Undefined" if isinstance(value, Undefined) else _short(meter, value))


def weigh(meter: Meter, value: Any, indent: int = 0, depth: int = 0) -> None:
    """Pay for what JSON of a value takes, before Python's own code writes it."""
    meter.make(OBJECT + indent * depth)
    if depth > MAX_DEPTH:
        raise SecurityError(f"values nested more than {MAX_DEPTH} deep")
    if isinstance(value, str):
        meter.make_text(6 * len(value))
    elif isinstance(value, Mapping):
        for key, one in value.items():
            weigh(meter, key, indent, depth + 1)
            weigh(meter, one, indent, depth + 1)
    elif isinstance(value, list | tuple):
        for one in value:
            weigh(meter, one, indent, depth + 1)
    elif isinstance(value, int) and not isinstance(value, bool):
        meter.make(value.bit_length())


def as_key(meter: Meter, value: Any, depth: int = 0) -> Any:
    """The value, if a dictionary may be asked for it."""
    meter.spend()
    if depth > MAX_DEPTH:
        raise SecurityError(f"values nested more than {MAX_DEPTH} deep")
    if isinstance(value, tuple):
        for one in value:
            as_key(meter, one, depth + 1)
    elif isinstance(value, str):
        meter.read(len(value))
    elif not (value is None or isinstance(value, bool | int | float | Undefined)):
        raise TypeError(f"a {type_name(value)} cannot be a key")
    return value


def is_equal(meter: Meter, left: Any, right: Any, depth: int = 0) -> bool:
    """Python's `==`."""
    meter.spend()
    if left is right:
        return True
    if depth > MAX_DEPTH:
        raise SecurityError(f"values nested more than {MAX_DEPTH} deep")
    for kind in (list, tuple):
        if isinstance(left, kind) and isinstance(right, kind):
            return len(left) == len(right) and all(
                is_equal(meter, *pair, depth + 1) for pair in zip(left, right, strict=True)
            )
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        return len(left) == len(right) and all(
            key in right and is_equal(meter, one, right[key], depth + 1)
            for key, one in left.items()
        )
    if isinstance(left, str) and isinstance(right, str):
        meter.read(min(len(left), len(right)))
        return left == right
    if isinstance(left, list | tuple | Mapping) or isinstance(right, list | tuple | Mapping):
        return False
    return bool(left == right)


def is_less(meter: Meter, left: Any, right: Any, depth: int = 0) -> bool:
    """Python's `<`."""
    meter.spend()
    if depth > MAX_DEPTH:
        raise SecurityError(f"values nested more than {MAX_DEPTH} deep")
    for kind in (list, tuple):
        if isinstance(left, kind) and isinstance(right, kind):
            for one, other in zip(left, right, strict=False):
                if not is_equal(meter, one, other, depth + 1):
                    return is_less(meter, one, other, depth + 1)
            return len(left) < len(right)
    if isinstance(left, str) and isinstance(right, str):
        meter.read(min(len(left), len(right)))
        return left < right
    if _are_numbers(left, right):
        return bool(left < right)
    _refuse("<", left, right)
    return False


def contains(meter: Meter, whole: Any, part: Any) -> bool:
    """Python's `part in whole`."""
    if isinstance(whole, str):
        if not isinstance(part, str):
            _refuse("in", part, whole)
        meter.read(len(whole))
        return part in whole
    if isinstance(whole, Mapping):
        return as_key(meter, part) in whole
    if isinstance(whole, range) and isinstance(part, int):
        return part in whole
    return any(is_equal(meter, part, one) for one in items_of(meter, whole))


def _are_numbers(left: Any, right: Any) -> bool:
    return isinstance(left, int | float) and isinstance(right, int | float)


def _refuse(what: str, left: Any, right: Any) -> None:
    for value in (left, right):
        if isinstance(value, Undefined):
            value._fail_with_undefined_error()
    raise TypeError(f"{what!r} is not for a {type_name(left)} and a {type_name(right)}")


def bounded(number: Any) -> Any:
    """A number, if it is no larger than numbers may be."""
    if isinstance(number, int) and number.bit_length() > MAX_BITS:
        raise SecurityError(f"a number of more than {MAX_BITS} bits")
    return number


def add(meter: Meter, left: Any, right: Any) -> Any:
    if _are_numbers(left, right):
        return bounded(left + right)
    if isinstance(left, str) and isinstance(right, str):
        is_markup = isinstance(left, Markup) or isinstance(right, Markup)  # which escapes the other
        meter.make_text((len(left) + len(right)) * (ESCAPED if is_markup else 1))
        return left + right
    if isinstance(left, list) and isinstance(right, list):
        meter.make_list(len(left) + len(right))
        return left + right
    if isinstance(left, tuple) and isinstance(right, tuple):
        meter.make_list(len(left) + len(right))
        return left + right
    return _refuse("+", left, right)


def multiply(meter: Meter, left: Any, right: Any) -> Any:
    for one, times in ((left, right), (right, left)):
        if isinstance(times, int) and isinstance(one, str | list | tuple):
            size, count = len(one), max(times, 0)
            if isinstance(one, str):
                meter.make_text(size * count)
            else:
                meter.make_list(size * count)
            return one * times
    if not _are_numbers(left, right):
        return _refuse("*", left, right)
    if isinstance(left, int) and isinstance(right, int):
        _check_bits(left.bit_length() + right.bit_length() - 1)
    return bounded(left * right)


def power(meter: Meter, left: Any, right: Any) -> Any:
    if not _are_numbers(left, right):
        return _refuse("**", left, right)
    if isinstance(left, int) and isinstance(right, int):
        _check_bits(left.bit_length() * abs(right))
    result = left**right
    if isinstance(result, complex):
        raise TypeError("a root of a negative number")
    return bounded(result)


def _check_bits(bits: int) -> None:
    if bits > MAX_BITS:
        raise SecurityError(f"a number of more than {MAX_BITS} bits")


def plainly(sign: str, work: Callable[[Any, Any], Any]) -> Callable[[Meter, Any, Any], Any]:
    """Arithmetic whose results are no larger than what goes in."""

    def operation(meter: Meter, left: Any, right: Any) -> Any:
        if not _are_numbers(left, right):
            return _refuse(sign, left, right)
        return bounded(work(left, right))

    return operation


subtract = plainly("-", operator.sub)
divide = plainly("/", operator.truediv)
floor_divide = plainly("//", operator.floordiv)
modulo = plainly("%", operator.mod)


def whole(value: Any, what: str) -> int:
    """A whole number that says how many; raises TypeError for other values."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{what} is a {type_name(value)}, and a whole number is needed")
    return int(bounded(value))


def rounded(value: float, precision: int, method: str) -> Any:
    """`value` to so many decimals."""
    if not isinstance(value, int | float):
        raise TypeError(f"a {type_name(value)} cannot be rounded")
    precision = max(-400, min(whole(precision, "precision"), 400))
    if method == "common":
        return bounded(round(value, precision))
    if method not in ("ceil", "floor"):
        raise ValueError("a method of rounding is common, ceil or floor")
    if abs(precision) > 300 or not math.isfinite(value):
        raise ValueError("that cannot be rounded up or down")
    scale = 10.0**precision
    return (math.ceil if method == "ceil" else math.floor)(value * scale) / scale
