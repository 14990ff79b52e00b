"""Who is written where and when: slots, idle sequences, and the watch over the budget.

A prompt that waits gets the slot whose sequence it shares most with, the rest of it is prefilled,
and all that run decode together. One thread at a time is in here: see `edgespec.engine.line`.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache

from edgespec.backends.base import Target
from edgespec.backends.sequence import KvSequence
from edgespec.control.controller import Controller
from edgespec.control.cost_curve import CostCurve
from edgespec.control.curve_cache import remember_streamed
from edgespec.control.expected_speed import RepeatingShare
from edgespec.drafting.market.market import Market
from edgespec.engine.decode import decode
from edgespec.engine.generation import Cancelled, Generation
from edgespec.engine.idle_sequences import IdleSequences
from edgespec.engine.kept_prompts import KeptPrompts
from edgespec.engine.slot import CachedSequence, Slot
from edgespec.errors import BudgetError, EdgeSpecError
from edgespec.memory.kv import saved_prefixes
from edgespec.memory.kv.spill import spill_folder
from edgespec.memory.plan.plan import Plan
from edgespec.memory.watch import Watch
from edgespec.models.file import ModelFile
from edgespec.system.energy import EnergyMeter, Reading
from edgespec.system.listening import listener
from edgespec.system.resident_memory import release_free_memory
from edgespec.system.size import format_size

Progress = Callable[[str, int, int], None]
"""Called with (stage, done, total): stages are "load", "kernels", "measure" and "prefill"."""


class Scheduler:
    """Writes replies with one open model, as many at once as were planned for."""

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
        self.waiting: deque[Generation] = deque()
        self.running: list[Generation] = []
        self.holding = False
        """Nobody is admitted while this is set."""
        self.slots = [self._open_slot(target.own)]
        """They keep what they hold until another reply needs the place."""
        self.idle = IdleSequences(target, spill_folder(), cache(self.kv_kind))
        self._prompts = KeptPrompts(file, self.idle, plan.prompt_cache_bytes)
        self.watch = Watch(plan, self._shrink)
        self._meter = EnergyMeter()
        self._readings: dict[Generation, Reading] = {}
        """Of the replies that are written, when they began."""
        self._repeating = RepeatingShare.of(file.fingerprint)
        self._plain_pass_s = 0.0
        """Of a pass over one node, as the last reply found it; 0 before one."""

    def run(self) -> Generator[None, None, None]:
        """Write until nobody waits and nobody is written: prefill what is new, decode, count;
        yields after each step.

        What goes wrong with one prompt is that reply's error; what goes wrong in a pass is the
        error of all that shared it.
        """
        failed = list(self.waiting)
        try:
            with self.watched():
                failed = []
                steps = decode(self.running, self.controller)
                try:
                    while self.running or self.waiting:
                        self.reap()
                        if self.waiting:
                            self._admit()
                        if self.running:
                            news = next(steps)
                            for one, new in zip(tuple(self.running), news, strict=True):
                                self._push(one, new)
                            self.watch.check()
                        if self.running or self.waiting:
                            yield
                finally:
                    with suppress(ValueError):  # interrupted inside a step: it is ending
                        steps.close()
                    failed = list(self.running)
                    self._end_all(failed)
        except Exception as error:
            self._fail(failed, error)
        except BaseException:
            self._fail(failed, EdgeSpecError("the reply was interrupted; ask for it again"))
            raise

    def _fail(self, failed: list[Generation], error: Exception) -> None:
        for one in failed:
            one.error = error
            self.end(one)
            one.tell()

    def _push(self, one: Generation, new: list[int]) -> None:
        """Make text of a step's tokens; a reply that is complete ends."""
        try:
            one.push(new)
        except Cancelled:
            one.finish_reason = "cancelled"
            self.end(one)
            return
        if one.is_over:
            self.end(one)
        else:
            one.tell()

    def _count(self, generation: Generation) -> None:
        """Remember how well a reply that was written alone could be guessed."""
        counts = generation.counts
        if counts.steps:
            known = self.controller.curve.seconds(1)
            self._plain_pass_s = known if counts.drafted else counts.decode_s / counts.steps
        if generation.request.speculation:
            self._repeating.learn(self._curve, counts.output_tokens, counts.steps)

    def reap(self) -> None:
        """End the replies that nobody wants any more."""
        gone = [one for one in (*self.running, *self.waiting) if one.cancelled]
        if gone:  # looked at before every step
            self._end_all(gone)

    def _admit(self) -> None:
        """Give slots to those that wait, as far as there are any."""
        count = min(self.plan.sequences, len(self.waiting) + len(self.running))
        taken = [one.slot for one in self.running]
        free = [slot for slot in self.take_slots(count) if all(slot is not own for own in taken)]
        while self.waiting and free and not self.holding:
            one = self.waiting[0]
            slot = max(free, key=lambda slot: (slot.owner == one.owner, slot.common(one.seen_ids)))
            try:
                self.idle.traffic = one.traffic
                self.idle.switch(slot, one.owner, one.seen_ids)
                self.begin(one, slot)
            except (Cancelled, EdgeSpecError) as error:
                if isinstance(error, EdgeSpecError):
                    one.error = error
                self.end(one)
                continue
            except BaseException as error:
                if isinstance(error, Exception):
                    one.error = _refusal(self.plan) if isinstance(error, MemoryError) else error
                self.end(one)
                raise
            one.shared |= bool(self.running)
            for other in self.running:
                other.shared = True
            self.running.append(self.waiting.popleft())
            free = [other for other in free if other is not slot]

    def begin(self, generation: Generation, slot: Slot) -> None:
        """Prefill a reply's prompt in a slot, as far as no sequence in memory begins like it."""

        def progress(done: int, total: int) -> None:
            if generation.cancelled:
                raise Cancelled
            self.prefilled(done, total)

        prefix, ids = generation.request.prefix, generation.seen_ids
        if prefix is not None:
            slot.sequence.truncate(slot.common(ids))
            self.idle.offer(saved_prefixes.read(prefix), ids, slot.sequence.length)
        others = self.cached_besides(slot)
        self._prompts.recall(slot, ids, others)
        self._readings[generation] = self._meter.read()
        generation.begin(slot, self.file, self.plan.max_nodes, others, progress)

    def _joules_per_token(self, generation: Generation) -> float | None:
        """What a reply took for each of its tokens, where the system tells."""
        before, count = self._readings.pop(generation, None), generation.counts.output_tokens
        joules = None if before is None else self._meter.joules_since(before)
        return joules / count if joules is not None and count else None

    def _end_all(self, replies: Iterable[Generation]) -> None:
        """End each, also where ending another one is interrupted."""
        with ExitStack() as ending:
            for one in replies:
                ending.callback(self.end, one)

    def end(self, generation: Generation) -> None:
        """End a reply where it stands; one that has ended stays as it is.

        Whatever settling its slot raises, the reply has ended, and its notes tell who reads it.
        """
        if generation in self.running:
            self.running.remove(generation)
            try:
                generation.slot.settle()
                if generation.error is None:
                    self._prompts.keep(generation.slot, generation.traffic, generation.prefill_s)
            except Exception as error:
                why = "the system refused memory" if isinstance(error, MemoryError) else error
                generation.traffic.note(f"what this reply leaves is not remembered: {why}")
            finally:
                self._finish(generation)
        elif generation in self.waiting:
            self.waiting.remove(generation)
            self._finish(generation)
        elif generation.stats is None:
            self._finish(generation)

    def _finish(self, generation: Generation) -> None:
        """Count what a reply was, and wake who reads it."""
        began = generation.began
        generation.end(self.plan, self._joules_per_token(generation))
        stats = generation.stats
        if log := listener(__name__):
            log.debug(
                "reply ended: %s, %d prompt tokens, %d written, %.1f tokens/s",
                generation.error or generation.finish_reason,
                stats.prompt_tokens if stats else 0,
                len(generation.token_ids),
                stats.tokens_per_second if stats else 0.0,
            )
        if began and not generation.shared:
            self._count(generation)
        generation.tell()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """While anything is written: memory is watched, and what it was refused is said."""
        try:
            with self.watch:
                yield
        except MemoryError:
            raise _refusal(self.plan) from None
        finally:
            self.sweep()

    def sweep(self) -> None:
        """Forget the sequences of owners that have ended; those that are written stay."""
        self.idle.sweep(self.slots, [one.slot for one in self.running])

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

    def close(self) -> None:
        """Forget all sequences and keep what drafters have learnt."""
        self.idle.close()
        for slot in self.slots:
            slot.market.close()
            slot.sequence.close()
        self._repeating.save()
        if self.plan.streaming is not None and self._plain_pass_s:
            remember_streamed(self.file.path, self.plan, self._plain_pass_s)
        self.target.close()


def _refusal(plan: Plan) -> BudgetError:
    return BudgetError(
        "the system refused memory while a reply was written, so the request was ended; "
        f"planned were {format_size(plan.planned_bytes)} "
        f"({plan.footprint.summary()}); close other programs, or load with less "
        "--memory"
    )
