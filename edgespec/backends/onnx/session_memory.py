"""What a session of ONNX Runtime holds, counted from the graph; the rest is measured.

The library is asked for no arena and no memory pattern, and the heap gives large blocks back, so
what a pass allocates is what its largest operators need at a time. Weights in files of their own
are mapped; those of products are repacked, and the pages they came from are given back.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from edgespec.backends.onnx.layout import KEPT_ROWS, Layout, layout_of
from edgespec.backends.onnx.runtime_library import missing, version_numbers
from edgespec.errors import BackendError, UnsupportedModelError
from edgespec.memory.plan.external_engine import Ask, EngineBytes
from edgespec.memory.plan.settings import Settings
from edgespec.models.file import ModelFile
from edgespec.models.onnx.folder import OnnxFile
from edgespec.models.onnx.graph_file import BFLOAT16, FLOAT16, Graph
from edgespec.models.spec import ModelSpec
from edgespec.system.records import dataclass
from edgespec.system.size import KIB, MIB

if TYPE_CHECKING:
    from edgespec.backends.onnx.provider_trial import Trial

LIBRARY_BYTES = 16 * MIB
"""onnxruntime 1.31: 8 MiB are kept of importing it, the rest are pages that come back in use."""
TOKENIZER_LIBRARY_BYTES = 3 * MIB
"""`tokenizers`, which planning does not bring: importing it among the weights takes 5.5 MiB, 2.8 of
which would come back in use anyway.
"""
BLOCK_BYTES = 8
"""Repacked quantised matrices have a scale and a sum for each block, as 32-bit floats."""
PARSED_KEPT = 0.1
"""Of the bytes of weights within the graph, what stays in the heap between others once they were
taken out: measured 2 and 1 of 27 MiB.
"""
_NO_PAGES_BACK = sys.platform != "linux"
_SPANS_SINCE = (1, 31)
"""GroupQueryAttention was seen to need no more memory for more positions; of older versions nothing
was measured.
"""
_PLAIN_SCORES = {4: 3.0, 2: 4.0}
"""Copies, as 32-bit floats, of a layer's scores that are alive at a time where attention is written
out, by the bytes of its floats: measured.
"""
GRAPH_BYTES_PER_NODE = 4 * KIB
"""Of a node with its kernel, names and types."""
TOKENIZER_BYTES_PER_TOKEN = 400
"""What the `tokenizers` library keeps, beside our own vocabulary."""
_SPREAD = 1.1
"""Of what a provider took in a trial, which sees some sizes of passes: OpenVINO keeps what it made
for each (docs/lab/2026-11-24-providers.md).
"""
_HALVES = (FLOAT16, BFLOAT16)
_QUANTISED = "MatMulNBits"
_PRODUCTS = {"MatMul": 1, "FusedMatMul": 1, "Gemm": 1, _QUANTISED: 1, "MatMulInteger": 1, "Cast": 0}
"""Operators whose matrices are repacked, and which input that is; those of Cast are multiplied with
after it.
"""
OPENING_BYTES = 10 * MIB
"""Library pages that only opening needs, and the tokenizer, which is there by then."""
_WIDENING_BYTES = 8 * MIB
"""What opening takes besides where 16-bit floats are widened (onnxruntime 1.32)."""


def choose_onnx(name: str, file: ModelFile) -> str:
    """Why the onnx backend runs this model; raises UnsupportedModelError, BackendError."""
    if name not in ("auto", "onnx"):
        raise UnsupportedModelError(f"{file.spec.refusal}: leave --backend {name} out")
    if not isinstance(file, OnnxFile):
        from edgespec.backends.onnx.target import not_onnx

        raise UnsupportedModelError(not_onnx(file))
    if missing():
        raise BackendError(f"{file.spec.refusal}, and {missing()}")
    layout_of(file)
    why = "runs ONNX models" if name == "auto" else "as asked"
    return f"backend onnx: {why}"


def ask_onnx(file: ModelFile, trial: Trial | None = None) -> Ask:
    """Who tells what sessions on a file would hold; with `trial` on a provider that was tried."""
    assert isinstance(file, OnnxFile)
    spec, layout = file.spec, layout_of(file)
    kv_item = np.dtype(layout.kv_type).itemsize
    weights = Weights.of(file.graph, patched=layout.patch is not None)

    has_spans = version_numbers() >= _SPANS_SINCE

    def ask(settings: Settings, threads: int) -> EngineBytes:
        del threads
        context = settings.context
        positions = context * spec.num_layers * 2 * spec.kv_dim * kv_item
        return EngineBytes(
            name="ONNX Runtime",
            library=LIBRARY_BYTES + len(file.graph.nodes) * GRAPH_BYTES_PER_NODE,
            vocabulary=TOKENIZER_LIBRARY_BYTES + spec.vocab_size * TOKENIZER_BYTES_PER_TOKEN,
            cache=positions if layout.shared else 2 * positions,
            compute=_pass_bytes(spec, layout, settings, has_spans=has_spans),
            kv_type="f16" if kv_item == 2 else "f32",
            weights=weights.kept_bytes,
            loading=weights.opening_bytes,
            branch_bytes=0,
        )

    if trial is None:
        return ask

    def ask_tried(settings: Settings, threads: int) -> EngineBytes:
        own = ask(settings, threads)
        rows = max(settings.prefill_chunk, settings.max_nodes)
        needs = trial.pass_bytes(rows, settings.context) + _masks_bytes(layout, settings)
        return replace(
            own,
            compute=int(_SPREAD * needs),
            loading=max(0, trial.opening_bytes - trial.opened_bytes),
            provider=max(0, int(_SPREAD * trial.opened_bytes) - own.library - weights.kept_bytes),
        )

    return ask_tried


def _pass_bytes(spec: ModelSpec, layout: Layout, settings: Settings, *, has_spans: bool) -> int:
    """What a pass over a whole chunk at the end of the context allocates: in a layer's attention,
    in its feed-forward or in the head, whichever takes most; and the masks of trees.

    With `has_spans` attention computes scores of a few positions at a time.
    """
    rows, context = max(settings.prefill_chunk, settings.max_nodes), settings.context
    kv_item, queries = np.dtype(layout.kv_type).itemsize, spec.num_heads * spec.head_dim
    attention = 4 * rows * (2 * spec.dim + 3 * queries + 4 * spec.kv_dim)
    score_rows = settings.max_nodes if has_spans else rows
    if layout.shared:
        attention += 4 * spec.num_heads * score_rows * context
    else:  # keys and values are repeated for every head, and keys turned
        scores = 4 * spec.num_heads * rows * context
        attention = int(scores * _PLAIN_SCORES[kv_item]) + 12 * context * queries
    feed_forward = 4 * rows * (3 * spec.dim + 4 * max(spec.ffn_dim, queries))
    one_row = layout.picks or bool(layout.takes & KEPT_ROWS)
    head = 4 * spec.vocab_size * (1 if one_row else rows)
    return max(attention, feed_forward, head) + _masks_bytes(layout, settings)


def _masks_bytes(layout: Layout, settings: Settings) -> int:
    rows = max(settings.prefill_chunk, settings.max_nodes) + settings.max_nodes
    item = np.dtype(layout.kv_type).itemsize
    return rows * settings.context * item if layout.trees else 0


@dataclass(frozen=True, slots=True)
class Weights:
    """Bytes of a graph's constants once it is open, and beyond these while it is opened."""

    kept_bytes: int
    opening_bytes: int

    @classmethod
    def of(cls, graph: Graph, *, patched: bool) -> Weights:
        """A matrix that is multiplied with is repacked, and its file's pages are given back unless
        something else reads it, as an embedding that is the head too. What lies within a graph is
        held as it was read until it is open, twice if it is `patched`.
        """
        products, scales, others = _uses(graph)
        kept, mapped, largest, within = BLOCK_BYTES * _num_blocks(graph), 0, 0, 0
        untouched = 0  # nobody reads an embedding before the first pass
        widening = 0
        for tensor in graph.constants.values():
            size = tensor.size_bytes
            if tensor.name in products:  # 16-bit floats are multiplied with as 32-bit ones
                kept += 2 * size if tensor.kind in _HALVES else size
            elif tensor.name in scales and tensor.location:  # repacked matrices have them within
                mapped += size
            if tensor.name in others or tensor.name not in products | scales or _NO_PAGES_BACK:
                kept += size
                untouched += size if tensor.location and tensor.name not in products else 0
            if tensor.name in products and tensor.kind in _HALVES:
                widening = _WIDENING_BYTES
                largest = max(largest, 2 * size)  # as 32-bit floats, before it is repacked
            largest = max(largest, size)
            within += 0 if tensor.location else size
        opening = OPENING_BYTES + widening + mapped + largest + (2 if patched else 1) * within
        opening -= untouched
        left = int(PARSED_KEPT * within)
        return cls(kept + left, opening - left)


def _uses(graph: Graph) -> tuple[set[str], set[str], set[str]]:
    """Names of matrices that are multiplied with, of their scales, and of what others read."""
    products, scales, others = set[str](), set[str](), set[str]()
    for node in graph.nodes:
        place = _PRODUCTS.get(node.operator, -1)
        for at, name in enumerate(node.inputs):
            if at == place:
                products.add(name)
            elif node.operator == _QUANTISED and at == 2:
                scales.add(name)
            else:
                others.add(name)
    return products, scales, others


def _num_blocks(graph: Graph) -> int:
    """Of all quantised matrices that are multiplied with."""
    return sum(
        node.settings.get("N", 0)
        * node.settings.get("K", 0)
        // max(16, node.settings.get("block_size", 32))
        for node in graph.nodes
        if node.operator == _QUANTISED
    )
