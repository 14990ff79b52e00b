"""Weights in tiles: read a few rows at a time, packed, and never held twice."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgespec.backends.native.kernels import table
from edgespec.backends.native.kernels.matmul.pack import packer
from edgespec.backends.native.kernels.matmul.tile import FORMATS, TILE_ROWS, TileFormat
from edgespec.backends.native.kernels.matmul.unpack import unpack_rows
from edgespec.backends.passes import Progress
from edgespec.models.file import ModelFile
from edgespec.models.spec import ModelSpec, TensorType

CHUNK_BYTES = 4 << 20
"""Bytes of the file in memory at a time while a matrix is packed."""

_LAYER = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
TYPE_CODES = {kind: code for code, kind in enumerate(FORMATS)}
"""Places of the types in the tables that kernels are handed."""


def _aligned(num_bytes: int) -> NDArray[np.uint8]:
    """Zeroed bytes that start on a cache line."""
    raw = np.zeros(num_bytes + 64, dtype=np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + num_bytes]


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """One matrix [rows, columns] in tiles."""

    format: TileFormat
    num_rows: int
    num_columns: int
    weights: NDArray[np.uint8]
    scales: NDArray[np.uint8]
    _places: tuple[int, int, int, int] = field(init=False)
    """Addresses of weights and scales, and bytes of both in a tile."""
    _fields: tuple[Any, ...] = field(init=False)
    """The format's layout as a plain tuple."""

    def __post_init__(self) -> None:
        sizes = self.format.tile_bytes(self.num_columns)
        places = (self.weights.ctypes.data, self.scales.ctypes.data, *sizes)
        object.__setattr__(self, "_places", places)
        object.__setattr__(self, "_fields", tuple(self.format.layout))

    @classmethod
    def allocate(cls, form: TileFormat, num_rows: int, num_columns: int) -> PackedMatrix:
        """Zeroed tiles; the system hands out their pages when they are filled."""
        num_tiles = -(-num_rows // TILE_ROWS)
        weights, scales = (_aligned(num_tiles * size) for size in form.tile_bytes(num_columns))
        return cls(form, num_rows, num_columns, weights, scales)

    @property
    def size_bytes(self) -> int:
        return self.weights.nbytes + self.scales.nbytes

    def describe(self) -> NDArray[np.int64]:
        """The row of the table of matrices (columns in `table.py`)."""
        weight_bytes, scale_bytes = self.format.tile_bytes(self.num_columns)
        steps = self.num_columns // (2 if self.format.is_float else 32)
        num_tiles = -(-self.num_rows // TILE_ROWS)
        addresses = (self.weights.ctypes.data, self.scales.ctypes.data)
        return np.array(
            [
                TYPE_CODES[self.format.type],
                *addresses,
                num_tiles,
                steps,
                weight_bytes,
                scale_bytes,
                int(self.format.is_float),
            ],
            dtype=np.int64,
        )

    def unpack_rows(self, rows: NDArray[np.int32], out: NDArray[np.float32]) -> None:
        """Write these rows [n] as f32 [n or more, columns]."""
        unpack_rows(self._fields, self._places, rows, out)

    def pack_rows(self, first: int, raw: NDArray[np.uint8]) -> None:
        """Fill tiles from raw rows of the file [rows, row_bytes]; `first` is a multiple of 16."""
        num_tiles, rest = divmod(len(raw), TILE_ROWS)
        if rest:
            last = np.zeros((TILE_ROWS, raw.shape[1]), np.uint8)
            last[:rest] = raw[-rest:]
            self._pack_tiles(first // TILE_ROWS + num_tiles, 1, last)
        self._pack_tiles(first // TILE_ROWS, num_tiles, raw)

    def _pack_tiles(self, index: int, count: int, raw: NDArray[np.uint8]) -> None:
        num_groups = self.num_columns // self.format.group
        pack = packer(self.format.type)
        pack(raw.ctypes.data, raw.strides[0], count, num_groups, *self._tile(index))

    def _tile(self, index: int) -> tuple[int, int]:
        """Addresses of one tile's weights and scales."""
        weights, scales, weight_bytes, scale_bytes = self._places
        return weights + index * weight_bytes, scales + index * scale_bytes


def load_matrix(file: ModelFile, name: str, progress: Progress | None = None) -> PackedMatrix:
    """Pack one matrix of a file, a few megabytes of rows at a time."""
    info = file.tensors[name]
    num_rows, num_columns = info.shape
    form = FORMATS[info.type]
    matrix = PackedMatrix.allocate(form, num_rows, num_columns)
    step = max(1, CHUNK_BYTES // (TILE_ROWS * info.type.row_bytes(num_columns))) * TILE_ROWS
    for first in range(0, num_rows, step):
        raw = file.rows(name, first, min(first + step, num_rows))
        matrix.pack_rows(first, raw)
        if progress is not None:
            progress(raw.nbytes, info.size_bytes)
    return matrix


class Weights:
    """All weights of a model, packed, and the tables of addresses that kernels read."""

    def __init__(self, file: ModelFile, progress: Progress | None = None) -> None:
        spec = file.spec
        total = sum(info.size_bytes for info in file.tensors.values())
        done = 0

        def report(part: int, _: int) -> None:
            nonlocal done
            done += part
            if progress is not None:
                progress(done, total)

        self.embedding = load_matrix(file, "token_embd.weight", report)
        tied = spec.tied_embeddings
        self.head = self.embedding if tied else load_matrix(file, "output.weight", report)
        self.layers = [
            [load_matrix(file, f"blk.{layer}.{name}.weight", report) for name in _LAYER]
            for layer in range(spec.num_layers)
        ]
        self._matrices = np.array([[matrix.describe() for matrix in row] for row in self.layers])
        self._head_matrix = self.head.describe()
        self._short_head = self._head_matrix.copy()
        self._head_place = self._head_matrix.ctypes.data
        self._norms = _stack(file, spec, "attn_norm.weight", "ffn_norm.weight")
        self._last_norm = file.matrix_f32("output_norm.weight").ravel()
        self._head_norms = _head_norms(file, spec)
        self._biases = _biases(file, spec)

    def fill(self, c: NDArray[np.int64]) -> None:
        """Enter the weights in the kernels' table."""
        c[table.MATRICES] = self._matrices.ctypes.data
        c[table.HEAD_MATRIX] = self._head_place
        c[table.NORMS] = self._norms.ctypes.data
        c[table.LAST_NORM_WEIGHT] = self._last_norm.ctypes.data
        c[table.HEAD_NORMS] = self._head_norms.ctypes.data
        c[table.BIASES] = self._biases.ctypes.data

    def head_matrix(self, num_logits: int) -> int:
        """The address of the head's row of the table of matrices, for the first so many tokens."""
        if num_logits == self.head.num_rows:
            return self._head_place
        self._short_head[table.NUM_TILES] = -(-num_logits // TILE_ROWS)
        return self._short_head.ctypes.data

    @property
    def kinds(self) -> frozenset[TensorType]:
        """Types of all matrices that are multiplied."""
        layers = (matrix.format.type for row in self.layers for matrix in row)
        return frozenset({self.head.format.type, *layers})

    @property
    def size_bytes(self) -> int:
        matrices = [self.embedding, *(matrix for row in self.layers for matrix in row)]
        if self.head is not self.embedding:
            matrices.append(self.head)
        small = (self._norms, self._last_norm, self._head_norms, self._biases)
        return sum(matrix.size_bytes for matrix in matrices) + sum(array.nbytes for array in small)


def _stack(file: ModelFile, spec: ModelSpec, *names: str) -> NDArray[np.float32]:
    """Vectors of all layers, f32 [layers, names, length]."""
    return np.array(
        [
            [file.matrix_f32(f"blk.{layer}.{name}").ravel() for name in names]
            for layer in range(spec.num_layers)
        ],
        dtype=np.float32,
    )


def _head_norms(file: ModelFile, spec: ModelSpec) -> NDArray[np.float32]:
    if spec.attentions[0].query_norm is None:
        return np.zeros((spec.num_layers, 2, 0), dtype=np.float32)
    return _stack(file, spec, "attn_q_norm.weight", "attn_k_norm.weight")


def _biases(file: ModelFile, spec: ModelSpec) -> NDArray[np.float32]:
    if not spec.attentions[0].query.bias:
        return np.zeros((spec.num_layers, 0), dtype=np.float32)
    names = ("attn_q.bias", "attn_k.bias", "attn_v.bias")
    return np.array(
        [
            np.concatenate([file.matrix_f32(f"blk.{layer}.{name}").ravel() for name in names])
            for layer in range(spec.num_layers)
        ],
        dtype=np.float32,
    )
