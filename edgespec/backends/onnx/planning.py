"""What a session of ONNX Runtime holds, counted from the graph; the rest is measured.

The library is asked for no arena and no memory pattern, so what a pass allocates is what its
largest operators need at a time.
"""

from __future__ import annotations

import numpy as np

from edgespec.backends.onnx.layout import layout_of
from edgespec.backends.onnx.library import missing
from edgespec.errors import BackendError, UnsupportedModelError
from edgespec.memory.foreign import Ask, EngineBytes
from edgespec.memory.settings import Settings
from edgespec.memory.size import KIB, MIB
from edgespec.models.file import ModelFile
from edgespec.models.onnx_file import OnnxFile
from edgespec.models.onnx_graph import Node
from edgespec.models.spec import TensorType

LIBRARY_BYTES = 16 * MIB
"""onnxruntime 1.31: 8 MiB are kept of importing it, the rest are pages that come back in use."""
_REPACKED = {True: 1.6, False: 1.25}
"""Repacked matrices keep so much more of 4 bytes a block, with 4 bits and with 8: measured 1.43 and
1.03 on a model of 336 million parameters.
"""
GRAPH_BYTES_PER_NODE = 16 * KIB
"""Of a node with its kernel, names and types."""
TOKENIZER_BYTES_PER_TOKEN = 400
"""What the `tokenizers` library keeps, beside our own vocabulary."""
_HALVES = (TensorType.F16, TensorType.BF16)


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


def ask_onnx(file: ModelFile) -> Ask:
    """Who tells what sessions on a file would hold."""
    assert isinstance(file, OnnxFile)
    spec, layout = file.spec, layout_of(file)
    kv_item = np.dtype(layout.kv_type).itemsize
    widest = max(
        (info.shape[0] for info in file.tensors.values() if info.shape[0] != spec.vocab_size),
        default=0,
    )

    def ask(settings: Settings, threads: int) -> EngineBytes:
        del threads
        rows, context = max(settings.prefill_chunk, settings.max_nodes), settings.context
        positions = context * spec.num_layers * 2 * spec.kv_dim * kv_item
        attended = spec.num_heads * rows * context * 4
        width = 3 * widest + 4 * spec.dim + 2 * spec.num_heads * spec.head_dim
        masks = (rows + settings.max_nodes) * context * kv_item if layout.trees else 0
        return EngineBytes(
            name="ONNX Runtime",
            library=LIBRARY_BYTES + len(file.graph.nodes) * GRAPH_BYTES_PER_NODE,
            vocabulary=spec.vocab_size * TOKENIZER_BYTES_PER_TOKEN,
            cache=positions if layout.shared else 2 * positions,
            compute=attended + 4 * rows * width + masks,
            kv_type="f16" if kv_item == 2 else "f32",
            weights=_weights_bytes(file),
            branch_bytes=0,
        )

    return ask


def _weights_bytes(file: OnnxFile) -> int:
    """16-bit floats are computed with as 32-bit ones, which are made when the graph is loaded;
    quantised matrices are repacked, with a sum for each block beside its scale.
    """
    kept = sum(
        info.size_bytes * (2 if info.type in _HALVES and len(info.shape) > 1 else 1)
        for info in file.tensors.values()
    )
    return kept + int(sum(map(_repacking, filter(_is_product, file.graph.nodes))))


def _is_product(node: Node) -> bool:
    return node.operator == "MatMulNBits"


def _repacking(node: Node) -> float:
    """What a quantised product holds besides its weights and scales."""
    at, width = node.settings.get, 4
    blocks = at("N", 0) * at("K", 0) / max(16, at("block_size", 32))
    return width * blocks * _REPACKED[at("bits", 4) == 4]
