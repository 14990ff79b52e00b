"""Values written into a pattern: `%` and `str.format`, each part paid for before it is made."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from string import Formatter
from typing import Any

from jinja2.exceptions import SecurityError

from edgespec.models.jinja.meter import Meter
from edgespec.models.jinja.values import joined, text

MAX_WIDTH = 256
_PERCENT = re.compile(
    r"%(?:\((?P<key>[^()]*)\))?(?P<flags>[#0 +-]*)(?P<width>\d*)(?:\.(?P<precision>\d*))?"
    r"(?P<kind>.?)",
    re.DOTALL,
)
_NUMBERS = re.compile(r"\d+")
Look = Callable[[Any, str], Any]


def percent(meter: Meter, pattern: str, given: Any) -> str:
    """`pattern % given`."""
    parts: list[str] = []
    values = iter(given if isinstance(given, tuple) else (given,))
    place, took_key = 0, False
    for found in _PERCENT.finditer(pattern):
        parts.append(pattern[place : found.start()])
        place = found.end()
        meter.make_text(len(parts[-1]) + 8)
        if found["kind"] == "%":
            parts.append("%")
            continue
        if found["key"] is not None:
            if not isinstance(given, Mapping):
                raise TypeError("a format with names needs a dictionary")
            took_key, value = True, given[found["key"]]
        else:
            value = _next(values)
        parts.append(_converted(meter, found, value))
    if not took_key and not isinstance(given, Mapping) and next(values, meter) is not meter:
        raise TypeError("not all values were used in a format")
    meter.make_text(len(pattern) - place)
    parts.append(pattern[place:])
    return joined(meter, parts)


def _next(values: Any) -> Any:
    for value in values:
        return value
    raise TypeError("a format names more values than there are")


def _converted(meter: Meter, found: re.Match[str], value: Any) -> str:
    kind = found["kind"]
    form = f"%{found['flags']}{found['width']}"
    _check_widths(found["width"] + " " + (found["precision"] or ""))
    if found["precision"] is not None:
        form += f".{found['precision']}"
    if kind == "s":
        written = text(meter, value)
        meter.make_text(len(written) + MAX_WIDTH)
        return (form + "s") % written
    if kind not in "diouxXeEfFgG" or not kind or not isinstance(value, int | float):
        raise TypeError(f"%{kind} is not for a {type(value).__name__}")
    meter.make_text(2 * MAX_WIDTH + 4096)
    return (form + kind) % value


def fields(meter: Meter, pattern: str, look: Look, *args: Any, **kwargs: Any) -> str:
    """`pattern.format(...)`; `look` takes a value and a name, and returns the attribute."""
    parts: list[str] = []
    count = 0
    meter.make_text(len(pattern))
    for literal, name, spec, conversion in Formatter().parse(pattern):
        meter.make_text(len(literal))
        parts.append(literal)
        if name is None:
            continue
        if conversion not in (None, "s") or "{" in (spec or ""):
            raise SecurityError("nested formats are not available in chat templates")
        first, *path = re.split(r"\.|\[([^\]]*)\]", name)
        if not first:
            first, count = str(count), count + 1
        value = args[int(first)] if first.isdecimal() else kwargs[first]
        for step in filter(None, path):
            value = look(value, step)
        parts.append(_specified(meter, value, spec or "", conversion == "s"))
    return joined(meter, parts)


def _specified(meter: Meter, value: Any, spec: str, as_text: bool) -> str:
    _check_widths(spec)
    if as_text or not isinstance(value, int | float) or isinstance(value, bool):
        value = text(meter, value)
        meter.make_text(len(value))
    meter.make_text(2 * MAX_WIDTH + 4096)
    return format(value, spec)


def _check_widths(form: str) -> None:
    for number in _NUMBERS.findall(form):
        if len(number) > 4 or int(number) > MAX_WIDTH:
            raise SecurityError("wide formats are not available in chat templates")
