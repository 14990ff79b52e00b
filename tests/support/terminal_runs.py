"""A command at a pseudo-terminal, where a line is typed whenever a chat asks for one."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import threading
from collections.abc import Sequence

from tests.support.kills import Running

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_ASKS = b"Send a message"
_QUIET_S = 0.05


class TypedAt(Running):
    """`edgespec` with these arguments at a terminal of 80 columns."""

    def __init__(
        self, arguments: Sequence[str], variables: dict[str, str], lines: Sequence[str]
    ) -> None:
        self._place, inner = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "edgespec", *arguments],
            stdin=inner, stdout=inner, stderr=inner, start_new_session=True,
            env=variables | {"TERM": "xterm", "COLUMNS": "80", "LINES": "24"},
        )  # fmt: skip
        os.close(inner)
        self._raw, self._lines = b"", list(lines)
        self._reader = threading.Thread(target=self._watch)
        self._reader.start()

    def _watch(self) -> None:
        asked = False
        while True:
            ready, _, _ = select.select([self._place], [], [], _QUIET_S)
            try:
                if ready:
                    raw = os.read(self._place, 65536)
                    if b"\x1b[6n" in raw:  # asks where the cursor is
                        os.write(self._place, b"\x1b[1;1R")
                    self._raw += raw
                    asked |= _ASKS in raw
                elif asked and self._lines:  # all of the prompt is drawn
                    asked = False
                    os.write(self._place, f"{self._lines.pop(0)}\r".encode())
            except OSError:  # what Linux says of a terminal whose program has ended
                break
            if ready and not raw:
                break
        os.close(self._place)

    def said(self) -> str:
        return " ".join(_ESCAPES.sub("", super().said()).split())
