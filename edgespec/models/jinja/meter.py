"""What one rendering may use: steps, seconds and bytes, taken before they are spent.

Every operation of the interpreter asks here first, in proportion to what it will touch or make, so
no single call into Python's own code is long or large. Bytes are counted as they are made and never
returned: what a template holds at any moment is less.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from jinja2.exceptions import SecurityError

MAX_SECONDS = 5.0
MAX_STEPS = 200_000
"""Expressions, comparisons and iterations; a published template takes some thousands."""
STEPS_PER_ITEM = 4_000
"""More of them for each message and value that is rendered."""
MAX_BYTES = 16 << 20
BYTES_PER_CHARACTER = 128
"""More of them for each character that is rendered: 32 copies."""
MAX_DEPTH = 64
"""Levels of values inside values, and of macros inside macros."""
CHARACTER = 4
"""Bytes, at most."""
ITEM = 8
OBJECT = 64
_LOOK_STEPS = 128
_STEP_CHARACTERS = 1 << 10


class Meter:
    """What one rendering has used up; raises SecurityError at a limit."""

    def __init__(self, values: Mapping[str, Any] | None = None) -> None:
        """`values` are what is rendered: long conversations may take more."""
        characters, items = _amount(values or {})
        self._steps = MAX_STEPS + STEPS_PER_ITEM * items
        self._bytes = MAX_BYTES + BYTES_PER_CHARACTER * characters
        self._until_look = _LOOK_STEPS
        self._deadline = time.monotonic() + MAX_SECONDS

    def spend(self, steps: int = 1) -> None:
        """Take so many steps."""
        self._steps -= steps
        self._until_look -= steps
        if self._until_look < 0:
            self._until_look = _LOOK_STEPS
            if self._steps < 0:
                raise SecurityError("too many steps")
            if time.monotonic() > self._deadline:
                raise SecurityError(f"more than {MAX_SECONDS:g} seconds")

    def read(self, characters: int) -> None:
        """Look at so many characters."""
        self.spend(1 + characters // _STEP_CHARACTERS)

    def make(self, size_bytes: int) -> None:
        """Make something of so many bytes, to be called before it is made."""
        self._bytes -= size_bytes
        self.read(size_bytes)
        if self._bytes < 0:
            raise SecurityError("values that take too much memory")

    def make_text(self, characters: int) -> None:
        """Make a text of so many characters."""
        self.make(characters * CHARACTER + OBJECT)

    def make_list(self, items: int) -> None:
        """Make a list of so many items, which exist already."""
        self.make(items * ITEM + OBJECT)


def _amount(values: Mapping[str, Any]) -> tuple[int, int]:
    """Characters and items in all that is rendered."""
    characters, items = 0, 0
    todo: list[tuple[Any, int]] = [(values, 0)]
    while todo:
        value, depth = todo.pop()
        items += 1
        if depth > MAX_DEPTH:
            raise SecurityError(f"messages or tools nested more than {MAX_DEPTH} deep")
        if isinstance(value, str):
            characters += len(value)
        elif isinstance(value, Mapping):
            todo += ((one, depth + 1) for pair in value.items() for one in pair)
        elif isinstance(value, list | tuple):
            todo += ((one, depth + 1) for one in value)
    return characters, items
