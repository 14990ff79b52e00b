"""Where every byte of a session on another engine goes; the engine itself tells most of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from edgespec.memory import calibration
from edgespec.memory.calibration import Runtime
from edgespec.memory.plan import Footprint, FootprintItem
from edgespec.memory.settings import Settings
from edgespec.memory.size import MIB
from edgespec.models.spec import ModelSpec, TensorInfo, TensorType

_FLOATS = (TensorType.F32, TensorType.F16, TensorType.BF16)
SESSION_BYTES = 10 * MIB
"""Graphs and cells of the engine, text, statistics, library pages that come back while working."""
KERNELS_KEPT, CACHED_START = 0.5, 0.75
"""Shares of what all kernels keep, and of their peak when they come from the cache, that those
which only decode have: measured 7.3 of 15 and 31 of 45 MiB.
"""


@dataclass(frozen=True, slots=True)
class EngineBytes:
    """What an engine says that it would hold, in bytes."""

    library: int = 0
    vocabulary: int = 0
    cache: int = 0
    compute: int = 0
    copies_head: bool = False
    """Weights are repacked, so an output head tied to the embedding is held beside it."""


BRANCH_BYTES_PER_POSITION = 48
"""What llama.cpp notes of each position for each sequence that shares it."""

Ask = Callable[[Settings, int], EngineBytes]
"""What an engine would hold with these settings and this many threads."""


def foreign_footprint(
    spec: ModelSpec,
    tensors: Iterable[TensorInfo],
    settings: Settings,
    engine: EngineBytes,
    *,
    threads: int,
    runtime: Runtime,
) -> Footprint:
    """Itemise the peak of a session, in bytes."""
    tensors = tuple(tensors)
    base, kernels = runtime.libraries_bytes(), int(runtime.kernels_bytes() * KERNELS_KEPT)
    startup = runtime.peak_bytes()
    if runtime.kernels == "cached":
        startup -= int(calibration.KERNELS["cached"].peak_bytes * (1 - CACHED_START))
    weights = sum(tensor.size_bytes for tensor in tensors)
    if engine.copies_head and spec.tied_embeddings:
        weights += sum(
            tensor.size_bytes
            for tensor in tensors
            if tensor.name == "token_embd.weight" and tensor.type not in _FLOATS
        )
    drafters = settings.drafter_bytes
    branches = (settings.max_nodes - 1) * settings.context * BRANCH_BYTES_PER_POSITION
    held = [
        FootprintItem("interpreter", base, "with its libraries, measured"),
        FootprintItem("compiled kernels", kernels, "of decoding, measured"),
        FootprintItem("llama.cpp", engine.library, "the library, measured"),
        FootprintItem("vocabulary", engine.vocabulary, "llama.cpp's, measured"),
        FootprintItem("tokenizer", _tokenizer_bytes(spec.vocab_size), f"{spec.vocab_size} tokens"),
        FootprintItem("weights", weights, "one copy", exact=True),
        FootprintItem(
            "KV cache", engine.cache, f"{settings.context} positions, {settings.kv_type}", True
        ),
        FootprintItem("activations", engine.compute, "llama.cpp's compute buffer", True),
        FootprintItem(
            "logits", 4 * spec.vocab_size * settings.max_nodes, f"{settings.max_nodes} rows"
        ),
        FootprintItem("branches", branches, f"{settings.max_nodes - 1} beside the text"),
        FootprintItem("sampling", spec.vocab_size * calibration.SAMPLING_BYTES_PER_TOKEN),
        FootprintItem("drafters", drafters, "cap" if drafters else "none"),
        FootprintItem("session", SESSION_BYTES, "graphs, cells, text, library pages"),
        FootprintItem("threads", (threads - 1) * calibration.THREAD_BYTES, f"{threads - 1} more"),
    ]
    total = sum(item.size_bytes for item in held)
    loading = max((tensor.size_bytes for tensor in tensors), default=0)
    after = total - base - kernels - engine.library - engine.vocabulary - weights
    start_up = max(0, startup - total)
    return Footprint(
        (
            *held,
            FootprintItem(
                "loading", max(0, loading - after), "a tensor being read, beyond the rest"
            ),
            FootprintItem("start-up", start_up, "compiler, before the weights, beyond the rest"),
        )
    )


def _tokenizer_bytes(vocab_size: int) -> int:
    return calibration.TOKENIZER_BYTES + vocab_size * calibration.TOKENIZER_BYTES_PER_TOKEN
