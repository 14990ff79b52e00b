"""What a backend's passes cost for small models of a few layers, measured in a process of its own.

Whole passes and those that end before the head take turns, so that the head, which is the largest
matrix, has put the layers out of the processor's caches when they are timed again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from edgespec.backends.measure_passes import plan_values
from edgespec.memory.plan.placement import DevicePart
from edgespec.memory.plan.plan import Footprint, Plan
from edgespec.models.file import ModelFile
from edgespec.system.child_process import Child, PeerError, serve
from edgespec.system.disk_cache import cached_facts
from edgespec.system.memory_limit import limit_memory
from edgespec.system.records import dataclass

SIZES = (1, 2, 4, 8)
_LIMIT_S = 30.0
_SECONDS, _FEWEST_ROUNDS, _MOST_ROUNDS = 0.4, 2, 20
"""Passes of a model are tried again for so long."""
Seconds = dict[int, float]
"""By number of nodes."""


@dataclass(frozen=True, slots=True)
class LayerTimes:
    """The shortest passes over a model."""

    whole: Seconds
    headless: Seconds
    """Of passes that compute no logits; with layers on a device the same as whole ones, because
    passes that nothing is read of return before it has computed them.
    """

    @property
    def both(self) -> tuple[Seconds, Seconds]:
        return self.whole, self.headless


def layer_times(paths: Sequence[Path], plan: Plan, memory_bytes: int) -> list[LayerTimes]:
    """What passes over each of these small models cost with the plan's backend and settings.

    Where the plan has a device, all of their layers are there, without their experts if those of
    some are not. The process allocates at most
    `memory_bytes`. Raises PeerError when it did not come to that.
    """
    values = plan_values(plan)
    nodes = min(plan.max_nodes, SIZES[-1])
    values |= {"max_nodes": nodes, "prefill_chunk": nodes, "mapped": False}
    request = {
        "paths": [str(path) for path in paths],
        "plan": values,
        "devices": [asdict(part) for part in plan.devices],
        "memory_bytes": memory_bytes,
    }
    with Child(__name__, request, name=plan.backend, limit_s=_LIMIT_S) as child:
        found = _checked(child.greeting, [size for size in SIZES if size <= nodes])
    if len(found) != len(paths):
        raise PeerError(f"{plan.backend} gave times that are none")
    return found


def _checked(greeting: Any, sizes: Sequence[int]) -> list[LayerTimes]:
    """What the process answered; nothing where that is not times, as it may not be its own now."""
    try:
        found = [
            LayerTimes(*({size: float(times[str(size)]) for size in sizes} for times in both))
            for both in greeting
        ]
    except (TypeError, KeyError, ValueError, OverflowError):
        return []
    seconds = [each for one in found for times in one.both for each in times.values()]
    return found if all(0.0 < each < _LIMIT_S for each in seconds) else []


def model_times(path: Path, plan: Plan) -> LayerTimes:
    """The same of one small model, in this process."""
    from edgespec.backends import registry as backends
    from edgespec.backends.pass_times import time_pass
    from edgespec.models.open_model import open_model

    with open_model(path, any_engine=True) as file:
        file.adopt_tokenizer(None)  # type: ignore[arg-type]  # nobody reads or writes texts here
        backends.warm_up(plan.backend, backends.compiled_for(plan.backend, file), plan.kv_type)
        with backends.open_target(file, _with_all(plan, file)) as target:
            sizes = [size for size in SIZES if size <= target.max_nodes]
            for size in sizes:  # the first round warms caches
                time_pass(target, size)
            found = LayerTimes(dict.fromkeys(sizes, math.inf), dict.fromkeys(sizes, math.inf))
            rounds, end = 0, time.perf_counter() + _SECONDS
            while rounds < _FEWEST_ROUNDS or (rounds < _MOST_ROUNDS and time.perf_counter() < end):
                rounds += 1
                for size in sizes:
                    found.whole[size] = min(found.whole[size], time_pass(target, size))
                    if not plan.devices:
                        headless = time_pass(target, size, "none")
                        found.headless[size] = min(found.headless[size], headless)
    return LayerTimes(found.whole, found.whole) if plan.devices else found


def _with_all(plan: Plan, file: ModelFile) -> Plan:
    """The plan with all layers and the head on its device, if it has one, and experts here if any
    are.
    """
    most = file.spec.num_layers
    parts = (
        replace(
            part,
            first_layer=0,
            num_layers=most,
            head=True,
            without_experts=most if part.without_experts else 0,
        )
        for part in plan.devices
    )
    return replace(plan, devices=tuple(parts))


def _start(request: Any) -> tuple[Any, Callable[[Any], Any]]:
    devices = tuple(DevicePart(**part) for part in request["devices"])
    if all(part.kind != "gpu" for part in devices):  # drivers of these map far more than they use
        limit_memory(request["memory_bytes"])
    plan = Plan(**request["plan"], footprint=Footprint(()), devices=devices)
    found = [model_times(Path(path), plan) for path in request["paths"]]
    return [one.both for one in found], lambda question: question


def _reads(request: Any) -> list[Path] | None:
    """Engines of others see the small models alone; ours compile, devices have to be reached."""
    if request["devices"] or request["plan"]["backend"] not in ("llamacpp", "onnx"):
        return None
    return [*{Path(path).parent for path in request["paths"]}, *cached_facts()]


if __name__ == "__main__":
    serve(_start, _reads)
