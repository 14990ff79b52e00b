"""What is left to answer, shared by everyone who answers."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Sequence

from edgespec.tools.answer_file import Line

_SUSPECT = 2
"""Lost with so many workers, a line is answered alone: it may be what they died of."""
_GIVEN_UP = 4


class Work:
    """Lines that wait, are being answered, or are answered; safe to use from many threads.

    A line is told to be answered once, however often it was handed out.
    """

    def __init__(self, lines: Sequence[Line]) -> None:
        self._waiting = deque(lines)
        self._open = {line.number for line in lines}
        self._losses: Counter[int] = Counter()
        self._changed = threading.Condition()
        self.is_stopped = False

    def wait(self) -> bool:
        """Wait until lines can be taken; False when all is over."""
        with self._changed:
            while not self.is_stopped and self._open and not self._waiting:
                self._changed.wait()
            return bool(self._open) and not self.is_stopped

    def take(self, most: int, takers: int) -> list[Line]:
        """Up to `most` lines, fewer when few are left for all `takers`; none when all is over.

        Waits while others still hold lines, which come back if their worker dies.
        """
        with self._changed:
            if not self.wait():
                return []
            if self._losses[self._waiting[0].number] >= _SUSPECT:
                return [self._waiting.popleft()]
            # Guided self-scheduling: shares shrink, so that nobody ends long after the others.
            count = max(1, min(most, len(self._waiting) // (2 * takers)))
            taken: list[Line] = []
            while self._waiting and len(taken) < count:
                if self._losses[self._waiting[0].number] >= _SUSPECT:
                    break
                taken.append(self._waiting.popleft())
            return taken

    def answered(self, line: Line) -> bool:
        """Note an answer; False when the line has one already."""
        with self._changed:
            if line.number not in self._open:
                return False
            self._open.remove(line.number)
            self._changed.notify_all()
            return True

    def lost(self, lines: Sequence[Line]) -> list[Line]:
        """Note that a worker died over these lines; returns those that are to be given up."""
        with self._changed:
            self._losses.update(line.number for line in lines)
            return [line for line in lines if self._losses[line.number] >= _GIVEN_UP]

    def give_back(self, lines: Sequence[Line]) -> None:
        """Take lines back that were not answered."""
        with self._changed:
            self._waiting.extendleft(line for line in reversed(lines) if line.number in self._open)
            self._changed.notify_all()

    def stop(self) -> None:
        """Hand out nothing more."""
        with self._changed:
            self.is_stopped = True
            self._changed.notify_all()
