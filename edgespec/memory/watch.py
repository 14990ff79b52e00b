"""Watching over the budget while a reply is written: samples in the background, two lines.

The soft line lies halfway from the plan to the budget: past it, idle conversations are spilled,
stores shrink and what is not needed goes back to the system. The hard line is the budget: what is
still above it after that ends the request with an error that carries the numbers, and the process
lives on. The thread only measures; whoever writes the reply acts, between two steps, where nothing
is half done.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Self

from edgespec.errors import BudgetError
from edgespec.memory.plan.plan import Plan
from edgespec.system.cgroup import cgroup_memory
from edgespec.system.resident_memory import release_free_memory, resident_bytes
from edgespec.system.size import MIB, format_size

INTERVAL_S = 0.05
GROUP_MARGIN_BYTES = 1 * MIB
"""What a control group must have left: below it the kernel may end the process any moment."""
_SAMPLES_PER_GROUP = 10
"""A group's files take longer to read than this process's own."""


class Watch:
    """Samples what this process holds while it is entered; `check` acts on it."""

    def __init__(self, plan: Plan, shrink: Callable[[], int], interval_s: float = INTERVAL_S):
        """`shrink` gives up what can be spared and returns how many bytes that gave back."""
        self._plan = plan
        self._shrink = shrink
        self._interval_s = interval_s
        self.soft_bytes = (plan.planned_bytes + plan.budget_bytes) // 2
        self.hard_bytes = plan.budget_bytes
        self.num_reliefs = 0
        """How often memory was given back because of the soft line."""
        self._relieved_at = 0
        self._alarm = threading.Event()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self._stop.clear()
        self._alarm.clear()
        thread = threading.Thread(target=self._sample, name="edgespec-watch", daemon=True)
        with suppress(RuntimeError):  # the system has no thread left: every check looks itself
            thread.start()
            self._thread = thread
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _sample(self) -> None:
        count = 0
        while not self._stop.wait(self._interval_s):
            look_at_group = count % _SAMPLES_PER_GROUP == 0
            count += 1
            if resident_bytes() > self.soft_bytes or (look_at_group and _group_is_full()):
                self._alarm.set()

    def check(self) -> None:
        """Do what the last samples ask for; costs nothing while they ask for nothing.

        Raises BudgetError past the hard line.
        """
        if self._alarm.is_set() or self._thread is None:
            self._alarm.clear()
            self.relieve()

    def look(self) -> None:
        """The same without a thread: measure now, and act on it."""
        if resident_bytes() > self.soft_bytes:
            self.relieve()

    def is_over(self) -> bool:
        """Whether more than the soft line is held now, or the control group is full."""
        return resident_bytes() > self.soft_bytes or _group_is_full()

    def relieve(self) -> None:
        """Give back what can be spared if more than the soft line is held now.

        Raises BudgetError when the hard line is passed all the same.
        """
        if not self.is_over():
            return
        held, full = resident_bytes(), _group_is_full()
        if held > self._relieved_at or held > self.hard_bytes or full:
            self._shrink()
            release_free_memory()
            self.num_reliefs += 1
            held = resident_bytes()
            self._relieved_at = held + (self.hard_bytes - self.soft_bytes) // 4
        if held > self.hard_bytes:
            raise BudgetError(self._message(held))
        if full and _group_is_full():
            raise BudgetError(self._group_message(held))

    def _message(self, held: int) -> str:
        plan = self._plan
        return (
            f"this process holds {format_size(held)}, over its budget of "
            f"{format_size(self.hard_bytes)}, so the request was ended; planned were "
            f"{format_size(plan.planned_bytes)} ({plan.footprint.summary()}), and "
            f"{format_size(held - plan.planned_bytes)} are held besides; close what else this "
            "process keeps, or load with more --memory"
        )

    def _group_message(self, held: int) -> str:
        plan = self._plan
        return (
            "the control group of this process has no memory left, so the request was ended; this "
            f"process holds {format_size(held)} of its budget of {format_size(self.hard_bytes)} "
            f"(planned: {plan.footprint.summary()}); end other processes of the group, or raise "
            "its limit"
        )


def _group_is_full() -> bool:
    """Whether what cannot be reclaimed comes within a margin of the tightest group's limit."""
    group = cgroup_memory()
    return group is not None and group.limit_bytes - group.held_bytes < GROUP_MARGIN_BYTES
