"""A terminal that shows nothing of what is typed while there is no prompt."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

if sys.platform != "win32":
    import termios

    @contextmanager
    def quiet_keys() -> Iterator[None]:
        """What is typed meanwhile waits for the next prompt; Ctrl-C interrupts as ever."""
        try:
            place = sys.stdin.fileno()
            before = termios.tcgetattr(place)
        except (OSError, ValueError, termios.error):  # no terminal
            yield
            return
        now = [*before]
        now[0] &= ~termios.ICRNL  # Enter stays Enter for the next prompt
        now[3] &= ~termios.ECHO
        termios.tcsetattr(place, termios.TCSADRAIN, now)
        try:
            yield
        finally:
            termios.tcsetattr(place, termios.TCSADRAIN, before)
else:
    quiet_keys = nullcontext
