"""Cost curves for replay: from a file, remembered of this model on this machine, or typical."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgespec.control.curve_cache import remembered_curve
from edgespec.errors import EdgeSpecError, OptionError
from edgespec.system.records import dataclass

TYPICAL = {1: 0.0132, 2: 0.0139, 4: 0.0162, 8: 0.0197, 16: 0.0266}
"""Of a 336M model in Q8_0 on two cores with AVX-512: docs/lab/2026-11-21-peers.md."""
_LARGEST_FILE_BYTES = 2**20
_WHERE = "the output of `edgespec bench kernels --json`"


@dataclass(frozen=True, slots=True)
class Prices:
    """Seconds of a forward pass by number of nodes, the root included, and where they come from."""

    curve: Mapping[int, float]
    origin: str


def read_prices(path: str | os.PathLike[str]) -> Prices:
    """A curve from a file: {"1": seconds, "8": ...}, or the JSON of `edgespec bench kernels`.

    Raises OptionError for a file that cannot be read or holds no curve.
    """
    try:
        with Path(path).open("rb") as file:
            raw = file.read(_LARGEST_FILE_BYTES + 1)
        values = json.loads(raw) if len(raw) <= _LARGEST_FILE_BYTES else None
    except OSError as error:
        raise OptionError(
            f"--cost-curve: cannot read {path} ({error.strerror}); name {_WHERE}"
        ) from None
    except (ValueError, RecursionError):
        values = None
    curve = _curve(values)
    if curve is None:
        raise OptionError(
            f'--cost-curve: {path} holds no curve; name {_WHERE}, or a file like {{"1": 0.012, '
            '"8": 0.019}, seconds of a pass by its number of tokens'
        )
    return Prices(curve, str(path))


def _curve(values: Any) -> dict[int, float] | None:
    """The curve in what a file holds; None when that is none."""
    try:
        if isinstance(values.get("curve"), list):
            pairs = [(point["nodes"], point["seconds"]) for point in values["curve"]]
        else:
            pairs = list(values.items())
        curve = {int(nodes): float(seconds) for nodes, seconds in pairs}
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
        return None
    sound = all(1 <= n <= 4096 and 0 < s < math.inf for n, s in curve.items())
    return curve if sound and 1 in curve and len(curve) > 1 else None


def own_prices(model: str | os.PathLike[str] | None) -> Prices:
    """What this model's passes took here when it was last loaded, or else a typical curve."""
    from edgespec.loading.load import plan
    from edgespec.models.registry import resolve

    try:
        curve = remembered_curve(resolve(model), plan(model))
    except EdgeSpecError:  # too large for this machine, or no model: the log comes from another
        curve = None
    if curve is not None:
        return Prices(curve, "this model, measured on this machine")
    return Prices(TYPICAL, "typical: 336M parameters, Q8_0, 2 threads")
