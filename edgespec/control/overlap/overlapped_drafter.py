"""Drafting while the target verifies: a draft model whose thread works ahead of the text.

For the decode loop this is a drafter like any other: asked, it answers with what is ready. If the
verdict before was foreseen, that is the next tree, at no wait ("PEARL", post-verify; "Mirror
Speculative Decoding", branch-complete rollouts). If not, waiting for a draft is weighed against
what it is worth: where drafting is quick, the target waits for a few; where it is slow, it goes on
with the text's last token alone, and so verifies the first draft while the drafter writes those
after it (PEARL's pre-verify). No draft is written that the measured prices of drafts and passes do
not pay for, so the length adapts until neither side waits ("DuoDecoding", hardware-aware budget).

What is drafted decides nothing but how many tokens a step yields: the text is the serial loop's.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from edgespec.backends.sequence import KvSequence, SequenceHost
from edgespec.control.overlap.choice import Choice
from edgespec.control.overlap.pipeline import Pipeline
from edgespec.control.overlap.profile import measure
from edgespec.drafting.base import Drafter
from edgespec.drafting.model.guesses import LEAST
from edgespec.drafting.model.small_model import DraftModelDrafter
from edgespec.drafting.tree import DraftTree, StepOutcome
from edgespec.errors import BackendError
from edgespec.system.cores import Cores, stay_on
from edgespec.verification.sampling import SamplingParams

_RATE = 0.1
MOST_SURE = 0.9
"""Drafts likelier than this are written ahead at any price: else nothing new would be learnt."""
WAIT = 0.7
"""Part of a draft's worth that is waited for where drafting holds nobody up: one that is not waited
for is written beside the pass, and not lost."""


class DraftAhead(Drafter):
    """A draft model in a thread of its own where that pays, and in the caller's where it does not.

    Between `propose` and `observe` of a step that overlaps, the target computes on `threads`
    threads only (None: as many as ever), and the drafter on `draft_threads`.
    """

    name = "draft-model"
    costly = True

    def __init__(
        self,
        drafter: DraftModelDrafter,
        option: str = "auto",
        *,
        reason: str = "as requested",
        threads: int | None = None,
        draft_threads: int | None = None,
        cores: Cores | None = None,
        pipeline: Pipeline | None = None,
        clock: Callable[[], float] = time.perf_counter,
        source: int = 1,
    ) -> None:
        """`pipeline` and `clock` are for those who play machines that are not there."""
        self.source = source
        self._clock = clock
        self._drafter = drafter
        self._choice = Choice(option, reason=reason)
        self._threads, self._draft_threads = threads, draft_threads
        cores = cores if cores is not None and cores.unequal else Cores(frozenset(), frozenset())
        self._fast = cores.fast
        self._pipeline = pipeline or Pipeline(drafter, partial(stay_on, cores.slow))
        self._end = weakref.finalize(self, self._pipeline.close)
        self._target: SequenceHost | None = None
        self._prices: NDArray[np.float64] = np.zeros(1)
        self._before: frozenset[int] = frozenset()
        """Where the caller's thread may be when no step is under way."""
        self._ahead = self._serial = self._ready = 0
        """Steps of this reply that overlapped, those that did not, and those whose drafts were
        ready."""
        self._start = self._proposed = 0.0
        self._token_s = 0.0
        """What a token takes while drafting ahead."""
        self._under_way = False
        self._is_lost = False
        """Whether the draft model cannot be computed any more."""
        self._drafts = 0
        """Of the thread, when the step's drafts were taken."""
        self._lent: int | None = None

    def attach(self, sequence: KvSequence, prices: NDArray[np.float64]) -> None:
        self._drafter.attach(sequence, prices)
        self._target, self._prices = sequence.target, prices
        if self._choice.option != "off":
            found = measure(sequence, self._drafter, self._threads, self._draft_threads)
            self._choice.slowdown, self._choice.hold_up = found.slowdown, found.hold_up

    def begin(self, sampling: SamplingParams) -> None:
        self.pause()
        self._pipeline.rest().begin(sampling)

    def reset(self, tokens: Sequence[int] | NDArray[np.int32]) -> None:
        self.pause()
        self._ahead = self._serial = self._ready = 0
        self.notes = ()
        self._is_lost = False
        if isinstance(self._pipeline.failure, BackendError):  # perhaps what it misses is back
            self._pipeline.failure = None
            self._pipeline.rest().forget()
        self._pipeline.reset([int(token) for token in tokens])

    def extend(self, tokens: Sequence[int] | NDArray[np.int32]) -> None:
        self._pipeline.extend([int(token) for token in tokens])

    def propose(self, max_nodes: int) -> DraftTree:
        """What is ready or worth waiting for, at most `max_nodes` besides the root."""
        self._start = self._clock()
        if self._pipeline.failure is not None:
            self._fall_back()
        self._under_way = self._choice.overlapped and not self._is_lost
        if self._under_way:
            tree = self._draft_ahead(max_nodes)
        else:
            self._serial += 1
            self._lend(None)
            tree = self._draft_in_turn(max_nodes)
        self._proposed = self._clock()
        return tree

    def _draft_in_turn(self, max_nodes: int) -> DraftTree:
        drafter = self._pipeline.rest()
        if not self._is_lost:
            try:
                return drafter.propose(max_nodes)
            except BackendError as error:  # what computes it is gone, and only costs speed
                self._lose(error)
        return drafter.nothing()

    def _draft_ahead(self, max_nodes: int) -> DraftTree:
        self._ahead += 1
        self._lend(self._draft_threads)
        # What is drafted ahead holds the target up; what is waited for, it waits for.
        self._pipeline.least = min(max(LEAST, self._choice.hold_up), MOST_SURE)
        self._pipeline.go_on()
        # A wait is worth at most what drafting in turn would make of it.
        token_s = self._drafter.value_s(step_s=self._pipeline.draft_s)
        worth = 1.0 - (1.0 - WAIT) * max(1.0 - self._choice.hold_up, 0.0)
        token_s = worth * min(token_s, self._token_s or token_s)
        waited = self._pipeline.wait(partial(self._pays, max_nodes, token_s))
        self._ready += not waited
        tree = self._pipeline.tree(max_nodes, self.source)
        if self._threads is not None and self._target is not None:
            self._target.limit_threads(self._threads)
        self._drafts = self._pipeline.drafts
        index = min(len(tree), len(self._prices)) - 1
        pass_s = float(self._prices[index]) * self._choice.slowdown
        self._pipeline.verdict_at = self._clock() + pass_s
        self._before = self._before or stay_on(self._fast)
        return tree

    def _lend(self, threads: int | None) -> None:
        """Let the drafter compute on so many threads; it must not be at work."""
        if threads != self._lent:
            self._pipeline.rest().target.limit_threads(threads)
            self._lent = threads

    def _pays(
        self, max_nodes: int, token_s: float, chance: float, wait_s: float, size: int
    ) -> bool:
        """Whether the target is to wait for one more draft: what it is likely to save, against the
        wait and a larger pass.
        """
        if size >= max_nodes or size + 1 >= len(self._prices):
            return False
        more_s = wait_s + float(self._prices[size + 1] - self._prices[size])
        return chance * self._drafter.mean_rate * token_s > more_s

    @property
    def saved_s(self) -> float:
        """A pass takes longer than its size says beside a drafter: that is the drafts' price."""
        if not self._under_way:
            return self._drafter.saved_s
        drafts = self._pipeline.drafts - self._drafts
        held_up_s = self._choice.hold_up * self._pipeline.draft_s * drafts
        return (1.0 - self._choice.slowdown) * float(self._prices[0]) - held_up_s

    def observe(self, outcome: StepOutcome) -> None:
        """Learn from the verdict, drop what it made impossible, and go on drafting."""
        now, overlapped = self._clock(), self._under_way
        self._return_cores()
        if overlapped:
            self._pipeline.verdict([int(token) for token in outcome.new_tokens])
            self._learn_pace(now, outcome)
        else:
            self._drafter.observe(outcome)
        right = len(outcome.tree) == 1 or outcome.path[-1] not in outcome.tree.parents
        self._choice.observe(
            now - self._start,
            _promised(outcome.tree),
            self._proposed - self._start,
            right=right,
        )

    def _learn_pace(self, now: float, outcome: StepOutcome) -> None:
        token_s = (now - self._start) / _promised(outcome.tree)
        self._token_s += (_RATE if self._token_s else 1.0) * (token_s - self._token_s)

    def pause(self) -> None:
        """No step is under way any more: threads rest, and cores are given back."""
        self._pipeline.pause()
        self._return_cores()

    def _return_cores(self) -> None:
        self._under_way = False
        if self._threads is not None and self._target is not None:
            self._target.limit_threads(None)
        if self._before:
            stay_on(self._before)
            self._before = frozenset()

    def _fall_back(self) -> None:
        """The thread failed: say so once, and draft in turn from here on."""
        error, self._pipeline.failure = self._pipeline.failure, None
        if isinstance(error, BackendError):
            self._lose(error)
            return
        what = " ".join(f"{type(error).__name__}: {error}".split())
        self.notes = (f"drafting ahead ended by an error, and drafts come in turn ({what})",)
        self._choice = Choice("off", reason="its thread failed")
        self._pipeline.rest().forget()

    def _lose(self, error: BackendError) -> None:
        """What computes the draft model is gone: no drafts in this reply."""
        self.notes = (f"drafts ended: {error}",)
        self._is_lost = True
        self._pipeline.rest().forget()

    @property
    def overlap(self) -> str:
        """What this reply's drafting was: one clause."""
        if not self._ahead:
            return self._choice.why
        return (
            f"{self._choice.why}; {self._ahead} of {self._ahead + self._serial} drafts were "
            f"written ahead, {self._ready} without a wait"
        )

    def close(self) -> None:
        self.pause()
        self._end()

    @property
    def size_bytes(self) -> int:
        return self._drafter.size_bytes + self._pipeline.size_bytes


def _promised(tree: DraftTree) -> float:
    """Tokens that a step over this tree is expected to bring."""
    chances = [1.0]
    for parent, given in zip(tree.parents[1:].tolist(), tree.p_accept[1:].tolist(), strict=True):
        chances.append(chances[parent] * given)
    return sum(chances)
