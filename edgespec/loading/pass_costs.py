"""What passes of a backend cost for a file: remembered, measured now, or estimated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace

from edgespec.backends import registry as backends
from edgespec.backends.measure_passes import pass_seconds
from edgespec.control.backend_speeds import Basis, Contender
from edgespec.control.curve_cache import remember_curve, remembered_curve, was_under_load
from edgespec.control.estimated_curve import estimated_curve, memory_speed, read_bytes
from edgespec.control.expected_speed import RepeatingShare
from edgespec.control.shape_curves import SAME_SHAPE, ShapeCurve, remember_shape, remembered_shape
from edgespec.errors import BackendError, EdgeSpecError
from edgespec.loading.layer_trial import LayerTrial
from edgespec.memory.plan.plan import Plan
from edgespec.models.file import ModelFile
from edgespec.system.child_process import can_have_children
from edgespec.system.hardware import snapshot
from edgespec.system.processor_load import is_busy
from edgespec.system.records import dataclass
from edgespec.system.size import MIB

GPU_LEAD = 4.0
"""How many times as fast a GPU is believed to read its own memory as the processor reads ours,
where that cannot be tried.
"""
WHOLE_BYTES = 512 * MIB
"""Larger files would take more than a second or two to load and measure: of these some layers are
timed.
"""


@dataclass(frozen=True, slots=True)
class PassCosts:
    """Costs of passes over one file; measuring takes processes of their own."""

    file: ModelFile
    is_ready: Callable[[str], bool]
    """Whether all that a session on a backend needs is compiled."""
    trial: LayerTrial | None = None
    """Times layers; None where nothing is to be chosen between."""

    def contender(self, plan: Plan, *, measure: bool) -> Contender:
        """A backend with what its passes cost, measured now if need be and asked for."""
        if plan.streaming is None:  # what is remembered is of weights in memory
            for known in (self._of_file, self._of_layers):
                found = known(plan, measure)
                if found is not None:
                    return found
        return self._estimated(plan)

    def again(self, one: Contender) -> Contender:
        """Measured once more; other programs only add to a pass, so the lesser counts. What was
        timed on another model was confirmed there.
        """
        if one.basis == "estimated" or one.source == SAME_SHAPE:
            return one
        under_load = one.basis == "measured under load"
        if one.source:
            with suppress(EdgeSpecError):
                curve = _least(one.curve, self._timed(one.plan))
                self._remember(one.plan, curve, under_load=under_load)
                return replace(one, curve=curve)
        elif self._can_measure(one.plan):
            with suppress(BackendError):
                found = pass_seconds(self.file.path, one.plan)
                if found is not None and set(one.curve) <= set(found):
                    least = _least(one.curve, found)
                    remember_curve(self.file.path, one.plan, least, under_load=under_load)
                    return replace(one, curve=least)
        return one

    def is_open(self, one: Contender) -> bool:
        """Whether a later start may measure what is estimated now."""
        possible = one.plan.streaming is None and can_have_children()
        possible &= self._is_small or self._has_layers
        return possible and one.basis == "estimated" and (not one.failure or one.may_retry)

    def _of_file(self, plan: Plan, measure: bool) -> Contender | None:
        """What whole passes took; None where that is not known."""
        path = self.file.path
        curve, under_load = remembered_curve(path, plan), was_under_load(path, plan)
        wanted = measure if curve is None else under_load  # that figure is taken again
        if wanted and self._can_measure(plan):
            under_load = is_busy(plan.threads)
            try:
                found = pass_seconds(path, plan)
            except BackendError as error:
                return self._untimed(plan, f"it could not be timed: {error}", under_load)
            if found is not None:
                curve = _least(found, curve or {}) if under_load else found
                remember_curve(path, plan, curve, under_load=under_load)
        if curve is None or 1 not in curve:
            return None
        return self._contender(plan, curve, "measured under load" if under_load else "measured")

    def _of_layers(self, plan: Plan, measure: bool) -> Contender | None:
        """What follows from timing some layers of this file, or one of its shape."""
        if self.trial is None or not self._has_layers:
            return None
        known = remembered_shape(self.file.shape_fingerprint, plan, backends.version(plan.backend))
        wanted = measure and (known is None or known.under_load)
        if wanted and can_have_children() and self._runs(plan) and self.trial.fits(plan):
            under_load = is_busy(plan.threads)
            try:
                curve = self._timed(plan)
            except EdgeSpecError as error:
                if known is None:
                    why = f"its layers could not be timed: {error}"
                    return self._untimed(plan, why, under_load)
            else:
                if under_load and known is not None:
                    curve = _least(curve, known.curve)
                known = self._remember(plan, curve, under_load=under_load)
        if known is None:
            return None
        basis: Basis = "measured under load" if known.under_load else "measured"
        source = known.source(self.file.fingerprint)
        return replace(self._contender(plan, known.curve, basis), source=source)

    def _timed(self, plan: Plan) -> dict[int, float]:
        assert self.trial is not None
        return self.trial.curve(plan)

    def _remember(self, plan: Plan, curve: Mapping[int, float], *, under_load: bool) -> ShapeCurve:
        assert self.trial is not None
        found = ShapeCurve(curve, self.trial.layers, self.file.fingerprint.hex(), under_load)
        remember_shape(self.file.shape_fingerprint, plan, backends.version(plan.backend), found)
        return found

    def _untimed(self, plan: Plan, why: str, under_load: bool) -> Contender:
        told = f"{plan.label} is estimated, as {why}"
        return replace(self._estimated(plan), failure=told, may_retry=under_load)

    def _estimated(self, plan: Plan) -> Contender:
        size = read_bytes(self.file.spec, self.file.tensors.values())
        gpus = (part for part in plan.devices if part.kind == "gpu" and not part.shared)
        far = sum(part.read_bytes for part in gpus)
        size -= round(min(far, size) * (1.0 - 1.0 / GPU_LEAD))
        guess = estimated_curve(plan.backend, size, plan.max_nodes, memory_speed(plan))
        if plan.streaming is not None:
            guess = plan.streaming.curve(guess)
        return self._contender(plan, guess, "estimated")

    def _contender(self, plan: Plan, curve: Mapping[int, float], basis: Basis) -> Contender:
        fitting = {size: s for size, s in curve.items() if size <= plan.max_nodes}
        return Contender(plan, fitting, basis, RepeatingShare.of(self.file.fingerprint).share)

    @property
    def _is_small(self) -> bool:
        return self.file.size_bytes <= WHOLE_BYTES

    @property
    def _has_layers(self) -> bool:
        """Whether layers of it can stand for the whole."""
        return not self._is_small and self.file.format == "gguf"

    def _runs(self, plan: Plan) -> bool:
        """Whether nothing has to be compiled first."""
        return self.is_ready(plan.backend) or not backends.compiles(plan.backend)

    def _can_measure(self, plan: Plan) -> bool:
        """Whether whole passes take a second or two, beside this process and inside the budget."""
        beside = plan.planned_bytes + snapshot().process_resident_bytes
        fits = plan.streaming is None and beside <= plan.budget_bytes
        return self._is_small and can_have_children() and self._runs(plan) and fits


def _least(curve: Mapping[int, float], other: Mapping[int, float]) -> dict[int, float]:
    """The lesser of two measurements of each size."""
    return {size: min(seconds, other.get(size, seconds)) for size, seconds in curve.items()}
