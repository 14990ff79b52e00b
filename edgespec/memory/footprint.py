"""Where every byte of a native session goes: the items of a footprint.

The exact items are what the backend allocates and can be held to (`native_sizes.py`); the others
are calibrated (`calibration.py`). A session has three peaks: starting up (imports and kernels, no
weights yet), loading (weights, and the rows being read) and running (weights, KV, scratch). The
items sum to the largest: those of running in full, then what the other two need on top.
"""

from __future__ import annotations

from collections.abc import Iterable

from edgespec.memory import calibration
from edgespec.memory.native_sizes import (
    KV_BLOCK,
    activation_bytes,
    kv_bytes,
    loading_bytes,
    logits_bytes,
    weights_bytes,
)
from edgespec.memory.plan import Footprint, FootprintItem
from edgespec.models.spec import ModelSpec, TensorInfo


def native_footprint(
    spec: ModelSpec,
    tensors: Iterable[TensorInfo],
    *,
    context_length: int,
    max_nodes: int,
    prefill_chunk: int,
    threads: int,
    drafter_bytes: int,
    base_bytes: int,
    kernel_bytes: int = 0,
    kv_type: str = "f16",
    sequences: int = 1,
    startup_peak_bytes: int = 0,
) -> Footprint:
    """Itemise the peak of a native session, in bytes.

    `base_bytes` is the interpreter with its libraries, `kernel_bytes` what compiled kernels keep,
    `startup_peak_bytes` the resident peak before the first weight (`calibration.Runtime` has all
    three), `drafter_bytes` the cap of all drafters' stores for each of `sequences` texts, which
    have a context each. Raises UnsupportedModelError.
    """
    tensors = tuple(tensors)
    scratch = activation_bytes(
        spec, context_length, max_nodes, prefill_chunk, threads, kv_type, sequences
    )
    cache = sequences * kv_bytes(spec, context_length, kv_type)
    kv_note = _kv_note(context_length, kv_type, sequences)
    choosing = calibration.SAMPLING_BYTES_PER_TOKEN + 8 * (sequences - 1)  # a heap each
    steady = [
        FootprintItem("interpreter", base_bytes, "with its libraries, measured"),
        FootprintItem("compiled kernels", kernel_bytes, "measured"),
        FootprintItem("tokenizer", tokenizer_bytes(spec.vocab_size), f"{spec.vocab_size} tokens"),
        FootprintItem("weights", weights_bytes(tensors), "repacked", exact=True),
    ]
    running = [
        FootprintItem("KV cache", cache, kv_note, True),
        FootprintItem("activations", scratch, f"{max(max_nodes, prefill_chunk)} rows", True),
        FootprintItem("logits", logits_bytes(spec, max_nodes), f"{max_nodes} rows", True),
        FootprintItem("sampling", spec.vocab_size * choosing),
        FootprintItem("drafters", sequences * drafter_bytes, "cap" if drafter_bytes else "none"),
        FootprintItem("session", calibration.SESSION_BYTES, "text, templates, library pages"),
        FootprintItem("threads", (threads - 1) * calibration.THREAD_BYTES, f"{threads - 1} more"),
    ]
    held, used = _sum(steady), _sum(running)
    slack = FootprintItem("allocator slack", int(used * calibration.SLACK))
    used += slack.size_bytes
    loading = max(0, loading_bytes(tensors) - used)
    startup = max(0, startup_peak_bytes - held - used - loading)
    extra = [
        FootprintItem("loading", loading, "rows of the file, beyond what running needs"),
        FootprintItem("start-up", startup, "compiler, before the weights, beyond the rest"),
    ]
    return Footprint((*steady, *running, slack, *extra))


def tokenizer_bytes(vocab_size: int) -> int:
    """Tokenizer of a vocabulary: a constant and a measured number of bytes per token."""
    return calibration.TOKENIZER_BYTES + vocab_size * calibration.TOKENIZER_BYTES_PER_TOKEN


def _kv_note(positions: int, kv_type: str, sequences: int) -> str:
    texts = "" if sequences == 1 else f"{sequences} x "
    return f"{texts}{-(-positions // KV_BLOCK)} x {KV_BLOCK} positions, {kv_type}"


def _sum(items: Iterable[FootprintItem]) -> int:
    return sum(item.size_bytes for item in items)
