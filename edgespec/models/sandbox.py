"""Jinja with limits: what a template may call, how long it may run, how much it may build.

Jinja's own sandbox keeps a template from Python's internals but not from looping for ever or
building a string of a terabyte. Loops, calls and sizes are therefore counted: every `for`, `~`
and output is rewritten to pass a meter, and operations that multiply sizes are bounded or gone.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from datetime import datetime
from typing import Any, NoReturn, cast

from jinja2 import TemplateError as JinjaError
from jinja2 import nodes, pass_environment
from jinja2.environment import Environment
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import FILTERS
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_STEPS = 250_000
"""Loop iterations and calls of one rendering; a real template takes some thousands."""
MAX_SECONDS = 5.0
MAX_CHARACTERS = 1 << 24
"""Size of any one text or of the output."""
MAX_ITEMS = 1 << 16
"""Length of any one list or range."""
MAX_BITS = 1 << 12
"""Size of any one whole number."""
MAX_INDENT = 256

_FILTERS = (
    "abs", "bool", "capitalize", "count", "d", "default", "dictsort", "e", "escape", "first",
    "float", "groupby", "int", "items", "last", "length", "list", "lower", "map", "max", "min",
    "reject", "rejectattr", "reverse", "round", "safe", "select", "selectattr", "sort", "string",
    "title", "trim", "unique", "upper", "wordcount",
)  # fmt: skip
_FORBIDDEN_METHODS = frozenset(
    ("center", "expandtabs", "ljust", "maketrans", "rjust", "to_bytes", "translate", "zfill")
)
_SCOPES = ("_loop_vars", "_block_vars")
_WIDE_FORMAT = re.compile(r"\d{4}|%[^a-zA-Z]*\*|\{[^{}]*:[^{}]*\{")


class Sandbox:
    """One compiled template."""

    def __init__(self, source: str) -> None:
        """Compile; raises whatever Jinja raises."""
        self._template = _Environment().from_string(source)

    def run(self, values: Mapping[str, Any]) -> str:
        """Render; raises whatever the template raises, and SecurityError at a limit."""
        meter = _Meter()
        token = _METER.set(meter)
        try:
            parts = []
            for part in self._template.generate(values):
                meter.spend(1)
                meter.grow(len(part))
                parts.append(part)
            return "".join(parts)
        finally:
            _METER.reset(token)


class _Meter:
    """What one rendering has used up."""

    def __init__(self) -> None:
        self.steps = 0
        self.characters = 0
        self.deadline = time.monotonic() + MAX_SECONDS

    def spend(self, steps: int) -> None:
        self.steps += steps
        if self.steps > MAX_STEPS:
            raise SecurityError(f"more than {MAX_STEPS} steps")
        if self.steps % 256 < steps and time.monotonic() > self.deadline:
            raise SecurityError(f"more than {MAX_SECONDS:g} seconds")

    def grow(self, characters: int) -> None:
        self.characters += characters
        if self.characters > MAX_CHARACTERS:
            raise SecurityError(f"more than {MAX_CHARACTERS} characters of output")


_METER: ContextVar[_Meter] = ContextVar("meter")


def _meter() -> _Meter:
    # Constant expressions are evaluated while compiling, outside any rendering.
    return _METER.get(None) or _Meter()


class _Environment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset(("*", "**", "+", "%"))

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[loopcontrols, _Generation],
            finalize=_weighed,
        )
        self.filters = {name: FILTERS[name] for name in _FILTERS if name in FILTERS}
        self.filters |= {
            "indent": _indent, "join": _join, "replace": _replace, "tojson": _tojson,
            "_stepped": _stepped, "_weighed": _weighed,
        }  # fmt: skip
        self.globals = {
            "dict": dict,
            "namespace": self.globals["namespace"],
            "raise_exception": _raise_exception,
            "range": _range,
            "strftime_now": _strftime_now,
        }

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        for loop in list(tree.find_all(nodes.For)):
            loop.iter = _through(loop.iter, "_stepped")
        for concat in list(tree.find_all(nodes.Concat)):
            concat.nodes = [_through(node, "_weighed") for node in concat.nodes]
        return tree

    def call(  # noqa: B902 - Jinja's own names, so that keyword arguments cannot clash
        __self, __context: Context, __obj: Any, *args: Any, **kwargs: Any
    ) -> Any:
        _meter().spend(1)
        name = getattr(__obj, "__name__", "")
        owner = getattr(__obj, "__self__", None)
        if name in _FORBIDDEN_METHODS:
            raise SecurityError(f"the method {name!r} is not available in chat templates")
        if isinstance(owner, str) and name == "replace":
            for scope in _SCOPES:  # what Jinja hands on to calls in loops and blocks
                kwargs.pop(scope, None)
            return _replace(owner, *args, **kwargs)
        if isinstance(owner, str) and name == "join":
            _weighed(list(args[0]), len(owner))
        return super().call(__context, __obj, *args, **kwargs)

    def unsafe_undefined(self, obj: Any, attribute: str) -> NoReturn:
        raise SecurityError(f"{attribute!r} of a {type(obj).__name__} is out of reach")

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapper = super().wrap_str_format(value)
        if wrapper is not None and _WIDE_FORMAT.search(value.__self__):
            raise SecurityError("wide or nested formats are not available in chat templates")
        return wrapper

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        _meter().spend(1)
        if operator == "+":
            _check_sum(left, right)
        elif operator == "*":
            _check_product(left, right)
        elif operator == "**":
            if isinstance(left, int) and isinstance(right, int):
                _check(left.bit_length() * abs(right), MAX_BITS, "bits")
        elif isinstance(left, str) and _WIDE_FORMAT.search(left):
            raise SecurityError("wide formats are not available in chat templates")
        return super().call_binop(context, operator, left, right)


class _Generation(Extension):
    """`{% generation %}`, with which training code marks replies: transparent here."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _through(node: nodes.Node, name: str) -> nodes.Filter:
    return nodes.Filter(cast(nodes.Expr, node), name, [], [], None, None, lineno=node.lineno)


def _check(amount: int, most: int, what: str) -> None:
    if amount > most:
        raise SecurityError(f"a value of more than {most} {what}")


def _check_sum(left: Any, right: Any) -> None:
    if isinstance(left, str | bytes) and isinstance(right, str | bytes):
        _check(len(left) + len(right), MAX_CHARACTERS, "characters")
    elif isinstance(left, list | tuple) and isinstance(right, list | tuple):
        _check(len(left) + len(right), MAX_ITEMS, "items")


def _check_product(left: Any, right: Any) -> None:
    for one, times in ((left, right), (right, left)):
        if isinstance(times, int):
            if isinstance(one, str | bytes):
                _check(len(one) * times, MAX_CHARACTERS, "characters")
            elif isinstance(one, list | tuple):
                _check(len(one) * times, MAX_ITEMS, "items")
            elif isinstance(one, int):
                _check(one.bit_length() + times.bit_length(), MAX_BITS, "bits")


def _stepped(values: Iterable[Any]) -> Iterator[Any]:
    meter = _meter()
    for value in values:
        meter.spend(1)
        yield value


def _weighed(value: Any, extra: int = 0) -> Any:
    """`value` itself, if it would be a text of reasonable size; nested lists are walked."""
    weight = 0
    todo = [value]
    while todo:
        item = todo.pop()
        weight += extra + 16
        if isinstance(item, str | bytes):
            weight += len(item)
        elif isinstance(item, dict):
            todo += item
            todo += item.values()
        elif isinstance(item, list | tuple):
            todo += item
        _check(weight + 16 * len(todo), MAX_CHARACTERS, "characters")
    return value


def _range(*bounds: int) -> range:
    values = range(*bounds)
    _check(len(values), MAX_ITEMS, "items")
    return values


@pass_environment
def _join(environment: Environment, values: Any, d: str = "", attribute: Any = None) -> str:
    items = list(_stepped(values))
    _weighed(items, len(str(d)))
    return str(FILTERS["join"].__wrapped__(environment, items, d, attribute))


def _replace(text: Any, old: str, new: str, count: int | None = None) -> str:
    whole, old, new = str(_weighed(text)), str(old), str(new)
    _check((whole.count(old) + 1) * len(new) + len(whole), MAX_CHARACTERS, "characters")
    return whole.replace(old, new, -1 if count is None else int(count))


def _indent(text: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    size = width if isinstance(width, int) else len(width)
    _check(size, MAX_INDENT, "spaces of indent")
    return str(FILTERS["indent"](_weighed(text), width, first, blank))


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as Hugging Face's templates expect it: nothing escaped for HTML."""
    size = indent if isinstance(indent, int) else len(indent or "")
    _check(size, MAX_INDENT, "spaces of indent")
    return json.dumps(
        _weighed(value),
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> None:
    raise JinjaError(str(message))


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(str(format)[:256])
