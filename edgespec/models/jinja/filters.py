"""The filters of chat templates, `value | name(...)`, metered; their meaning is Jinja's."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import cmp_to_key
from typing import Any

from jinja2.exceptions import SecurityError
from jinja2.runtime import Undefined
from markupsafe import Markup, escape

from edgespec.models.jinja import values as v
from edgespec.models.jinja.meter import ITEM, OBJECT, Meter
from edgespec.models.jinja.methods import look_up, num_lines, replace

MAX_INDENT = 256
_MAX_DIGITS = 1_000
_WORD_STARTS = re.compile(r"([-\s({\[<]+)")
_WORDS = re.compile(r"\w+")
Filter = Callable[..., Any]


def _default(m: Meter, value: Any, /, default_value: Any = "", boolean: bool = False) -> Any:
    wanting = isinstance(value, Undefined) or (boolean and not v.is_true(value))
    return default_value if wanting else value


def _text(m: Meter, value: Any, /) -> str:
    return v.text(m, value)


def _of_text(change: Callable[[str], str], growth: int = 3) -> Filter:
    def filter(m: Meter, value: Any, /) -> str:
        written = v.text(m, value)
        m.make_text(growth * len(written))
        return change(written)

    return filter


def _titled(written: str) -> str:
    parts = _WORD_STARTS.split(written)
    return "".join(part[0].upper() + part[1:].lower() for part in parts if part)


def _trim(m: Meter, value: Any, /, chars: str | None = None) -> str:
    written = v.text(m, value)
    m.make_text(len(written))
    return written.strip(chars)


def _replace(m: Meter, value: Any, /, old: Any, new: Any, count: int | None = None) -> str:
    most = -1 if count is None else count
    return replace(m, v.text(m, value), v.text(m, old), v.text(m, new), most)


def _indent(
    m: Meter, value: Any, /, width: int | str = 4, first: bool = False, blank: bool = False
) -> str:
    by = width if isinstance(width, str) else " " * min(max(width, 0), MAX_INDENT + 1)
    if len(by) > MAX_INDENT:
        raise SecurityError(f"an indent of more than {MAX_INDENT}")
    written = v.text(m, value) + "\n"
    m.make_text(2 * len(written))
    lines = num_lines(written)
    m.make(2 * lines * (OBJECT + ITEM))
    m.make_text(2 * lines * len(by))
    rows = written.splitlines()
    between = "\n" + by
    if blank:
        done = between.join(rows)
    else:
        done = rows.pop(0)
        if rows:
            done += "\n" + "\n".join(by + row if row else row for row in rows)
    return by + done if first else done


def _tojson(
    m: Meter,
    value: Any,
    /,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    """JSON as Hugging Face's templates expect it: nothing escaped for HTML."""
    size = indent if isinstance(indent, int) else len(indent or "")
    if size > MAX_INDENT or sum(map(len, separators or ())) > MAX_INDENT:
        raise SecurityError(f"an indent of more than {MAX_INDENT}")
    v.weigh(m, value, max(size, 0) + sum(map(len, separators or ())))
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _join(m: Meter, value: Any, /, d: Any = "", attribute: Any = None) -> str:
    found = v.stepped(m, v.items_of(m, value))
    if attribute is not None:
        found = (look_up(m, one, attribute) for one in found)
    return v.joined(m, [v.text(m, one) for one in found], v.text(m, d))


def _reverse(m: Meter, value: Any, /) -> Any:
    if isinstance(value, str):
        m.make_text(len(value))
        return value[::-1]
    return v.Lazy(v.listed(m, value)[::-1])


def _first(m: Meter, value: Any, /) -> Any:
    return next(iter(v.items_of(m, value)), v.undefined("first item", value))


def _last(m: Meter, value: Any, /) -> Any:
    found = v.listed(m, value)
    return found[-1] if found else v.undefined("last item", value)


def _items(m: Meter, value: Any, /) -> Any:
    if isinstance(value, Undefined):
        return v.Lazy([])
    if not isinstance(value, Mapping):
        raise TypeError("only dictionaries have items")
    m.make(len(value) * 2 * OBJECT)
    return v.Lazy(list(value.items()))


def _whole(m: Meter, value: Any, /, default: Any = 0, base: int = 10) -> Any:
    try:
        if isinstance(value, str):
            m.read(len(value))
            if len(value) > _MAX_DIGITS:
                raise SecurityError("a number of more than a thousand digits")
            return v.bounded(int(value, base))
        return v.bounded(int(value))
    except (TypeError, ValueError):
        try:
            return v.bounded(int(float(value)))
        except (TypeError, ValueError, OverflowError):
            return default
    except OverflowError:
        return default


def _float(m: Meter, value: Any, /, default: float = 0.0) -> Any:
    if isinstance(value, str) and len(value) > _MAX_DIGITS:
        raise SecurityError("a number of more than a thousand digits")
    try:
        return float(value)
    except (TypeError, ValueError):
        return default


def _abs(m: Meter, value: Any, /) -> Any:
    if not isinstance(value, int | float):
        raise TypeError(f"a {v.type_name(value)} has no size")
    return abs(value)


def _round(m: Meter, value: Any, /, precision: int = 0, method: str = "common") -> Any:
    return v.rounded(value, precision, method)


def _wordcount(m: Meter, value: Any, /) -> int:
    written = v.text(m, value)
    m.make(len(written) * OBJECT)
    return len(_WORDS.findall(written))


def _keyed(
    m: Meter, attribute: Any, case_sensitive: bool, default: Any = None
) -> Callable[[Any], Any]:
    """What sorting goes by: an attribute or several, letters alike unless told otherwise."""
    paths = attribute.split(",") if isinstance(attribute, str) else [attribute]

    def one(value: Any, path: Any) -> Any:
        found = value if path is None else look_up(m, value, path, default)
        if isinstance(found, str) and not case_sensitive:
            m.make_text(3 * len(found))
            return found.lower()
        return found

    if len(paths) == 1:
        return lambda value: one(value, paths[0])
    return lambda value: [one(value, path) for path in paths]


def _order(m: Meter, keyed: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def compare(left: tuple[Any, Any], right: tuple[Any, Any]) -> int:
        return -1 if v.is_less(m, left[0], right[0]) else int(v.is_less(m, right[0], left[0]))

    compared = cmp_to_key(compare)
    return lambda value: compared((keyed(value), value))


def _sort(
    m: Meter,
    value: Any,
    /,
    reverse: bool = False,
    case_sensitive: bool = False,
    attribute: Any = None,
) -> list[Any]:
    found = v.listed(m, value)
    m.make(len(found) * 3 * OBJECT)
    keyed = _keyed(m, attribute, case_sensitive)
    return sorted(found, key=_order(m, keyed), reverse=v.is_true(reverse))


def _dictsort(
    m: Meter,
    value: Any,
    /,
    case_sensitive: bool = False,
    by: str = "key",
    reverse: bool = False,
) -> list[Any]:
    if not isinstance(value, Mapping) or by not in ("key", "value"):
        raise TypeError("dictsort is for dictionaries, by key or value")
    pairs = list(value.items())
    m.make(len(pairs) * 5 * OBJECT)
    keyed = _keyed(m, int(by == "value"), case_sensitive)
    return sorted(pairs, key=_order(m, keyed), reverse=v.is_true(reverse))


def _extreme(sign: int) -> Filter:
    def filter(m: Meter, value: Any, /, case_sensitive: bool = False, attribute: Any = None) -> Any:
        found = _sort(m, value, case_sensitive=case_sensitive, attribute=attribute)
        if not found:
            return v.undefined("item", value)
        keyed = _keyed(m, attribute, case_sensitive)
        best = keyed(found[0 if sign < 0 else -1])
        return next(one for one in found if v.is_equal(m, keyed(one), best))

    return filter


def _unique(m: Meter, value: Any, /, case_sensitive: bool = False, attribute: Any = None) -> Any:
    keyed = _keyed(m, attribute, case_sensitive)
    found: dict[Any, Any] = {}
    for one in v.stepped(m, v.items_of(m, value)):
        m.make(2 * OBJECT)
        found.setdefault(v.as_key(m, keyed(one)), one)
    return v.Lazy(list(found.values()))


def _groupby(
    m: Meter, value: Any, /, attribute: Any, default: Any = None, case_sensitive: bool = False
) -> list[Any]:
    keyed = _keyed(m, attribute, case_sensitive, default)
    groups: list[tuple[Any, list[Any]]] = []
    for one in _sort(m, value, case_sensitive=case_sensitive, attribute=attribute):
        m.make(2 * OBJECT)
        if not groups or not v.is_equal(m, keyed(groups[-1][1][0]), keyed(one)):
            groups.append((look_up(m, one, attribute, default), []))
        groups[-1][1].append(one)
    return groups


FILTERS: dict[str, Filter] = {
    "abs": _abs,
    "bool": lambda m, value, /: v.is_true(value),
    "capitalize": _of_text(str.capitalize),
    "count": lambda m, value, /: v.length(value),
    "d": _default,
    "default": _default,
    "dictsort": _dictsort,
    "e": _of_text(escape, v.ESCAPED),
    "escape": _of_text(escape, v.ESCAPED),
    "first": _first,
    "float": _float,
    "groupby": _groupby,
    "indent": _indent,
    "int": _whole,
    "items": _items,
    "join": _join,
    "last": _last,
    "length": lambda m, value, /: v.length(value),
    "list": v.listed,
    "lower": _of_text(str.lower),
    "max": _extreme(1),
    "min": _extreme(-1),
    "replace": _replace,
    "reverse": _reverse,
    "round": _round,
    "safe": lambda m, value, /: Markup(v.text(m, value)),
    "sort": _sort,
    "string": _text,
    "title": _of_text(_titled),
    "tojson": _tojson,
    "trim": _trim,
    "unique": _unique,
    "upper": _of_text(str.upper),
    "wordcount": _wordcount,
}
"""`map`, `select` and their kind, which name other filters and tests, are the interpreter's."""
