"""A decoder as Optimum exports one: plain operators, and keys and values that grow by a copy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from edgespec.models.file import ModelFile
from edgespec.tools.export.export import DATA, GRAPH
from edgespec.tools.export.graph import GraphWriter
from edgespec.tools.export.matrices import DataFile, form_of


class GrowingGraph(GraphWriter):
    """Attention written out: past and new keys joined, scores masked, mixed."""

    def _declare(self) -> None:
        self._fused_rotation = False  # so that positions are an input
        super()._declare()
        self._mask()

    def _mask(self) -> None:
        """0 where a row may look, -inf behind it: [rows, positions]."""
        self._constant("zero", np.array(0, np.int64))
        self._constant("step", np.array(1, np.int64))
        self._constant("lead", np.array([1], np.int64))
        self._constant("free", np.array(0, np.float32))
        self._constant("barred", np.array(-1e30, np.float32))
        total = self._node("Gather", [self._node("Shape", ["attention_mask"]), "step"], axis=0)
        columns = self._node("Range", ["zero", total, "step"])
        rows = self._node("Transpose", ["position_ids"], perm=[1, 0])
        behind = self._node("Greater", [columns, rows])
        self._node("Where", [behind, "barred", "free"], out="mask")

    def _attention(self, layer: int, normed: str) -> str:
        spec = self._spec
        query, key, value = (self._project(layer, f"attn_{part}", normed) for part in "qkv")
        heads = (spec.num_heads, spec.num_kv_heads)
        if self._plain.query_norm is not None:
            query, key = (
                self._norm_heads(layer, part, values, count)
                for part, values, count in zip("qk", (query, key), heads, strict=True)
            )
        query, key = (
            self._rotated(values, count) for values, count in zip((query, key), heads, strict=True)
        )
        query = self._split(layer, query, spec.num_heads)
        joined = []
        for part, values in (("key", key), ("value", value)):
            new = self._split(layer, values, spec.num_kv_heads)
            past, out = f"past_key_values.{layer}.{part}", f"present.{layer}.{part}"
            joined.append(self._repeat(layer, self._node("Concat", [past, new], axis=2, out=out)))
        turned = self._node("Transpose", [joined[0]], perm=[0, 1, 3, 2])
        self._constant("scale", np.array(spec.head_dim**-0.5, np.float32))
        scores = self._node("Mul", [self._node("MatMul", [query, turned]), "scale"])
        shares = self._node("Softmax", [self._node("Add", [scores, "mask"])], axis=-1)
        mixed = self._node(
            "Transpose", [self._node("MatMul", [shares, joined[1]])], perm=[0, 2, 1, 3]
        )
        self._constant("flat", np.array([0, 0, spec.num_heads * spec.head_dim]))
        flat = self._node("Reshape", [mixed, "flat"])
        return self._product(flat, f"blk.{layer}.attn_output.weight")

    def _product(self, values: str, name: str, out: str = "") -> str:
        """Floats by the plain operator, whose matrix has a column for each output."""
        if form_of(self._file.tensors[name], self._bits).kind != "FLOAT":
            return super()._product(values, name, out)
        columns = f"{name}.columns"
        if self._written(columns) is None:
            matrix = self._file.matrix_f32(name).T
            self._constants.append(self._data.add(columns, "FLOAT", matrix.shape, iter([matrix])))
        return self._node("MatMul", [values, columns], out=out)

    def _split(self, layer: int, values: str, heads: int) -> str:
        """[1, rows, heads * width] to [1, heads, rows, width]."""
        shape = f"split.{heads}"
        self._constant(shape, np.array([0, 0, heads, self._spec.head_dim]))
        return self._node("Transpose", [self._node("Reshape", [values, shape])], perm=[0, 2, 1, 3])

    def _repeat(self, layer: int, values: str) -> str:
        """Each head as often as queries share it."""
        spec = self._spec
        order = np.repeat(np.arange(spec.num_kv_heads), spec.num_heads // spec.num_kv_heads)
        self._constant("order", order)
        return self._node("Gather", [values, "order"], axis=1)


def write_growing(file: ModelFile, folder: Path, bits: int | None = None) -> Any:
    """Replace the graph in a folder that `export` made."""
    with (folder / DATA).open("wb") as data:
        model = GrowingGraph(file, DataFile(data, DATA), bits, file.spec.context_length).model()
    (folder / GRAPH).write_bytes(model.SerializeToString())
