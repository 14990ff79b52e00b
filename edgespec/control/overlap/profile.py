"""What drafting beside the target costs the target, measured when a model is opened.

"DuoDecoding: Hardware-aware Heterogeneous Speculative Decoding with Dynamic Multi-Sequence
Drafting" times both sides once. Here they are also timed at the same time: cores of one processor
share memory and cache, and many a virtual machine's cores are two threads of one.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable

from edgespec.backends.passes import TokenTree
from edgespec.backends.sequence import KvSequence
from edgespec.drafting.model.small_model import DraftModelDrafter
from edgespec.system.records import dataclass
from edgespec.system.threads import start_thread

TRIES = 5
MOST_S = 1.0
"""Measuring ends when it has taken so long, with what was found."""


@dataclass(frozen=True, slots=True)
class Profile:
    """Seconds of one node alone and together, and what follows from them."""

    pass_s: float
    """The target alone, on all its threads."""
    lent_s: float
    """The target alone, on the threads that overlap leaves it."""
    beside_s: float
    """The same while the drafter computes."""
    draft_s: float
    """The drafter alone."""
    beside_draft_s: float
    """The drafter while the target computes."""

    @property
    def slowdown(self) -> float:
        """How many times as long the target takes on the threads that are left."""
        return max(1.0, self.lent_s / self.pass_s)

    @property
    def hold_up(self) -> float:
        """The target's delay for each second that the drafter takes alone: 0 where nothing is
        shared, 1 where drafting ahead gains nothing."""
        drafts = self.beside_s / self.beside_draft_s
        return max(0.0, (self.beside_s - self.lent_s) / (drafts * self.draft_s))


def measure(
    sequence: KvSequence,
    drafter: DraftModelDrafter,
    threads: int | None,
    draft_threads: int | None,
) -> Profile:
    """Time both sides, with nothing committed, on these numbers of threads (None: all)."""
    target = sequence.target
    tree = TokenTree.chain([0])

    def verify() -> None:
        sequence.forward(tree)

    drafter.target.limit_threads(draft_threads)
    pass_s = _typical(verify)
    target.limit_threads(threads)
    lent_s, draft_s = _typical(verify), _typical(drafter.try_out)
    over = threading.Event()
    counts = [0]

    def draft() -> None:
        while not over.is_set():
            drafter.try_out()
            counts[0] += 1

    beside = threading.Thread(target=draft, name="edgespec-profile", daemon=True)
    try:
        start_thread(beside)
        begun = time.perf_counter()
        beside_s = _typical(verify)
        took_s = time.perf_counter() - begun
    finally:
        over.set()
        if beside.ident is not None:
            beside.join()
        target.limit_threads(None)
        drafter.target.limit_threads(None)
        sequence.expect(())
    return Profile(pass_s, lent_s, beside_s, draft_s, took_s / max(counts[0], 1))


def _typical(work: Callable[[], None]) -> float:
    """The median seconds of a few times; the first is not counted."""
    work()
    times: list[float] = []
    start = time.perf_counter()
    while len(times) < TRIES and (not times or time.perf_counter() - start < MOST_S):
        before = time.perf_counter()
        work()
        times.append(time.perf_counter() - before)
    return statistics.median(times)
