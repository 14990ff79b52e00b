"""A terminal that shows nothing of what is typed while there is no prompt."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

if sys.platform != "win32":
    import termios

    _usual: list[list[int | list[bytes | int]]] = []
    """How the terminal was before it was made quiet."""

    @contextmanager
    def quiet_keys() -> Iterator[None]:
        """What is typed meanwhile waits for the next prompt; Ctrl-C interrupts as ever."""
        try:
            before = termios.tcgetattr(sys.stdin)
        except (OSError, ValueError, termios.error):  # no terminal
            yield
            return
        now = termios.tcgetattr(sys.stdin)
        now[0] &= ~termios.ICRNL  # Enter stays Enter for the next prompt
        now[3] &= ~termios.ECHO
        _usual.append(before)
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, now)
        try:
            yield
        finally:
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, _usual.pop())

    @contextmanager
    def usual_keys() -> Iterator[None]:
        """Inside of `quiet_keys`, a terminal as it was before: to answer a question."""
        if not _usual:
            yield
            return
        quiet = termios.tcgetattr(sys.stdin)
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, _usual[-1])
        try:
            yield
        finally:
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, quiet)
else:
    quiet_keys = usual_keys = nullcontext
