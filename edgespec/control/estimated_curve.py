"""What passes would cost where nobody measured them: from how fast this machine reads memory."""

from __future__ import annotations

import time
from collections.abc import Iterable

import numpy as np

from edgespec.memory.plan.plan import Plan
from edgespec.models.layers import Moe
from edgespec.models.spec import ModelSpec, TensorInfo
from edgespec.system.durations import seconds_since
from edgespec.system.resident_memory import resident_bytes

_SIZES = (1, 2, 4, 8, 16)
_SHAPES: dict[str, tuple[float, tuple[float, ...]]] = {
    "native": (0.9, (1.0, 1.02, 1.15, 1.4, 2.1)),
}
"""By backend: the part of the memory's speed that a plain pass reads weights with, and what passes
over `_SIZES` nodes cost in plain passes (docs/lab/2026-11-21-peers.md, the 336M file).
"""
_OTHERS = (0.4, (1.0, 1.15, 1.5, 2.2, 3.2))
"""llama.cpp's, and what is believed of any other."""
_BUFFER_BYTES, _LEAST_BYTES = 32 << 20, 2 << 20
_MOST_S = 0.05


def estimated_curve(
    backend: str, weight_bytes: int, max_nodes: int, speed: float
) -> dict[int, float]:
    """Seconds of a pass by number of nodes, for weights of so many bytes, where `speed` bytes of
    memory are read in a second.
    """
    part, shape = _SHAPES.get(backend, _OTHERS)
    plain = weight_bytes / (part * speed)
    points = zip(_SIZES, shape, strict=True)
    return {size: plain * factor for size, factor in points if size <= max_nodes}


def read_bytes(spec: ModelSpec, tensors: Iterable[TensorInfo]) -> int:
    """What a pass over one node reads of the weights: of experts those it goes through, and no
    tensor that is looked up in or not used.
    """
    looked_up = set(spec.unused)
    if not spec.tied_embeddings:
        looked_up.add(spec.embedding)
    if spec.per_layer_embedding is not None:
        looked_up.add(spec.per_layer_embedding.table.tensor)
    shares = {
        matrix.tensor: layer.ffn.active / layer.ffn.experts
        for layer in spec.layers
        if isinstance(layer.ffn, Moe)
        for matrix in (layer.ffn.gate, layer.ffn.up, layer.ffn.down)
    }
    read = (each for each in tensors if each.name not in looked_up)
    return int(sum(each.size_bytes * shares.get(each.name, 1.0) for each in read))


def memory_speed(plan: Plan) -> float:
    """How many bytes a second the threads of a plan read, found out in memory that it counts."""
    room = plan.planned_bytes - resident_bytes()
    return bytes_per_second(plan.threads, max(_LEAST_BYTES, min(room, _BUFFER_BYTES)))


def bytes_per_second(threads: int, buffer_bytes: int = _BUFFER_BYTES) -> float:
    """How fast so many threads together read memory, measured in a tenth of a second."""
    from concurrent.futures import ThreadPoolExecutor

    parts = np.array_split(np.ones(buffer_bytes // 8, np.int64), threads)
    parts_bytes = sum(part.nbytes for part in parts)
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(np.max, parts))  # threads start, pages are there
        best, end = 0.0, time.perf_counter() + _MOST_S
        while not best or time.perf_counter() < end:
            start = time.perf_counter()
            list(pool.map(np.max, parts))
            best = max(best, parts_bytes / seconds_since(start))
    return best
