"""Who is written where and when: slots, idle sequences, and the watch over the budget.

One reply at a time, or a batch that shares its passes: a prompt that waits gets the slot whose
sequence it shares most with, the rest of it is prefilled, and all that run decode together.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from functools import cache

from edgespec.backends.base import Target
from edgespec.backends.sequence import KvSequence
from edgespec.control.controller import Controller
from edgespec.control.cost_curve import CostCurve
from edgespec.control.expected_speed import RepeatingShare
from edgespec.drafting.market.market import Market
from edgespec.engine.batch import Batch, Steps
from edgespec.engine.decode import decode
from edgespec.engine.generation import Generation
from edgespec.engine.idle_sequences import IdleSequences, KvTraffic
from edgespec.engine.slot import CachedSequence, Slot
from edgespec.errors import BudgetError, EdgeSpecError, OptionError
from edgespec.memory.kv import prompt_cache
from edgespec.memory.kv.spill import spill_folder
from edgespec.memory.plan.plan import Plan
from edgespec.memory.watch import Watch
from edgespec.models.file import ModelFile
from edgespec.models.reasoning import Piece
from edgespec.system.resident_memory import release_free_memory
from edgespec.system.size import format_size

Progress = Callable[[str, int, int], None]
"""Called with (stage, done, total): stages are "load", "kernels", "measure" and "prefill"."""


class Scheduler:
    """Writes replies with one open model, one stream or batch at a time."""

    def __init__(
        self,
        file: ModelFile,
        plan: Plan,
        target: Target,
        curve: dict[int, float],
        make_market: Callable[[float], Market],
        progress: Progress | None = None,
    ) -> None:
        self.file, self.plan, self.target = file, plan, target
        self.controller = Controller(CostCurve(curve, plan.max_nodes), plan.max_nodes)
        self.controller.curve.price_experts(target)
        self._curve = curve
        self._progress = progress
        self._make_market = make_market
        self._busy = threading.Lock()
        self.slots = [self._open_slot(target.own)]
        """They keep what they hold until another reply needs the place."""
        self.idle = IdleSequences(target, spill_folder(), cache(self.kv_kind))
        self.watch = Watch(plan, self._shrink)
        self._repeating = RepeatingShare.of(file.fingerprint)
        self._closed = False

    def run(self, batch: Batch) -> Steps:
        """The life of a batch: prefill what is new, decode, count; yields each step's pieces.

        Raises ContextOverflowError when a prompt does not fit and nothing may be dropped,
        BudgetError when the process comes to hold more than its budget.
        """
        with self.alone():
            steps = decode(batch.running, self.controller)
            try:
                self._arrive(batch)
                while not batch.is_over:
                    if batch.waiting:
                        self._admit(batch)
                    grown = [
                        (one, piece)
                        for one, new in zip(tuple(batch.running), next(steps), strict=True)
                        for piece in self._push(batch, one, new)
                    ]
                    self.watch.check()
                    yield grown
            finally:
                with suppress(ValueError):  # interrupted inside a step: the generator is ending
                    steps.close()
                for one in batch.open:
                    self.end(batch, one)
                if len(batch.generations) == 1:
                    self._count(batch.generations[0])

    def _arrive(self, batch: Batch) -> None:
        """Let prompts fit, and the sequence that the first of them goes on with be there."""
        for one in batch.waiting:
            one.fit(self.plan, self.file.spec.context_length)
        if batch.waiting:
            first = batch.waiting[0]
            first.arrive()
            self.idle.switch(self.slots[0], first.owner, first.seen_ids)

    def _push(self, batch: Batch, one: Generation, new: list[int]) -> list[Piece]:
        """Make text of a step's tokens, one piece at least; a reply that is complete ends."""
        pieces = one.push(new)
        if one.is_over:
            self.end(batch, one)
        return pieces or [Piece("")]

    def _count(self, generation: Generation) -> None:
        """Remember how well a reply that was written alone could be guessed."""
        if generation.request.speculation:
            counts = generation.counts
            self._repeating.learn(self._curve, counts.output_tokens, counts.steps)

    def _admit(self, batch: Batch) -> None:
        """Give slots to those that wait, as far as there are any."""
        count = min(batch.most, len(batch.waiting) + len(batch.running))
        taken = [one.slot for one in batch.running]
        free = [slot for slot in self.take_slots(count) if all(slot is not own for own in taken)]
        while batch.waiting and free:
            one = batch.waiting[0]
            slot = max(free, key=lambda slot: slot.common(one.seen_ids))
            self.begin(one, slot)
            batch.running.append(batch.waiting.popleft())
            free = [other for other in free if other is not slot]

    def begin(self, generation: Generation, slot: Slot) -> None:
        """Prefill a reply's prompt in a slot, as far as no sequence in memory begins like it."""
        prefix, ids = generation.request.prefix, generation.seen_ids
        if prefix is not None:
            slot.sequence.truncate(slot.common(ids))
            self.idle.offer(prompt_cache.read(prefix), ids, slot.sequence.length)
        others = self.cached_besides(slot)
        generation.begin(slot, self.file, self.plan.max_nodes, others, self.prefilled)

    def end(self, batch: Batch, generation: Generation) -> None:
        """End a reply where it stands; one that has ended stays as it is."""
        if generation in batch.running:
            batch.running.remove(generation)
            generation.slot.settle()
        elif generation in batch.waiting:
            batch.waiting.remove(generation)
        else:
            return
        generation.end(self.plan, self.idle.traffic)
        batch.ended.append(generation)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """While one stream or batch is written, another is an error."""
        if self._closed:
            raise EdgeSpecError("this engine is closed; open another with edgespec.load")
        if not self._busy.acquire(blocking=False):
            raise EdgeSpecError(
                "another reply of this engine is still being written; finish or close that stream"
            )
        try:
            self.idle.traffic = KvTraffic()
            with self.watch:
                yield
        except MemoryError:
            raise BudgetError(
                "the system refused memory while a reply was written, so the request was ended; "
                f"planned were {format_size(self.plan.planned_bytes)} "
                f"({self.plan.footprint.summary()}); close other programs, or load with less "
                "--memory"
            ) from None
        finally:
            self.idle.sweep(self.slots[0])
            self._busy.release()

    def forget(self, owner: Hashable) -> None:
        """Give back what is kept of an owner's sequence: now, or when the reply that is being
        written ends.
        """
        self.idle.discard(owner)
        if self._busy.acquire(blocking=False):
            try:
                if not self._closed:
                    self.idle.sweep(self.slots[0])
            finally:
                self._busy.release()

    def check_batch(self, most: int | None) -> int:
        """How many replies to write at once; raises OptionError for more than planned."""
        planned = self.plan.sequences
        if most is not None and not 1 <= most <= planned:
            raise OptionError(
                f"max_batch is {most}, and this engine was loaded for {planned} at once; load "
                f"with sequences={most}, or take 1 to {planned}"
            )
        return planned if most is None else most

    def cached_besides(self, slot: Slot) -> list[CachedSequence]:
        """Every other sequence that is in memory, for a prompt to begin like."""
        others = [other for other in self.slots if other is not slot]
        return [*others, *self.idle.texts()]

    def take_slots(self, count: int) -> list[Slot]:
        """The first slots, opened where there are fewer; they keep their sequences."""
        while len(self.slots) < count:
            self.slots.append(self._open_slot(self.target.open_sequence()))
        return self.slots[:count]

    def _open_slot(self, sequence: KvSequence) -> Slot:
        market = self._make_market(self._curve[1])
        market.attach(sequence, self.controller.curve.table)
        return Slot(sequence, market)

    def prefilled(self, done: int, total: int) -> None:
        """Some of a prompt is prefilled."""
        self.watch.check()
        if self._progress is not None:
            self._progress("prefill", done, total)

    def _shrink(self) -> int:
        """Spill idle conversations, and where that is not enough let drafters shrink their stores;
        returns how many bytes that gave back.
        """
        freed = self.idle.spill()
        if freed:
            release_free_memory()
        if not freed or self.watch.is_over():
            freed += sum(slot.market.shrink() for slot in self.slots)
        return freed

    def kv_kind(self) -> bytes:
        """What makes keys and values of this engine worth nothing to another; 32 bytes."""
        facts = (self.file.content_fingerprint(), self.target.kv_kind)
        return hashlib.blake2b(repr(facts).encode(), digest_size=32).digest()

    def close(self) -> bool:
        """Forget all sequences and keep what drafters have learnt; False when that was done."""
        if self._closed:
            return False
        self._closed = True
        self.idle.close()
        for slot in self.slots:
            slot.market.close()
            slot.sequence.close()
        self._repeating.save()
        self.target.close()
        return True
