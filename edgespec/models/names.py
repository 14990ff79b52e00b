"""Names that may follow a dot: identifiers that exist, as a language server or ctags knows them.

Source: "Monitor-Guided Decoding of Code LMs with Static Analysis of Repository Context", where a
monitor wakes at a dereference and masks what is no prefix of a member's name. Here the monitor is a
regular expression, so it takes the way of every other grammar.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from edgespec.errors import OptionError

_START = r"[A-Za-z_\u0080-\U0010ffff]"
_INSIDE = r"[A-Za-z0-9_\u0080-\U0010ffff]"
_NAME = re.compile(_START + _INSIDE + "*")
_OPEN = re.compile(rf"(?<!\.)\.(?:{_START}{_INSIDE}*)?\Z")


def names_pattern(names: Iterable[str]) -> str:
    """A regular expression for any text in which whatever begins right behind a single dot is one
    of these names; what is no identifier counts as none. Raises OptionError when no name is left.
    """
    known = sorted({name for name in names if isinstance(name, str) and _NAME.fullmatch(name)})
    if not known:
        raise OptionError("names holds no identifier; give the names that may follow a dot")
    member = rf"(\.({'|'.join(known)}))"
    other, start = _INSIDE.replace("[", r"[^.", 1), _START.replace("[", r"[^.", 1)
    return rf"([^.]|{member}+{other}|{member}*\.({start}|\.+[^.]))*{member}*\.*"


def open_dereference(text: str) -> str:
    """The dot that a text ends in, with what is already there of the name behind it."""
    found = _OPEN.search(text)
    return "" if found is None else found.group()
