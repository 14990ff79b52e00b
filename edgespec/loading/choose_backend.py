"""The plan of the backend that is expected to be fastest, of all that can run a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from edgespec.backends import registry as backends
from edgespec.backends.measure_passes import pass_seconds
from edgespec.control.backend_speeds import (
    Basis,
    Choice,
    Contender,
    as_candidate,
    remember_choice,
    remembered_choice,
    select,
)
from edgespec.control.curve_cache import remember_curve, remembered_curve, was_under_load
from edgespec.control.estimated_curve import estimated_curve, read_bytes
from edgespec.control.expected_speed import RepeatingShare
from edgespec.errors import BudgetError, EdgeSpecError
from edgespec.memory.plan.plan import Candidate, Plan
from edgespec.models.file import ModelFile
from edgespec.system.child_process import can_have_children
from edgespec.system.hardware import snapshot
from edgespec.system.processor_load import is_busy
from edgespec.system.records import dataclass
from edgespec.system.size import MIB

SMALLEST_BYTES = 8 * MIB
"""Smaller models are not compared: any backend writes them faster than anyone reads."""
GPU_LEAD = 4.0
"""How many times as fast a GPU is believed to read its own memory as the processor reads ours."""
MEASURED_BYTES = 512 * MIB
"""Larger files would take more than a second or two to load and measure."""


@dataclass(frozen=True, slots=True)
class Selection:
    """A choice to be made for one file."""

    file: ModelFile
    offer: backends.Offer
    make_plan: Callable[[str], Plan]
    """The plan of a backend; raises BudgetError where none fits."""
    is_ready: Callable[[str], bool]
    """Whether all that a session on a backend needs is compiled."""
    devices: tuple[str, ...] = ()
    """Names of the devices that one of them may use: with others, it is another choice."""

    def plan(self, *, compare: bool) -> Plan:
        """The plan to carry out. With `compare`, all candidates are looked at even if a choice was
        made before.
        """
        names = self.offer.names
        if len(names) == 1 or self.file.size_bytes < SMALLEST_BYTES:
            return self._without_choice(names[0], compare=compare)
        before = remembered_choice(self.file.fingerprint, (*names, *self.devices))
        if before is not None and before.settled and before.backend in names and not compare:
            kept = self._kept(before.backend)
            if kept is not None:
                return kept
        return self._fastest(before or Choice(names[0], settled=False))

    def _without_choice(self, name: str, *, compare: bool) -> Plan:
        made = self.make_plan(name)
        reasons = self.offer.reasons or (f"backend {name}: the model is too small to compare",)
        tried = backends.may_abort(name) and not made.devices  # a survey in a process tried it
        if compare or tried:
            only = self._contender(made, measure=tried)
        if compare:
            made = replace(made, candidates=(as_candidate(only, only), *self._refused()))
        return replace(made, reasons=(*reasons, *made.reasons))

    def _kept(self, name: str) -> Plan | None:
        """The plan of an earlier choice, if one fits."""
        try:
            made = self.make_plan(name)
        except EdgeSpecError:
            return None
        why = f"backend {name}: measured to be fastest before; `edgespec plan` compares again"
        return replace(made, reasons=(why, *made.reasons))

    def _fastest(self, before: Choice) -> Plan:
        names = self.offer.names
        found: list[Contender] = []
        failed: dict[str, EdgeSpecError] = {}
        for name in names:
            try:
                found.append(self._contender(self.make_plan(name), measure=True))
            except EdgeSpecError as error:
                failed[name] = error
        if not found:
            raise failed[names[0]]
        chosen = select(found, before.backend)
        if chosen.name != (before.backend if before.settled else names[0]):
            found = [self._again(one) for one in found]  # one busy moment must not change texts
            chosen = select(found, before.backend)
        if not any(isinstance(error, BudgetError) for error in failed.values()):
            # What a small budget leaves over would be no choice.
            known = all(one.basis != "estimated" or not self._is_cheap() for one in found)
            settled = known and chosen.name in (before.backend, names[0])
            among = (*names, *self.devices)
            remember_choice(self.file.fingerprint, among, Choice(chosen.name, settled))
        rows = (
            *(as_candidate(one, chosen) for one in found),
            *(Candidate(name, str(error)) for name, error in failed.items()),
            *self._refused(),
        )
        return replace(
            chosen.plan, candidates=rows, reasons=(_reason(chosen, found), *chosen.plan.reasons)
        )

    def _contender(self, plan: Plan, *, measure: bool) -> Contender:
        share = RepeatingShare.of(self.file.fingerprint).share
        path = self.file.path
        whole = plan.streaming is None  # what is remembered is of weights in memory
        curve = remembered_curve(path, plan) if whole else None
        under_load = whole and was_under_load(path, plan)
        wanted = measure if curve is None else under_load  # that figure is taken again
        if wanted and self._can_measure(plan):
            under_load = is_busy(plan.threads)
            found = pass_seconds(path, plan)
            if found is not None:
                curve = _least(found, curve or {}) if under_load else found
                remember_curve(path, plan, curve, under_load=under_load)
        if curve is not None and 1 in curve:
            fitting = {size: s for size, s in curve.items() if size <= plan.max_nodes}
            basis: Basis = "measured under load" if under_load else "measured"
            return Contender(plan, fitting, basis, share)
        size = read_bytes(self.file.spec, self.file.tensors.values())
        far = sum(part.weights_bytes for part in plan.devices if part.kind == "gpu")
        size -= round(min(far, size) * (1.0 - 1.0 / GPU_LEAD))
        guess = estimated_curve(plan.backend, size, plan.threads, plan.max_nodes)
        if plan.streaming is not None:
            guess = plan.streaming.curve(guess)
        return Contender(plan, guess, "estimated", share)

    def _again(self, one: Contender) -> Contender:
        """Measured once more; other programs only add to a pass, so the lesser counts."""
        if one.basis == "estimated" or not self._can_measure(one.plan):
            return one
        curve = pass_seconds(self.file.path, one.plan)
        if curve is None or not set(one.curve) <= set(curve):
            return one
        least = _least(one.curve, curve)
        under_load = one.basis == "measured under load"
        remember_curve(self.file.path, one.plan, least, under_load=under_load)
        return replace(one, curve=least)

    def _is_cheap(self) -> bool:
        return self.file.size_bytes <= MEASURED_BYTES and can_have_children()

    def _can_measure(self, plan: Plan) -> bool:
        """Whether that takes a second or two, beside this process and inside the budget."""
        beside = plan.planned_bytes + snapshot().process_resident_bytes
        ready = self.is_ready(plan.backend) or not backends.compiles(plan.backend)
        whole = plan.streaming is None
        return self._is_cheap() and whole and ready and beside <= plan.budget_bytes

    def _refused(self) -> tuple[Candidate, ...]:
        return tuple(Candidate(name, why) for name, why in self.offer.refused.items())


def _least(curve: Mapping[int, float], other: Mapping[int, float]) -> dict[int, float]:
    """The lesser of two measurements of each size."""
    return {size: min(seconds, other.get(size, seconds)) for size, seconds in curve.items()}


def _reason(chosen: Contender, found: list[Contender]) -> str:
    first = f"backend {chosen.name}: {_rounded(chosen.speed)} tokens/s expected ({chosen.basis})"
    others = [
        f"{one.name} {_rounded(one.speed)} ({one.basis})"
        for one in found
        if one.name != chosen.name
    ]
    return first + "".join(f"; {other}" for other in others)


def _rounded(speed: float) -> str:
    """Three digits, never as a power of ten."""
    return f"{speed:.0f}" if speed >= 100 else f"{speed:.3g}"
