"""Cost curves by the shape of a model, on disk: what was timed on one serves all of its family."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from edgespec.control.curve_cache import circumstances, curve_of
from edgespec.memory.plan.plan import Plan
from edgespec.system.disk_cache import fact_path, keep_json, kept_json
from edgespec.system.records import dataclass

SAME_SHAPE = "remembered from the same shape"
_MOST_LAYERS = 1 << 16


@dataclass(frozen=True, slots=True)
class ShapeCurve:
    """What passes over models of a shape cost, from timing some layers of one of them."""

    curve: Mapping[int, float]
    """Seconds by number of nodes."""
    layers: int
    """How many were timed."""
    model: str
    """The fingerprint of the model whose layers they were, in hexadecimal."""
    under_load: bool = False
    """Other programs were busy meanwhile."""

    def source(self, model: bytes) -> str:
        """Where it is from, for a plan of the model with this fingerprint."""
        if model.hex() != self.model:
            return SAME_SHAPE
        return f"measured on {self.layers} layers of this file"


def remembered_shape(shape: bytes, plan: Plan, version: str) -> ShapeCurve | None:
    """What was timed for this shape with this plan's settings and version of its backend."""
    values = kept_json(_place(shape, plan, version))
    with suppress(KeyError, TypeError):
        curve, layers = curve_of(values["curve"]), values["layers"]
        known = isinstance(layers, int) and 0 < layers < _MOST_LAYERS
        if curve is not None and 1 in curve and known:
            under_load = values["under_load"] is True
            return ShapeCurve(curve, layers, str(values["model"]), under_load)
    return None


def remember_shape(shape: bytes, plan: Plan, version: str, found: ShapeCurve) -> None:
    """Keep what was timed."""
    values = {
        "curve": dict(found.curve),
        "layers": found.layers,
        "model": found.model,
        "under_load": found.under_load,
    }
    keep_json(_place(shape, plan, version), values)


def _place(shape: bytes, plan: Plan, version: str) -> Path:
    parts = [shape, version, min(plan.max_nodes, 8), *circumstances(plan)]
    return fact_path("shapes", *parts)
