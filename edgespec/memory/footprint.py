"""Where every byte of a native session goes: pure arithmetic, one function per item.

The exact items are what the backend allocates and can be held to; the others are calibrated in
`calibration.py`. A session has three peaks: starting up (imports and kernels, no weights yet),
loading (weights, and the pages of the file being read) and running (weights, KV, scratch). The
items sum to the largest: those of running in full, then what the other two need on top.
"""

from __future__ import annotations

from collections.abc import Iterable

from edgespec.errors import UnsupportedModelError
from edgespec.memory import calibration
from edgespec.memory.plan import Footprint, FootprintItem
from edgespec.models.spec import ModelSpec, TensorInfo, TensorType

KV_BLOCK = 256
"""Positions in one block of the KV arena."""
TILE_ROWS = 16
"""Rows of a weight matrix that are interleaved; the last tile is padded with zeros."""

PACKED: dict[TensorType, tuple[int, int]] = {
    TensorType.F32: (1, 4),
    TensorType.F16: (1, 2),
    TensorType.BF16: (1, 2),
    TensorType.Q8_0: (32, 34),
    TensorType.Q4_0: (32, 18),
    TensorType.Q4_K: (256, 148),
    TensorType.Q6_K: (256, 210),
}
"""(elements, bytes) of a group once repacked; Q4_K's 6-bit scales and minima become bytes."""


def packed_bytes(tensor: TensorInfo) -> int:
    """Bytes of one tensor in memory.

    A vector is f32: 4 x elements. A matrix is 16-row tiles: (rows rounded up to 16) x (columns /
    group) x bytes of a packed group. Raises UnsupportedModelError for a type that is never packed.
    """
    *leading, columns = tensor.shape
    if not leading:
        return 4 * columns
    if tensor.type not in PACKED:
        raise UnsupportedModelError(
            f"tensor {tensor.name} has type {tensor.type.name}; the native backend computes "
            f"{', '.join(kind.name for kind in PACKED)}: requantise the model to one of these"
        )
    rows = 1
    for size in leading:
        rows *= size
    group, group_bytes = PACKED[tensor.type]
    return _round_up(rows, TILE_ROWS) * -(-columns // group) * group_bytes


def weights_bytes(tensors: Iterable[TensorInfo]) -> int:
    """Bytes of all tensors packed; tied embeddings are one tensor in the file and counted once."""
    return sum(packed_bytes(tensor) for tensor in tensors)


def kv_bytes(spec: ModelSpec, positions: int, kv_block: int = KV_BLOCK) -> int:
    """KV arena in f16: blocks x layers x 2 x kv_heads x kv_block x head_dim x 2 bytes."""
    blocks = -(-positions // kv_block)
    return blocks * spec.num_layers * 2 * spec.kv_dim * kv_block * 2


def node_kv_bytes(spec: ModelSpec, num_nodes: int) -> int:
    """KV of nodes that may be rejected yet, f16: nodes x layers x 2 x kv_heads x head_dim x 2."""
    return num_nodes * spec.num_layers * 2 * spec.kv_dim * 2


def activation_bytes(spec: ModelSpec, num_rows: int) -> int:
    """Activations in f32, shared by all layers: (6 dim + 3 ffn + q + 2 kv) x 4 bytes a row."""
    q_dim = spec.num_heads * spec.head_dim
    return num_rows * (6 * spec.dim + 3 * spec.ffn_dim + q_dim + 2 * spec.kv_dim) * 4


def logits_bytes(spec: ModelSpec, max_nodes: int) -> int:
    """Rows of f32 logits: max_nodes x vocabulary x 4 bytes."""
    return max_nodes * spec.vocab_size * 4


def tokenizer_bytes(vocab_size: int) -> int:
    """Tokenizer of a vocabulary: a constant and a measured number of bytes per token."""
    return calibration.TOKENIZER_BYTES + vocab_size * calibration.TOKENIZER_BYTES_PER_TOKEN


def loading_bytes(tensors: Iterable[TensorInfo]) -> int:
    """Pages of the file that are resident while its largest tensor is repacked."""
    return max((tensor.size_bytes for tensor in tensors), default=0)


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
    startup_peak_bytes: int = 0,
    kv_block: int = KV_BLOCK,
) -> Footprint:
    """Itemise the peak of a native session, in bytes.

    `base_bytes` is the interpreter with its libraries, `kernel_bytes` what compiled kernels keep,
    `startup_peak_bytes` the resident peak before the first weight (`calibration.Runtime` has all
    three), `drafter_bytes` the cap of all drafters' stores. Raises UnsupportedModelError.
    """
    tensors = tuple(tensors)
    rows = max(max_nodes, prefill_chunk)
    blocks = -(-context_length // kv_block)
    steady = [
        FootprintItem("interpreter", base_bytes, "with its libraries, measured"),
        FootprintItem("compiled kernels", kernel_bytes, "measured"),
        FootprintItem("tokenizer", tokenizer_bytes(spec.vocab_size), f"{spec.vocab_size} tokens"),
        FootprintItem("weights", weights_bytes(tensors), "repacked", exact=True),
    ]
    running = [
        FootprintItem(
            "KV cache",
            kv_bytes(spec, context_length, kv_block),
            f"{blocks} x {kv_block} positions, f16",
            exact=True,
        ),
        FootprintItem("node KV", node_kv_bytes(spec, max_nodes), f"{max_nodes} nodes", exact=True),
        FootprintItem("activations", activation_bytes(spec, rows), f"{rows} rows", exact=True),
        FootprintItem("logits", logits_bytes(spec, max_nodes), f"{max_nodes} rows", exact=True),
        FootprintItem("sampling", spec.vocab_size * calibration.SAMPLING_BYTES_PER_TOKEN),
        FootprintItem("drafters", drafter_bytes, "cap" if drafter_bytes else "none"),
        FootprintItem("session", calibration.SESSION_BYTES, "text, templates, statistics"),
        FootprintItem("threads", (threads - 1) * calibration.THREAD_BYTES, f"{threads - 1} more"),
    ]
    held, used = _sum(steady), _sum(running)
    slack = FootprintItem("allocator slack", int(used * calibration.SLACK))
    used += slack.size_bytes
    loading = max(0, loading_bytes(tensors) - used)
    startup = max(0, startup_peak_bytes - held - used - loading)
    extra = [
        FootprintItem("loading", loading, "file pages beyond what running needs"),
        FootprintItem("start-up", startup, "compiler, before the weights, beyond the rest"),
    ]
    return Footprint((*steady, *running, slack, *extra))


def _sum(items: Iterable[FootprintItem]) -> int:
    return sum(item.size_bytes for item in items)


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
