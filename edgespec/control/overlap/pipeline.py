"""A thread of its own for a draft model: it goes on drafting while the target verifies.

"PipeInfer: Accelerating LLM Inference using Asynchronous Pipelined Speculation" and "Distributed
Speculative Inference (DSI)": drafting never waits for a verdict, and what a verdict makes
impossible is dropped, here between two tokens of the drafter. Whoever verifies takes what is ready.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from edgespec.drafting.model.guesses import LEAST, MOST, Guess, Guesses
from edgespec.drafting.model.model_drafter import Draw
from edgespec.drafting.model.small_model import MOST_NODES, DraftModelDrafter
from edgespec.drafting.tree import DraftTree
from edgespec.system.threads import start_thread

_RATE, _RATE_DOWN = 0.05, 0.5
"""The price of a draft follows slowly up, and quickly down, as serial drafting's does."""
_LARGEST_SURPRISE = 2.0
_GUESS_BYTES = 512
LIKELY = 0.5
"""A draft is still begun shortly before a verdict if it is as likely to be of use."""
Job = tuple[list[Guess], list[list[int]]]
"""Nodes to look behind, and the tokens from the drafter's text to each."""


class Pipeline:
    """The drafter, the tree of its guesses, and the thread that grows it; started by its first use.

    All but the thread's own work happens under one lock, and nobody waits but on its condition.
    Between `go_on` and `rest` the drafter belongs to the thread.
    """

    def __init__(
        self,
        drafter: DraftModelDrafter,
        start: Callable[[], object] = lambda: None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`start` is called first in the thread, such as to choose its cores."""
        self._drafter = drafter
        self._start = start
        self._clock = clock
        self._changed = threading.Condition()
        self._guesses = Guesses()
        self._news: list[int] = []
        """Tokens of the text that the drafter has not been told."""
        self._lead: list[int] = []
        """Tokens that are known to be the text's next, before it was said to have grown."""
        self._running = self._closed = False
        self._busy: list[Guess] = []
        self._awaited = False
        """Whether somebody waits for the next draft."""
        self.least = LEAST
        """How likely a node must be to be looked behind while the target computes."""
        self.verdict_at = 0.0
        """When the next verdict is expected; a draft that would come later had better be likely."""
        self.drafts = 0
        """Passes of the draft model so far."""
        self._since = 0.0
        self.draft_s = 0.0
        """What a draft takes in the thread."""
        self.failure: Exception | None = None
        self.dropped = 0
        """Drafts that came too late to matter."""
        self._thread: threading.Thread | None = None

    def go_on(self) -> None:
        """Let the thread draft."""
        with self._changed:
            if not self._is_alive:
                self._busy = []
                thread = threading.Thread(target=self._work, name="edgespec-drafter", daemon=True)
                start_thread(thread)
                self._thread = thread
            self._running = True
            self._changed.notify_all()

    @property
    def _is_alive(self) -> bool:
        """Whether there is a thread at work: none survives a fork."""
        return self._thread is not None and self._thread.is_alive() and self.failure is None

    def pause(self) -> None:
        """Let the thread end what it is at, and nothing more."""
        with self._changed:
            self._running = False

    def rest(self) -> DraftModelDrafter:
        """The drafter, told of the whole text, and left alone by the thread until `go_on`."""
        with self._changed:
            self._running = False
            while self._busy and self._is_alive:
                self._changed.wait()
            self._busy = []
            self._lead.clear()
            self._tell()
        return self._drafter

    def close(self) -> None:
        """End the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def reset(self, tokens: Sequence[int]) -> None:
        """Start over with these tokens as the text so far."""
        drafter = self.rest()
        drafter.reset(tokens)
        self._guesses = Guesses(int(tokens[-1]))

    def extend(self, tokens: Sequence[int]) -> None:
        """The text grew by these tokens."""
        with self._changed:
            self._news += tokens
            known = min(len(self._lead), len(tokens))
            if self._lead[:known] != [*tokens[:known]]:
                known = 0
                self._lead.clear()
            del self._lead[:known]
            self._advance(tokens[known:])

    def verdict(self, tokens: Sequence[int]) -> None:
        """The text is about to grow by these tokens; drafts for another are dropped now."""
        with self._changed:
            self._lead += tokens
            self._advance(tokens)
            self._changed.notify_all()

    def _advance(self, tokens: Sequence[int]) -> None:
        for draw, token in self._guesses.advance(tokens):
            self._drafter.learn(draw, token)

    def wait(self, pays: Callable[[float, float, int], bool]) -> bool:
        """Wait for drafts while that pays: asked with how likely the next draft's place in the text
        is, in how many seconds it is expected, and how many there are. Returns whether it waited.
        """
        waited = False
        with self._changed:
            while self._running and self.failure is None:
                coming = self._coming()
                if coming is None or not pays(*coming, self._guesses.size):
                    break
                waited = self._awaited = True
                self._changed.notify_all()
                self._changed.wait()
            self._awaited = False
        return waited

    def _coming(self) -> tuple[float, float] | None:
        """How likely the place of the next draft is, and the seconds until it is there."""
        left_s, chance = 0.0, 0.0
        if self._busy:
            left_s = max(self.draft_s - (self._clock() - self._since), 0.0)
            chance = max(map(self._guesses.chance, self._busy))
        if chance > 0.0:
            return chance, left_s
        nodes = self._guesses.next()
        return (self._guesses.chance(nodes[0]), left_s + self.draft_s) if nodes else None

    def tree(self, max_nodes: int, source: int) -> DraftTree:
        """What is ready, surest first."""
        with self._changed:
            return self._guesses.tree(max_nodes, source)

    def _work(self) -> None:
        """The thread's life."""
        try:
            self._start()
            while (job := self._next_job()) is not None:
                self._finish(job[0], self._drafter.look(job[1]))
        except Exception as error:  # told by whoever asks for drafts next
            with self._changed:
                self.failure, self._busy = error, []
                self._changed.notify_all()

    def _next_job(self) -> Job | None:
        """Wait for something to draft; None when it is all over."""
        with self._changed:
            while not self._closed:
                job = self._take_job() if self._running else None
                if job is not None:
                    return job
                self._changed.wait()
        return None

    def _take_job(self) -> Job | None:
        """The nodes to look behind now, and their paths; None when none is worth it."""
        alone = self._awaited  # then nothing is taken from the target, and one draft is enough
        nodes = self._guesses.next(*((0, LEAST) if alone else (MOST_NODES - 1, self.least)))
        if not nodes:
            return None
        late = self._clock() + self.draft_s > self.verdict_at
        if late and not alone and self._guesses.chance(nodes[0]) < LIKELY:
            return None
        for node in nodes:
            node.asked = True
        self._busy, self._since = nodes, self._clock()
        self._tell()
        return nodes, [self._lead + self._guesses.path(node) for node in nodes]

    def _finish(self, nodes: list[Guess], draws: Sequence[Draw | None]) -> None:
        with self._changed:
            self._observe_price(self._clock() - self._since)
            self._busy = []
            self.drafts += 1
            for node, draw in zip(nodes, draws, strict=True):
                if draw is not None and self._guesses.holds(node):
                    self._guesses.grow(node, draw, *self._drafter.chances(draw))
                else:
                    self.dropped += 1
            self._changed.notify_all()

    def _observe_price(self, seconds: float) -> None:
        known = self.draft_s or seconds
        rate = _RATE_DOWN if seconds < known else _RATE
        self.draft_s = known + rate * (min(seconds, _LARGEST_SURPRISE * known) - known)

    @property
    def size_bytes(self) -> int:
        """About what the guesses hold."""
        return MOST * _GUESS_BYTES

    def _tell(self) -> None:
        """Tell the drafter what is new of the text."""
        if self._news:
            self._drafter.extend(self._news)
            self._news.clear()
