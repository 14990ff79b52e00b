"""What a backend's passes cost for a model, measured in a process of its own.

For choosing a backend before one is loaded, and because a library may abort on a file in its first
pass: the process loads the model, computes passes of all sizes a few times and ends, so that
nothing of it stays. It holds less than the backend's plan says.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from edgespec.errors import BackendError, ModelFileError
from edgespec.memory.plan.placement import DevicePart
from edgespec.memory.plan.plan import Footprint, Plan
from edgespec.system.child_process import Child, PeerCrash, PeerError, serve
from edgespec.system.disk_cache import cached_facts
from edgespec.system.wall import folders_of

_CONTEXT = 512
_FEWEST_TRIALS, _MOST_TRIALS = 3, 30
_DEVICE_LIMIT_S = 30.0
"""A device that takes longer is no faster than the processor, whatever its driver says it is."""
_BYTES_IN_ALL = 16e9
"""Of weights, as many passes as read about so much: a second or two."""


def pass_seconds(path: Path, plan: Plan) -> dict[int, float] | None:
    """Seconds of a forward pass by number of nodes, as this plan's backend computes it on this
    machine; None when it did not come to that. Raises ModelFileError when the backend crashed,
    BackendError where a device took too long or its driver failed.
    """
    request = {
        "path": str(path),
        "plan": plan_values(plan),
        "devices": [asdict(one) for one in plan.devices],
    }
    try:
        limit_s = _DEVICE_LIMIT_S if plan.devices else None
        with Child(__name__, request, name=plan.label, limit_s=limit_s) as child:
            return {int(size): float(seconds) for size, seconds in child.greeting.items()}
    except PeerError as error:
        if plan.devices:
            raise BackendError(str(error)) from None
        if not isinstance(error, PeerCrash):
            return None
        raise ModelFileError(
            f"cannot run {path}: {error}; the file is damaged, or made for another version of it: "
            "convert the model again"
        ) from None


def plan_values(plan: Plan) -> dict[str, Any]:
    """What a process that measures needs of a plan, as plain values."""
    simple = {
        field.name: getattr(plan, field.name)
        for field in fields(plan)
        if isinstance(getattr(plan, field.name), (str, int))
    }
    return simple | {"context_length": min(plan.context_length, _CONTEXT), "sequences": 1}


def _start(request: Any) -> tuple[Any, Callable[[Any], Any]]:
    from edgespec.backends import registry as backends
    from edgespec.backends.pass_times import curve_sizes, pass_times
    from edgespec.models.open_model import open_model

    devices = tuple(DevicePart(**part) for part in request["devices"])
    plan = Plan(**request["plan"], footprint=Footprint(()), devices=devices)
    with open_model(Path(request["path"]), any_engine=True) as file:
        kinds = backends.compiled_for(plan.backend, file)
        backends.warm_up(plan.backend, kinds, plan.kv_type)
        with backends.open_target(file, plan) as target:
            # The shortest of many: a busy moment must not decide between backends.
            passes = int(_BYTES_IN_ALL / file.size_bytes) // len(curve_sizes(target))
            trials = min(max(passes, _FEWEST_TRIALS), _MOST_TRIALS)
            curve = pass_times(target, trials=trials, least=True)
    return {str(size): seconds for size, seconds in curve.items()}, lambda question: question


def _reads(request: Any) -> list[Path] | None:
    """Engines of others see the model alone; ours compiles, and devices have to be reached."""
    if request["devices"] or request["plan"]["backend"] not in ("llamacpp", "onnx"):
        return None
    return [*folders_of(Path(request["path"])), *cached_facts()]


if __name__ == "__main__":
    serve(_start, _reads)
