"""Which backend to take: the one expected to write fastest, unless the difference is small.

A backend rounds in its own way, so a choice that changed from run to run would change texts. So the
backend that was taken before stays until another is expected to be `MEASURED_LEAD` times as fast,
or `ESTIMATED_LEAD` where one of the two was never measured.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

from edgespec.control.expected_speed import expected_speed, plain_speed
from edgespec.memory.plan.plan import Candidate, Plan
from edgespec.system.disk_cache import fact_path, keep_json, kept_json
from edgespec.system.hardware import hardware
from edgespec.system.records import dataclass
from edgespec.version import __version__

MEASURED_LEAD = 1.05
ESTIMATED_LEAD = 1.25
LEAST_CONTEXT = 0.5
"""A plan with less than this part of another's context is no plan for the same job."""
Basis = Literal["measured", "measured under load", "estimated"]
"""Under load, other programs took a part of the time."""


def on_gpus(backend: str, *, keeps_experts: bool = False) -> str:
    """The name of a backend with layers on GPUs, where it is compared with that backend alone."""
    return f"{backend} on GPUs{' without experts' * keeps_experts}"


@dataclass(frozen=True, slots=True)
class Contender:
    """A backend with a plan that fits, and what its passes cost."""

    plan: Plan
    curve: Mapping[int, float]
    """Seconds of a pass by number of nodes."""
    basis: Basis
    share: float
    """Of the text that is expected to repeat."""
    source: str = ""
    """Where the curve is from, if not from passes over the whole file."""
    failure: str = ""
    """Why it could not be measured, a sentence, "" where nobody tried."""
    may_retry: bool = False
    """Whether that was while other programs were busy."""

    @property
    def name(self) -> str:
        """What a choice is remembered by."""
        name, apart = self.plan.backend, self.plan.keeps_experts
        return on_gpus(name, keeps_experts=apart) if self.plan.devices else name

    @property
    def is_guess(self) -> bool:
        """Whether a GPU has the processor's memory and nobody measured what it makes of it."""
        return self.basis == "estimated" and any(part.shared for part in self.plan.devices)

    @property
    def told_basis(self) -> str:
        """How the curve is known, in words."""
        if not self.source:
            return self.basis
        return self.source + self.basis.removeprefix("measured")

    @property
    def speed(self) -> float:
        """Expected tokens a second, speculation included."""
        return expected_speed(self.curve, self.share)

    def lead_over(self, other: Contender) -> float:
        """How many times as fast it must be to be taken in the other's place."""
        both = self.basis == other.basis == "measured"
        return MEASURED_LEAD if both else ESTIMATED_LEAD

    def is_too_short(self, others: Sequence[Contender]) -> bool:
        most = max(other.plan.context_length for other in others)
        return self.plan.context_length < LEAST_CONTEXT * most


def select(contenders: Sequence[Contender], before: str) -> Contender:
    """The contender to take, where `before` is the backend that was taken last."""
    able = [one for one in contenders if not one.is_too_short(contenders)]
    able = [one for one in able if not one.failure] or able
    able = [one for one in able if not one.is_guess] or able
    chosen = next((one for one in able if one.name == before), able[0])
    for one in sorted(able, key=lambda one: -one.speed):
        if one.speed >= one.lead_over(chosen) * chosen.speed:
            return one
    return chosen


def as_candidate(one: Contender, chosen: Contender) -> Candidate:
    """A contender as the plan shows it."""
    return Candidate(
        backend=one.plan.label,
        verdict=_verdict(one, chosen),
        basis=one.told_basis,
        tokens_per_second=one.speed,
        plain_tokens_per_second=plain_speed(one.curve),
        pass_ms=tuple((size, 1e3 * seconds) for size, seconds in sorted(one.curve.items())),
        planned_bytes=one.plan.planned_bytes,
        context_length=one.plan.context_length,
    )


def _verdict(one: Contender, chosen: Contender) -> str:
    if one is chosen:
        return "chosen"
    if one.is_too_short((one, chosen)):
        return f"only {one.plan.context_length} tokens of context fit"
    if one.failure:
        return "could not be timed"
    if one.is_guess:
        return "not measured, and its memory is no faster than the processor's"
    ratio = one.speed / chosen.speed
    if ratio < 1.0:
        return f"{ratio:.2f} times as fast"
    needed = one.lead_over(chosen)
    return f"{ratio:.2f} times as fast, and {needed} is asked for to change"


@dataclass(frozen=True, slots=True)
class Choice:
    """What was taken for a model on this machine, kept in the cache folder."""

    backend: str
    settled: bool
    """Nothing is left to be measured or confirmed, so it need not be looked at again."""


def remembered_choice(model: bytes, names: Sequence[str]) -> Choice | None:
    """The last choice for the model with this fingerprint; not settled if other backends stood for
    election, or another version chose.
    """
    values = kept_json(_place(model))
    with suppress(KeyError, TypeError):
        same = values["among"] == list(names) and values["version"] == __version__
        return Choice(str(values["backend"]), bool(values["settled"]) and same)
    return None


def remember_choice(model: bytes, names: Sequence[str], choice: Choice) -> None:
    """Keep what was taken."""
    values = {
        "backend": choice.backend,
        "settled": choice.settled,
        "among": list(names),
        "version": __version__,
    }
    keep_json(_place(model), values)


def _place(model: bytes) -> Path:
    cpu = hardware()
    return fact_path("choices", model, cpu.cpu_name, cpu.isa, os.environ.get("EDGESPEC_ISA"))
