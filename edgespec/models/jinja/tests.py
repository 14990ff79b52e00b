"""The tests of chat templates, `value is name`; their meaning is Jinja's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from jinja2.runtime import Undefined

from edgespec.models.jinja import values as v
from edgespec.models.jinja.meter import Meter

Test = Callable[..., bool]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def _remainder(m: Meter, value: Any, by: Any) -> Any:
    return v.modulo(m, value, by)


def _less(m: Meter, left: Any, right: Any, /) -> bool:
    return v.is_less(m, left, right)


def _at_most(m: Meter, left: Any, right: Any, /) -> bool:
    return v.is_less(m, left, right) or v.is_equal(m, left, right)


def _is_integer(m: Meter, value: Any, /) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_sequence(m: Meter, value: Any, /) -> bool:
    return isinstance(value, str | list | tuple | Mapping | range | Undefined)


def _is_iterable(m: Meter, value: Any, /) -> bool:
    return isinstance(value, str | list | tuple | Mapping | range | Undefined | v.Lazy)


def _case(check: Callable[[str], bool]) -> Test:
    def test(m: Meter, value: Any, /) -> bool:
        return check(v.text(m, value))

    return test


def _equal(m: Meter, left: Any, right: Any, /) -> bool:
    return v.is_equal(m, left, right)


def _differs(m: Meter, left: Any, right: Any, /) -> bool:
    return not v.is_equal(m, left, right)


def _greater(m: Meter, left: Any, right: Any, /) -> bool:
    return v.is_less(m, right, left)


def _at_least(m: Meter, left: Any, right: Any, /) -> bool:
    return _at_most(m, right, left)


TESTS: dict[str, Test] = {
    "boolean": lambda m, value, /: value is True or value is False,
    "callable": lambda m, value, /: isinstance(value, v.Function),
    "defined": lambda m, value, /: not isinstance(value, Undefined),
    "divisibleby": lambda m, value, num, /: _remainder(m, value, num) == 0,
    "eq": _equal, "equalto": _equal, "==": _equal,
    "even": lambda m, value, /: _remainder(m, value, 2) == 0,
    "false": lambda m, value, /: value is False,
    "float": lambda m, value, /: isinstance(value, float),
    "ge": _at_least, ">=": _at_least,
    "gt": _greater, "greaterthan": _greater, ">": _greater,
    "in": lambda m, value, whole, /: v.contains(m, whole, value),
    "integer": _is_integer,
    "iterable": _is_iterable,
    "le": _at_most, "<=": _at_most,
    "lower": _case(str.islower),
    "lt": _less, "lessthan": _less, "<": _less,
    "mapping": lambda m, value, /: isinstance(value, Mapping),
    "ne": _differs, "!=": _differs,
    "none": lambda m, value, /: value is None,
    "number": lambda m, value, /: _is_number(value),
    "odd": lambda m, value, /: _remainder(m, value, 2) == 1,
    "sameas": lambda m, value, other, /: value is other,
    "sequence": _is_sequence,
    "string": lambda m, value, /: isinstance(value, str),
    "true": lambda m, value, /: value is True,
    "undefined": lambda m, value, /: isinstance(value, Undefined),
    "upper": _case(str.isupper),
}  # fmt: skip
