"""Options of replies that a chat can change on the way."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import replace
from types import NoneType
from typing import Any, get_args

from edgespec.engine.reply_options import ReplyOptions
from edgespec.engine.request import check_options
from edgespec.errors import OptionError
from edgespec.system.option_fields import options_of

_SWITCHES = {"on": True, "off": False, "true": True, "false": False, "yes": True, "no": False}
_NOT_HERE = ("prefix", "raw", "schema")
_DEFAULT = "default"


def settable() -> dict[str, Callable[[str], Any]]:
    """What `/set` changes, by its name, and what reads a value."""
    found: dict[str, Callable[[str], Any]] = {}
    for name, (_, type_, option) in options_of(ReplyOptions).items():
        members = [one for one in get_args(type_) or (type_,) if one is not NoneType]
        if option.shell and name not in _NOT_HERE:
            kind = members[0]
            found[name.replace("_", "-")] = _switch if kind is bool else kind
    return found


def set_option(reply: ReplyOptions, name: str, value: str) -> ReplyOptions:
    """The same options but for one, "default" for as it was made; raises OptionError."""
    known = settable()
    name = name.replace("_", "-")
    if name not in known:
        near = [one for one in known if one.startswith(name)]
        near = near or difflib.get_close_matches(name, known, 1)
        hint = f"did you mean {near[0]}?" if near else f"the options are {', '.join(known)}"
        raise OptionError(f"there is no option {name!r}; {hint}")
    if not value:
        raise OptionError(f"/set {name} takes a value, or `default`")
    field, _, _ = options_of(ReplyOptions)[name.replace("-", "_")]
    try:
        made: Any = field.default if value == _DEFAULT else known[name](value)
    except ValueError:
        wanted = {int: "a whole number", float: "a number", _switch: "on or off"}
        asked = wanted.get(known[name], "another value")
        raise OptionError(f"{name} takes {asked}, and {value!r} is none") from None
    change: dict[str, Any] = {field.name: made}
    changed = replace(reply, **change)
    check_options(changed)
    return changed


def shown(value: Any) -> str:
    """A value as `/set` takes it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return _DEFAULT if value is None else str(value)


def _switch(value: str) -> bool:
    try:
        return _SWITCHES[value.lower()]
    except KeyError:
        raise ValueError from None
