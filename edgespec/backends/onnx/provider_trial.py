"""An execution provider tried on a graph, in a process of its own, before it is loaded in ours.

Drivers may hang or end the process, and only the provider knows what it holds: it may compile the
graph and keep the weights twice. The process opens the graph, looks where its nodes run, and
measures the peak of passes at the corners of a box of rows and positions. What a pass allocates is
the most of several sums that are linear in each of both, so between corners the straight line is an
upper bound, and beyond them proportion is.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

import edgespec.version
from edgespec.backends.onnx.kv_buffers import GrowingCache, KvCache, SharedCache
from edgespec.backends.onnx.layout import layout_of
from edgespec.backends.onnx.providers import PROVIDERS, require
from edgespec.backends.onnx.runtime_library import version
from edgespec.backends.onnx.runtime_session import PassRunner, open_session
from edgespec.backends.passes import Rows
from edgespec.errors import BackendError
from edgespec.memory.plan.settings import DEFAULT_CHUNK, SMALLEST_CONTEXT
from edgespec.models.onnx.folder import OnnxFile
from edgespec.models.spec import ModelSpec
from edgespec.system.child_process import Child, PeerError, can_have_children, serve
from edgespec.system.disk_cache import code_key, fact_path, file_identity, keep_json, kept_json
from edgespec.system.hardware import hardware
from edgespec.system.memory_limit import limit_memory
from edgespec.system.records import dataclass
from edgespec.system.resident_memory import (
    peak_resident_bytes,
    release_free_memory,
    reset_peak,
    resident_bytes,
)
from edgespec.system.size import MIB, format_size

_LONGEST = 1024
"""Positions of the largest pass that is tried."""
_LIMIT_S, _BYTES_PER_S = 120.0, 4 * MIB
"""For starting a driver, and for reading and compiling weights besides."""
_SIZES = (1, 2, 3, 4, 6, 8, 11, 12, 16, 24, 64, 100, 200, 255)
"""Rows of passes that verify, and of ends of prompts."""
_MOST_BYTES = 1 << 50


@dataclass(frozen=True, slots=True)
class Trial:
    """What one graph takes with one provider; bytes beyond those of the process before."""

    provider: str
    opened_bytes: int
    """The library, the provider and the weights, once the first passes were computed."""
    opening_bytes: int
    """The peak until then."""
    rows: tuple[int, int]
    positions: tuple[int, int]
    passes_bytes: tuple[int, ...]
    """Beyond what is open, keys and values left out: of few rows at few and at many positions, then
    of many rows.
    """
    parts: int
    """Of the graph, that the provider runs."""
    left: tuple[str, ...]
    """Operators that it leaves to the processor."""

    def pass_bytes(self, rows: int, positions: int) -> int:
        """An upper bound of what a pass allocates."""
        (few, many), (near, far) = self.rows, self.positions
        scale = max(1.0, rows / many) * max(1.0, positions / far)
        across, along = _share(rows, few, many), _share(positions, near, far)
        low, high = (
            (1.0 - along) * first + along * last
            for first, last in (self.passes_bytes[:2], self.passes_bytes[2:])
        )
        return int(scale * ((1.0 - across) * low + across * high))

    def note(self) -> str:
        """What a plan says of it."""
        provider = PROVIDERS[self.provider]
        said = f"provider {self.provider}: {provider.title} runs {self.parts} parts of the graph"
        if self.left:
            said += f", the processor the rest ({', '.join(self.left)})"
        if provider.own_memory:
            said += "; memory of its device is neither counted nor limited"
        return f"{said}; tried in a process of its own"

    @classmethod
    def of(cls, values: Any) -> Self | None:
        """From plain values; None where they are none, as a cache or a process may be damaged."""
        try:
            numbers = {
                name: tuple(map(int, values[name]))
                for name in ("rows", "positions", "passes_bytes")
            }
            sizes = {name: int(values[name]) for name in ("opened_bytes", "opening_bytes", "parts")}
            left = tuple(str(name)[:60] for name in values["left"])
            made = cls(provider=str(values["provider"]), left=left, **numbers, **sizes)  # type: ignore[arg-type]
        except (KeyError, TypeError, ValueError, OverflowError):
            return None
        told = (*made.passes_bytes, *sizes.values())
        corners = [(*made.rows, 1), (*made.positions, 1)]
        right = len(made.rows) == len(made.positions) == 2 and len(made.passes_bytes) == 4
        right &= all(0 <= size < _MOST_BYTES for size in told)
        right &= all(0 < number <= 1 << 30 for corner in corners for number in corner)
        return made if right and made.provider in PROVIDERS else None


def _share(value: int, low: int, high: int) -> float:
    """How far a value lies between two others, 0 to 1."""
    return min(max((value - low) / (high - low), 0.0), 1.0) if high > low else 1.0


def trial_of(file: OnnxFile, provider: str, threads: int, memory_bytes: int) -> Trial:
    """What a graph takes with a provider on so many threads: remembered, or tried now in a process
    that may allocate `memory_bytes`. Raises BackendError where it is not there or cannot run it.
    """
    require(provider)
    place = _place(file, provider, threads)
    known = Trial.of(kept_json(place))
    if known is not None and known.provider == provider:
        return known
    found = _try_out(file, provider, threads, memory_bytes)
    keep_json(place, _values(found))
    return found


def _try_out(file: OnnxFile, provider: str, threads: int, memory_bytes: int) -> Trial:
    if not can_have_children():
        raise BackendError(
            "a provider is tried in another process, which cannot be started here; leave out "
            f"--provider {provider}"
        )
    request = {
        "path": str(file.path.absolute()),
        "provider": provider,
        "threads": threads,
        "memory_bytes": memory_bytes,
    }
    limit_s = _LIMIT_S + file.size_bytes / _BYTES_PER_S
    name = f"{PROVIDERS[provider].title} on {file.path.name}"
    try:
        with Child(__name__, request, name=name, limit_s=round(limit_s)) as child:
            greeting = child.greeting
    except PeerError as error:
        raise BackendError(f"{error}; leave out --provider {provider}") from None
    if isinstance(greeting, dict) and "refused" in greeting:
        why = str(greeting["refused"])[:600].partition("; ")[0]
        raise BackendError(
            f"{name} does not run in the {format_size(memory_bytes)} that are left for it ({why}); "
            f"raise --memory, or leave out --provider {provider}"
        )
    found = Trial.of(greeting)
    if found is None:
        raise BackendError(f"{name} gave an answer that is none; leave out --provider {provider}")
    return found


def _values(trial: Trial) -> dict[str, Any]:
    return {name: getattr(trial, name) for name in Trial.__dataclass_fields__}


def _place(file: OnnxFile, provider: str, threads: int) -> Path:
    """The key: the file's identity, provider, threads, the machine and the code on both sides."""
    cpu = hardware()
    parts = [*file_identity(file.path), file.size_bytes, provider, threads, version()]
    parts += [cpu.cpu_name, cpu.isa, edgespec.version.__version__, code_key()]
    return fact_path("providers", *parts)


def measure(file: OnnxFile, provider: str, threads: int) -> Trial:
    """The same in this process; raises BackendError, ModelFileError."""
    layout, spec = layout_of(file), file.spec
    longest = min(spec.context_length, _LONGEST)
    rows = (1, min(DEFAULT_CHUNK, longest))
    positions = (min(SMALLEST_CONTEXT, longest), longest)
    before = resident_bytes()
    reset_peak()
    with tempfile.TemporaryDirectory() as folder:
        session = open_session(file, layout, threads, provider, profile=f"{folder}/pass")
        opening = peak_resident_bytes()
        name = PROVIDERS[provider].class_name
        if name not in session.get_providers():
            raise BackendError(
                f"{PROVIDERS[provider].title} is installed and does not start: its driver or its "
                "libraries are missing"
            )
        kind = SharedCache if layout.shared else GrowingCache
        cache = kind(spec, len(layout.pasts), longest, layout.kv_type)
        runner = PassRunner(
            session, layout, spec.vocab_size, rows=rows[1], nodes=1, context=longest
        )

        def run(count: int, total: int) -> None:
            tokens = np.arange(count, dtype=np.int32) % spec.vocab_size
            parents = np.arange(-1, count - 1).astype(np.int16)
            wanted: Rows = "last" if layout.picks or count == 1 else "none"
            runner.run(tokens, parents, total - count, cache, wanted=wanted)

        run(1, 1)
        parts, left = _where(json.loads(Path(session.end_profiling()).read_text("utf-8")), name)
    if not parts:
        raise BackendError(f"{PROVIDERS[provider].title} runs no part of {file.path.name}")
    held = _fill(cache, len(layout.pasts), spec, longest)
    corners = [(count, total) for count in rows for total in positions]
    for count in _SIZES:  # the first of a size may repack weights, and keeps what it made
        run(min(count, rows[1]), longest)
    for corner in corners:
        run(*corner)
    most = peak_resident_bytes()
    release_free_memory()  # as after loading; library pages in use come back
    for corner in corners:
        run(*corner)
    opened = resident_bytes() - held
    opening = max(opening, most - held, opened)  # peaks are told by and by
    passes = []
    for corner in corners:
        reset_peak()
        run(*corner)
        passes.append(max(0, peak_resident_bytes() - opened - held))
    return Trial(
        provider,
        max(0, opened - before),
        max(0, opening - before),
        rows,
        positions,
        tuple(passes),
        parts,
        left,
    )


def _fill(cache: KvCache, count: int, spec: ModelSpec, positions: int) -> int:
    """Write keys and values, as what was never written is not resident; returns the bytes."""
    before = resident_bytes()
    rows = np.broadcast_to(np.float16(0), (count, spec.num_kv_heads, positions, spec.head_dim))
    for _ in range(2):  # a growing one has two buffers, which then change places
        cache.restore(rows)
        cache.keep(0, range(positions), positions)
    return max(0, resident_bytes() - before)


def _where(events: Sequence[Any], name: str) -> tuple[int, tuple[str, ...]]:
    """How many parts of a graph a provider ran, and which operators ran elsewhere, by profile."""
    places = Counter[tuple[str, str]]()
    for event in events:
        if event.get("cat") == "Node" and str(event.get("name", "")).endswith("_kernel_time"):
            told = event.get("args", {})
            places[str(told.get("provider")), str(told.get("op_name"))] += 1
    parts = sum(count for (provider, _), count in places.items() if provider == name)
    return parts, tuple(sorted({kind for provider, kind in places if provider != name}))


def _start(request: Any) -> tuple[Any, Callable[[Any], Any]]:
    from edgespec.errors import EdgeSpecError
    from edgespec.models.open_model import open_model

    limit_memory(request["memory_bytes"])
    try:
        with open_model(Path(request["path"]), any_engine=True) as file:
            assert isinstance(file, OnnxFile)
            found = measure(file, str(request["provider"]), int(request["threads"]))
    except EdgeSpecError as error:
        return {"refused": str(error)}, lambda question: question
    return _values(found), lambda question: question


if __name__ == "__main__":
    serve(_start)
