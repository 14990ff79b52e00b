"""Measured cost curves on disk, by model and machine, so that only the first start measures."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import edgespec.version
from edgespec.backends import registry as backends
from edgespec.backends.base import Target
from edgespec.backends.pass_times import curve_sizes, pass_times, time_pass
from edgespec.backends.passes import Progress
from edgespec.memory.plan.plan import Plan
from edgespec.memory.plan.streaming import Streaming
from edgespec.system.disk_cache import code_key, fact_path, file_identity, keep_json, kept_json
from edgespec.system.hardware import hardware
from edgespec.system.processor_load import is_busy

_CHECK_S = 0.02
_MOST_NODES = 1 << 16
_STREAMED_NODES = 8
_MOST_READ, _BUDGETS = 1 << 50, 16
"""Bytes that a pass may have to read, and how many such budgets are remembered of a file."""
_UNDER_LOAD = "under_load"
"""A key beside the sizes: other programs were busy meanwhile."""
_OUTLIER = 1.25
"""A size that is remembered this much costlier than it proves, against a plain pass, is put right.
"""


def measured_curve(
    path: Path, plan: Plan, target: Target, progress: Progress | None = None
) -> dict[int, float]:
    """Seconds of a forward pass by number of nodes: remembered, or measured now and remembered."""
    if plan.streaming is not None:
        return _streamed_curve(plan.streaming, target, progress)
    sizes = curve_sizes(target)
    place = _place(path, plan)
    curve = _read(place)
    if curve is not None and set(sizes) <= set(curve):
        known = {size: curve[size] for size in sizes}
        checked = _checked(target, known)
        if checked is not None:
            if checked != known:
                _write(place, curve | checked)
            return checked
    under_load = is_busy(plan.threads)
    curve = pass_times(target, progress)
    _write(place, curve, under_load=under_load)
    return curve


def _streamed_curve(
    streaming: Streaming, target: Target, progress: Progress | None
) -> dict[int, float]:
    """Of passes that take seconds, a few sizes once each, and not remembered: the next start may
    have more memory. Experts that one token after the other needs are added: those of a few passes
    over the same tokens stay in memory.
    """
    room = min(target.max_nodes, target.context_length - target.own.length)
    sizes = sorted({1, min(_STREAMED_NODES, room), room})
    time_pass(target, 1)
    curve = {}
    for done, size in enumerate(sizes, 1):
        seconds = [time_pass(target, size) for _ in range(2 if streaming.num_experts else 1)]
        curve[size] = seconds[-1]
        if progress is not None:
            progress(done, len(sizes))
    return streaming.curve(curve) if streaming.num_experts else curve


def remembered_curve(path: Path, plan: Plan) -> dict[int, float] | None:
    """What was measured when this plan was carried out here; None when it was not."""
    return _read(_place(path, plan))


def was_under_load(path: Path, plan: Plan) -> bool:
    """Whether other programs were busy while the remembered curve was measured."""
    kept = kept_json(_place(path, plan))
    return isinstance(kept, dict) and kept.get(_UNDER_LOAD) is True


def remember_curve(
    path: Path, plan: Plan, curve: dict[int, float], *, under_load: bool = False
) -> None:
    """Keep a curve that was measured for this plan elsewhere."""
    _write(_place(path, plan), curve, under_load=under_load)


def remember_streamed(path: Path, plan: Plan, seconds: float) -> None:
    """Keep what a plain pass took in a reply of a model whose weights are read from disk."""
    assert plan.streaming is not None
    kept = streamed_seconds(path, plan)
    kept.pop(plan.streaming.read_bytes, None)
    kept[plan.streaming.read_bytes] = seconds
    keep_json(_place(path, plan, "streamed"), dict([*kept.items()][-_BUDGETS:]))


def streamed_seconds(path: Path, plan: Plan) -> dict[int, float]:
    """What plain passes took by the bytes that they were to read, as replies found it here."""
    return curve_of(kept_json(_place(path, plan, "streamed")), least=0, most=_MOST_READ) or {}


def _checked(target: Target, known: dict[int, float]) -> dict[int, float] | None:
    """A remembered curve, without what another program added to some size; None when plain passes
    take something else now: a curve measured while the machine was busy is wrong in its shape too.

    As many sizes are tried as a fiftieth of a second allows: each start begins with another one.
    """
    plain = min(time_pass(target, 1) for _ in range(3))
    if not 0.5 < plain / known[1] < 2.0:
        return None
    curve, sizes = dict(known), sorted(known)[1:]
    first = time.time_ns() // 1000 % max(len(sizes), 1)
    end = time.perf_counter() + _CHECK_S
    for size in (*sizes[first:], *sizes[:first]):
        if time.perf_counter() > end:
            break
        ratio = min(time_pass(target, size) for _ in range(2)) / plain
        if ratio * _OUTLIER < known[size] / known[1]:
            curve[size] = ratio * known[1]
    return curve


def circumstances(plan: Plan) -> list[Any]:
    """What the cost of a model's passes depends on: settings, the machine, this version's code."""
    cpu = hardware()
    parts: list[Any] = [plan.backend, plan.threads, plan.kv_type, plan.mapped]
    parts += [plan.provider, backends.version(plan.backend)]
    for part in plan.devices:
        parts.append((part.name, part.description, part.units, part.without_experts))
    parts += [cpu.cpu_name, cpu.isa, os.environ.get("EDGESPEC_ISA")]
    return [*parts, edgespec.version.__version__, code_key()]


def _place(path: Path, plan: Plan, kind: str = "curves") -> Path:
    """The key: the file's identity, the machine, the plan's threads and this version's code."""
    return fact_path(kind, *file_identity(path), *circumstances(plan))


def _read(place: Path) -> dict[int, float] | None:
    """The curve in a file; None when there is none or it is not a curve."""
    return curve_of(kept_json(place))


def curve_of(pairs: Any, least: int = 1, most: int = _MOST_NODES) -> dict[int, float] | None:
    """A curve that was kept; None where the values that were found are none."""
    try:
        curve = {int(n): float(seconds) for n, seconds in pairs.items() if n != _UNDER_LOAD}
    except (ValueError, AttributeError, TypeError, OverflowError):
        return None
    possible = all(least <= size <= most for size in curve)
    possible &= all(0 < seconds < 3600 for seconds in curve.values())
    return curve if curve and possible else None


def _write(place: Path, curve: dict[int, float], *, under_load: bool = False) -> None:
    """Remember a curve."""
    keep_json(place, curve | {_UNDER_LOAD: True} if under_load else curve)
