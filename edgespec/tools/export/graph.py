"""A decoder written as an ONNX graph, of ONNX Runtime's fused operators.

The names of inputs and outputs, the shared buffer of past and present keys and values, and
`attention_mask` are those of onnxruntime-genai's models.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgespec.backends.passes import Progress
from edgespec.backends.reference import rope_frequencies
from edgespec.models.file import ModelFile
from edgespec.models.layers import Attention
from edgespec.models.onnx.folder import FFN_WIDTH
from edgespec.tools.export.matrices import (
    BLOCK,
    DataFile,
    float_rows,
    form_of,
    quantised_rows,
    scale_rows,
)
from edgespec.tools.export.plain_model import plain_attention

_FUSED = "com.microsoft"
_OPSET, _IR_VERSION = 17, 8
_INTEGERS_ACCURACY = 4
"""Activations are rounded to 8 bits for a product with quantised weights, as elsewhere here."""


def fuses_rotation(attention: Attention) -> bool:
    """Whether GroupQueryAttention can rotate heads of this width itself; if not, the graph asks for
    `position_ids`.
    """
    assert attention.rope is not None
    return attention.head_dim % 16 == 0 and attention.rope.dim % 16 == 0


class GraphWriter:
    """Collects nodes and weights of one model, layer by layer."""

    def __init__(self, file: ModelFile, data: DataFile, bits: int | None, context: int) -> None:
        self._file, self._data, self._bits = file, data, bits
        self._spec, self._context = file.spec, context
        self._plain = plain_attention(file.spec)
        assert self._plain.rope is not None
        self._rope = self._plain.rope
        self._fused_rotation = fuses_rotation(self._plain)
        self._nodes: list[Any] = []
        self._constants: list[Any] = []
        self._inputs: list[Any] = []
        self._outputs: list[Any] = []

    def model(self, progress: Progress | None = None) -> Any:
        """The whole ModelProto; its matrices are in the data file. `progress` counts layers."""
        from onnx import helper

        self._declare()
        stream = self._embedding()
        normed = self._norm(stream, "blk.0.attn_norm.weight")
        for layer in range(self._spec.num_layers):
            last = layer + 1 == self._spec.num_layers
            after = "output_norm.weight" if last else f"blk.{layer + 1}.attn_norm.weight"
            mixed = self._attention(layer, normed)
            normed, stream = self._add_and_norm(mixed, stream, f"blk.{layer}.ffn_norm.weight")
            normed, stream = self._add_and_norm(self._feed_forward(layer, normed), stream, after)
            if progress is not None:
                progress(layer + 1, self._spec.num_layers)
        self._product(normed, self._spec.head, out="logits")
        graph = helper.make_graph(
            self._nodes, self._spec.name, self._inputs, self._outputs, self._constants
        )
        versions = [helper.make_opsetid("", _OPSET), helper.make_opsetid(_FUSED, 1)]
        model = helper.make_model(graph, opset_imports=versions, ir_version=_IR_VERSION)
        model.producer_name = "edgespec"
        # onnxruntime-genai refuses the width in its own file, and memory is planned by it.
        width = {FFN_WIDTH: str(self._spec.ffn_dim)}
        helper.set_model_props(model, {"name": self._spec.name} | width)
        return model

    def _declare(self) -> None:
        """Inputs and outputs, and what every layer needs of them."""
        from onnx import TensorProto

        spec, integers, floats = self._spec, TensorProto.INT64, TensorProto.FLOAT
        batch, rows, total = "batch_size", "sequence_length", "total_sequence_length"
        self._input("input_ids", integers, [batch, rows])
        self._input("attention_mask", integers, [batch, total])
        if not self._fused_rotation:
            self._input("position_ids", integers, [batch, rows])
        self._output("logits", floats, [batch, rows, spec.vocab_size])
        for layer in range(spec.num_layers):
            for part in ("key", "value"):
                before, after = (
                    [batch, spec.num_kv_heads, length, spec.head_dim]
                    for length in ("past_sequence_length", total)
                )
                self._input(f"past_key_values.{layer}.{part}", floats, before)
                self._output(f"present.{layer}.{part}", floats, after)
        self._lengths()
        self._rotation()

    def _lengths(self) -> None:
        """`last`: the index of the last position; `total`: how many there are."""
        from onnx import TensorProto

        self._constant("one", np.array([1], np.int64))
        self._constant("axis", np.array([1], np.int64))
        self._constant("no_axes", np.array(1, np.int64))
        count = self._node("ReduceSum", ["attention_mask", "axis"], keepdims=0)
        before = self._node("Sub", [count, "one"])
        self._node("Cast", [before], out="last", to=TensorProto.INT32)
        total = self._node("Gather", [self._node("Shape", ["attention_mask"]), "no_axes"], axis=0)
        self._node("Cast", [total], out="total", to=TensorProto.INT32)

    def _rotation(self) -> None:
        """Cosines and sines of all positions."""
        rope = self._rope
        factors = self._file.matrix_f32(rope.factors) if rope.factors else None
        frequencies = rope_frequencies(rope, factors)
        angles = np.arange(self._context)[:, None] * np.asarray(frequencies, np.float64)
        for name, function in (("cos_cache", np.cos), ("sin_cache", np.sin)):
            values = function(angles).astype(np.float32)
            self._constants.append(self._data.add(name, "FLOAT", values.shape, iter([values])))

    def _embedding(self) -> str:
        name, info = "token_embd.weight", self._file.tensors["token_embd.weight"]
        form = form_of(info, self._bits)
        if not form.bits:
            self._floats(name, form.kind)
            return self._to_float(self._node("Gather", [name, "input_ids"], axis=0), form.kind)
        quantised, scales = self._quantised(name, form.bits, flat=True)
        return self._node(
            "GatherBlockQuantized",
            [quantised.name, "input_ids", scales.name],
            domain=_FUSED,
            bits=form.bits,
            block_size=BLOCK,
            gather_axis=0,
            quantize_axis=1,
        )

    def _attention(self, layer: int, normed: str) -> str:
        spec = self._spec
        parts = [self._project(layer, f"attn_{part}", normed) for part in "qkv"]
        if self._plain.query_norm is not None:
            for index, heads in ((0, spec.num_heads), (1, spec.num_kv_heads)):
                parts[index] = self._norm_heads(layer, "qk"[index], parts[index], heads)
        caches = ["cos_cache", "sin_cache"]
        if self._fused_rotation:
            settings: dict[str, Any] = {
                "do_rotary": 1,
                "rotary_interleaved": int(self._rope.layout == "interleaved"),
            }
        else:
            for index, heads in ((0, spec.num_heads), (1, spec.num_kv_heads)):
                parts[index] = self._rotated(parts[index], heads)
            settings, caches = {"do_rotary": 0}, []
        past = [f"past_key_values.{layer}.{part}" for part in ("key", "value")]
        mixed = f"blk.{layer}.mixed"
        self._node(
            "GroupQueryAttention",
            [*parts, *past, "last", "total", *caches],
            outs=[mixed, f"present.{layer}.key", f"present.{layer}.value"],
            domain=_FUSED,
            num_heads=spec.num_heads,
            kv_num_heads=spec.num_kv_heads,
            scale=float(spec.head_dim**-0.5),
            **settings,
        )
        return self._product(mixed, f"blk.{layer}.attn_output.weight")

    def _feed_forward(self, layer: int, normed: str) -> str:
        gate, up = (
            self._product(normed, f"blk.{layer}.ffn_{part}.weight") for part in ("gate", "up")
        )
        gated = self._node("QuickGelu", [gate], domain=_FUSED, alpha=1.0)
        return self._product(self._node("Mul", [gated, up]), f"blk.{layer}.ffn_down.weight")

    def _project(self, layer: int, part: str, normed: str) -> str:
        made = self._product(normed, f"blk.{layer}.{part}.weight")
        bias = f"blk.{layer}.{part}.bias"
        if bias not in self._file.tensors:
            return made
        return self._node("Add", [made, self._vector(bias)])

    def _rotated(self, values: str, heads: int) -> str:
        """Queries or keys rotated by an operator of its own."""
        spec = self._spec
        settings: dict[str, Any] = {"interleaved": int(self._rope.layout == "interleaved")}
        if self._rope.dim < spec.head_dim:
            settings["rotary_embedding_dim"] = self._rope.dim
        inputs = [values, "position_ids", "cos_cache", "sin_cache"]
        return self._node("RotaryEmbedding", inputs, domain=_FUSED, num_heads=heads, **settings)

    def _norm_heads(self, layer: int, part: str, values: str, heads: int) -> str:
        """Each head normed by itself."""
        spec = self._spec
        self._constant(f"blk.{layer}.{part}_heads", np.array([0, 0, heads, spec.head_dim]))
        self._constant(f"blk.{layer}.{part}_width", np.array([0, 0, heads * spec.head_dim]))
        split = self._node("Reshape", [values, f"blk.{layer}.{part}_heads"])
        normed = self._norm(split, f"blk.{layer}.attn_{part}_norm.weight")
        return self._node("Reshape", [normed, f"blk.{layer}.{part}_width"])

    def _norm(self, values: str, gain: str) -> str:
        return self._node(
            "SimplifiedLayerNormalization",
            [values, self._vector(gain)],
            axis=-1,
            epsilon=self._spec.norm_epsilon,
            stash_type=1,
        )

    def _add_and_norm(self, values: str, stream: str, gain: str) -> tuple[str, str]:
        """(the sum normed, the sum)"""
        normed, total = f"{gain}.normed", f"{gain}.stream"
        self._node(
            "SkipSimplifiedLayerNormalization",
            [values, stream, self._vector(gain)],
            outs=[normed, "", "", total],
            domain=_FUSED,
            epsilon=self._spec.norm_epsilon,
        )
        return normed, total

    def _product(self, values: str, name: str, out: str = "") -> str:
        """Rows times a matrix of the file, which is written now unless it is there already."""
        info = self._file.tensors[name]
        form = form_of(info, self._bits)
        if not form.bits:
            self._floats(name, form.kind)
            matrix = self._to_float(name, form.kind)
            return self._node(
                "FusedMatMul", [values, matrix], domain=_FUSED, out=out, transB=1, alpha=1.0
            )
        quantised, scales = self._quantised(name, form.bits)
        return self._node(
            "MatMulNBits",
            [values, quantised.name, scales.name],
            domain=_FUSED,
            out=out,
            N=info.shape[0],
            K=info.shape[1],
            bits=form.bits,
            block_size=BLOCK,
            accuracy_level=_INTEGERS_ACCURACY,
        )

    def _floats(self, name: str, kind: str) -> None:
        if self._written(name) is None:
            rows = float_rows(self._file, name, kind)
            shape = self._file.tensors[name].shape
            self._constants.append(self._data.add(name, kind, shape, rows))

    def _quantised(self, name: str, bits: int, *, flat: bool = False) -> tuple[Any, Any]:
        """Weights and scales; an embedding that is the head too shares its bytes, in the `flat`
        shape that rows are gathered from.
        """
        rows, columns = self._file.tensors[name].shape
        blocks, width = columns // BLOCK, columns * bits // 8
        shape = (rows, width) if flat else (rows, blocks, width // blocks)
        quantised, scales = f"{name}.quantised", f"{name}.scales"
        written = self._written(quantised)
        if written is None:
            self._constants += [
                self._data.add(quantised, "UINT8", shape, quantised_rows(self._file, name, bits)),
                self._data.add(scales, "FLOAT", (rows, blocks), scale_rows(self._file, name, bits)),
            ]
        elif tuple(written.dims) != shape:
            quantised += ".blocks"
            self._constants.append(self._data.again(quantised, shape, written))
        return self._written(quantised), self._written(scales)

    def _written(self, name: str) -> Any:
        return next((tensor for tensor in self._constants if tensor.name == name), None)

    def _to_float(self, values: str, kind: str) -> str:
        from onnx import TensorProto

        if kind == "FLOAT":
            return values
        return self._node("Cast", [values], to=TensorProto.FLOAT)

    def _vector(self, name: str) -> str:
        self._constant(name, self._file.matrix_f32(name))
        return name

    def _constant(self, name: str, values: NDArray[Any]) -> None:
        from onnx import numpy_helper

        if self._written(name) is None:
            self._constants.append(numpy_helper.from_array(values, name))

    def _input(self, name: str, kind: int, shape: list[Any]) -> None:
        from onnx import helper

        self._inputs.append(helper.make_tensor_value_info(name, kind, shape))

    def _output(self, name: str, kind: int, shape: list[Any]) -> None:
        from onnx import helper

        self._outputs.append(helper.make_tensor_value_info(name, kind, shape))

    def _node(
        self, operator: str, inputs: list[str], *, out: str = "", outs: list[str] | None = None,
        **settings: Any,
    ) -> str:  # fmt: skip
        """Add a node; returns the name of its first output."""
        from onnx import helper

        outs = outs or [out or f"{operator}.{len(self._nodes)}"]
        self._nodes.append(helper.make_node(operator, inputs, outs, **settings))
        return outs[0]
