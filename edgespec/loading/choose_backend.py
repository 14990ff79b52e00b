"""The plan of the backend that is expected to be fastest, of all that can run a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from edgespec.backends import registry as backends
from edgespec.control.backend_speeds import (
    Choice,
    Contender,
    as_candidate,
    remember_choice,
    remembered_choice,
    select,
)
from edgespec.errors import BudgetError, EdgeSpecError
from edgespec.loading.layer_trial import LayerTrial
from edgespec.loading.pass_costs import PassCosts
from edgespec.memory.plan.plan import Candidate, Plan
from edgespec.models.file import ModelFile
from edgespec.system.records import dataclass
from edgespec.system.size import MIB

SMALLEST_BYTES = 8 * MIB
"""Smaller models are not compared: any backend writes them faster than anyone reads."""


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
        far = bool(made.devices)
        tried = backends.may_abort(name) and not far  # a survey in a process tried it
        if compare or tried:
            with LayerTrial(self.file) as trial:
                costs = PassCosts(self.file, self.is_ready, trial if far else None)
                only = costs.contender(made, measure=tried or far)
        if compare:
            made = replace(made, candidates=(as_candidate(only, only), *self._refused()))
            reasons = (*reasons, *filter(None, [only.failure]))
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
        with LayerTrial(self.file) as trial:
            return self._fastest_by(PassCosts(self.file, self.is_ready, trial), before)

    def _fastest_by(self, costs: PassCosts, before: Choice) -> Plan:
        names = self.offer.names
        plans: dict[str, Plan] = {}
        found: list[Contender] = []
        failed: dict[str, EdgeSpecError] = {}
        for name in reversed(names):  # the first counts what planning the others has imported
            with _noted(failed, name):
                plans[name] = self.make_plan(name)
        for name in filter(plans.__contains__, names):
            with _noted(failed, name):
                found.append(costs.contender(plans[name], measure=True))
        if not found:
            raise failed[names[0]]
        chosen = select(found, before.backend)
        if chosen.name != (before.backend if before.settled else names[0]):
            found = [costs.again(one) for one in found]  # one busy moment must not change texts
            chosen = select(found, before.backend)
        if not any(isinstance(error, BudgetError) for error in failed.values()):
            # What a small budget leaves over would be no choice.
            known = not any(map(costs.is_open, found))
            settled = known and chosen.name in (before.backend, names[0])
            among = (*names, *self.devices)
            remember_choice(self.file.fingerprint, among, Choice(chosen.name, settled))
        rows = (
            *(as_candidate(one, chosen) for one in found),
            *(Candidate(name, str(failed[name])) for name in names if name in failed),
            *self._refused(),
        )
        reasons = (_reason(chosen, found), *chosen.plan.reasons)
        made = replace(chosen.plan, candidates=rows, reasons=reasons)
        return made.with_notes(*(one.failure for one in found))

    def _refused(self) -> tuple[Candidate, ...]:
        return tuple(Candidate(name, why) for name, why in self.offer.refused.items())


@contextmanager
def _noted(failed: dict[str, EdgeSpecError], name: str) -> Iterator[None]:
    """Keep what goes wrong with one backend, so that the others are looked at."""
    try:
        yield
    except EdgeSpecError as error:
        failed[name] = error


def _reason(chosen: Contender, found: list[Contender]) -> str:
    rate = _rounded(chosen.speed)
    first = f"backend {chosen.plan.label}: {rate} tokens/s expected ({chosen.told_basis})"
    others = [
        f"{one.plan.label} {_rounded(one.speed)} ({one.told_basis})"
        for one in found
        if one.name != chosen.name
    ]
    return first + "".join(f"; {other}" for other in others)


def _rounded(speed: float) -> str:
    """Three digits, never as a power of ten."""
    return f"{speed:.0f}" if speed >= 100 else f"{speed:.3g}"
