"""Weights in tiles: read a few rows at a time, packed, and never held twice."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgespec.backends.native.kernels import table
from edgespec.backends.native.kernels.matmul.pack import packer
from edgespec.backends.native.kernels.matmul.tile import FORMATS, TILE_ROWS, TileFormat
from edgespec.backends.native.kernels.matmul.unpack import unpack_rows
from edgespec.backends.passes import Progress
from edgespec.memory.plan.native_sizes import turned_mixers, turned_type
from edgespec.memory.plan.streaming import Streaming
from edgespec.models.file import ModelFile
from edgespec.models.gguf.dequantise import dequantise
from edgespec.models.layers import Matrix
from edgespec.models.spec import TensorInfo, TensorType
from edgespec.system.records import dataclass

CHUNK_BYTES = 4 << 20
"""Bytes of the file in memory at a time while a matrix is packed."""

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

    @classmethod
    def on_disk(cls, form: TileFormat, num_rows: int, num_columns: int) -> PackedMatrix:
        """No tiles: whoever brings them to memory says where they are."""
        return cls(form, num_rows, num_columns, np.zeros(0, np.uint8), np.zeros(0, np.uint8))

    @classmethod
    def within(
        cls, form: TileFormat, num_rows: int, num_columns: int, memory: NDArray[np.uint8]
    ) -> PackedMatrix:
        """Tiles in memory that is there: weights, then scales."""
        num_tiles = -(-num_rows // TILE_ROWS)
        weight_bytes, scale_bytes = form.tile_bytes(num_columns)
        weights, end = memory[: num_tiles * weight_bytes], num_tiles * (weight_bytes + scale_bytes)
        return cls(form, num_rows, num_columns, weights, memory[len(weights) : end])

    @property
    def is_on_disk(self) -> bool:
        return False

    @property
    def places(self) -> tuple[int, int, int, int]:
        """Addresses of weights and scales, and bytes of both in a tile."""
        return self._places

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


def load_matrix(file: ModelFile, part: Matrix, progress: Progress | None = None) -> PackedMatrix:
    """Pack one matrix of a file, experts' below each other, a few megabytes of rows at a time."""
    info = file.tensors[part.tensor]
    num_rows, num_columns = part.experts * part.rows, part.columns
    matrix = PackedMatrix.allocate(FORMATS[info.type], num_rows, num_columns)
    step = rows_at_once(info.type, num_columns, CHUNK_BYTES)
    for first in range(0, num_rows, step):
        ranges = tensor_rows(part, info, first, min(first + step, num_rows))
        pieces = [file.rows(part.tensor, start, stop) for start, stop in ranges]
        raw = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
        matrix.pack_rows(first, raw)
        if progress is not None:
            progress(raw.nbytes, info.size_bytes)
    return matrix


def rows_at_once(kind: TensorType, num_columns: int, num_bytes: int) -> int:
    """Rows of a file that so many bytes hold: whole tiles, at least one."""
    return max(1, num_bytes // (TILE_ROWS * kind.row_bytes(num_columns))) * TILE_ROWS


def tensor_rows(part: Matrix, info: TensorInfo, first: int, last: int) -> list[tuple[int, int]]:
    """Which rows of its tensor a matrix's rows `first` .. `last` - 1 are."""
    height = math.prod(info.shape[:-1]) // part.experts
    return list(_ranges(part, first, last, height))


def load_turned(
    file: ModelFile, part: Matrix, heads: int, progress: Progress | None = None
) -> PackedMatrix:
    """Pack a matrix of every head's [rows, columns] as [columns, rows] below each other, in a type
    that has no blocks.
    """
    info, height = file.tensors[part.tensor], part.rows // heads
    kind = turned_type(info.type)
    matrix = PackedMatrix.allocate(FORMATS[kind], heads * part.columns, height)
    numbers = np.float32 if kind == TensorType.F32 else np.float16
    for head in range(heads):
        ((start, stop),) = _ranges(part, head * height, head * height + height, 0)
        raw = file.rows(part.tensor, start, stop)
        rows = np.ascontiguousarray(dequantise(raw, info.type).reshape(height, -1).T, numbers)
        matrix.pack_rows(head * part.columns, rows.view(np.uint8))
        if progress is not None:
            progress(raw.nbytes, info.size_bytes)
    return matrix


def _ranges(part: Matrix, first: int, last: int, height: int) -> Iterator[tuple[int, int]]:
    """Which rows of the tensor a matrix's rows `first` .. `last` - 1 are, experts' below each
    other; the tensor has `height` rows for each expert.
    """
    if not part.run and part.rows == height:
        yield first, last
        return
    while first < last:
        expert, row = divmod(first, part.rows)
        block, within = divmod(row, part.run or part.rows)
        count = min((part.run or part.rows) - within, part.rows - row, last - first)
        start = expert * height + part.first + block * part.stride + within
        yield start, start + count
        first += count


class RowsOnDisk:
    """A matrix [rows, columns] that is only looked up in: each time its rows are read from disk."""

    size_bytes, is_on_disk = 0, True
    places = 0, 0, 0, 0

    def __init__(self, file: ModelFile, part: Matrix) -> None:
        self._file, self._part = file, part
        form = FORMATS[file.tensors[part.tensor].type]
        self._tile = PackedMatrix.allocate(form, 1, part.columns)
        self.format = form

    def unpack_rows(self, rows: NDArray[np.int32], out: NDArray[np.float32]) -> None:
        """Write these rows [n] as f32 [n or more, columns]."""
        first = np.zeros(1, np.int32)
        for place, row in enumerate(rows):
            row = self._part.first + int(row)
            self._tile.pack_rows(0, self._file.rows(self._part.tensor, row, row + 1))
            self._tile.unpack_rows(first, out[place:])


class Weights:
    """All weights of a model, packed, and where they are; those of a draft head read the embedding
    and the output head of the model's where the head has none.
    """

    def __init__(
        self,
        file: ModelFile,
        progress: Progress | None = None,
        lender: Weights | None = None,
        streaming: Streaming | None = None,
    ) -> None:
        """What `streaming` leaves on disk is described, and not read."""
        spec = file.spec
        unused = set(spec.unused)
        total = sum(info.size_bytes for name, info in file.tensors.items() if name not in unused)
        done = 0

        def report(part: int, _: int) -> None:
            nonlocal done
            done += part
            if progress is not None:
                progress(done, total)

        self._file = file
        self._lender = lender
        looked_up = Matrix(spec.embedding, spec.num_readable, spec.dim)
        self.embedding: PackedMatrix | RowsOnDisk
        if lender is not None and not spec.embedding:
            self.embedding = lender.embedding
        elif streaming is not None and streaming.embedding:
            self.embedding = RowsOnDisk(file, looked_up)
        else:
            self.embedding = load_matrix(file, looked_up, report)
        self.head: PackedMatrix
        if lender is not None and not spec.head:
            self.head = lender.head
        elif spec.tied_embeddings:
            assert isinstance(self.embedding, PackedMatrix)
            self.head = self.embedding
        else:
            self.head = load_matrix(file, Matrix(spec.head, spec.vocab_size, spec.dim), report)
        self._packed: dict[Matrix, PackedMatrix] = {}
        extra, joined = spec.per_layer_embedding, spec.head_input
        outer: tuple[Matrix, ...] = (extra.table, extra.projection) if extra else ()
        if joined is not None:
            outer += joined.matrices
        if spec.streams is not None:
            outer += (spec.streams.projection, spec.streams.unembedding)
        turned = {own.key_up: own.heads for own in turned_mixers(spec)}
        left_out = set() if streaming is None else streaming.left_out(spec)
        for matrix in (*outer, *(each for layer in spec.layers for each in layer.matrices)):
            if matrix in turned:
                self._packed[matrix] = load_turned(file, matrix, turned[matrix], report)
            elif matrix in left_out:
                form, num_rows = FORMATS[file.tensors[matrix.tensor].type], matrix.rows
                self._packed[matrix] = PackedMatrix.on_disk(
                    form, matrix.experts * num_rows, matrix.columns
                )
            elif matrix not in self._packed:
                self._packed[matrix] = load_matrix(file, matrix, report)
        self._rows = {matrix: packed.describe() for matrix, packed in self._packed.items()}
        self._head_row = self.head.describe()
        self._short_head = self._head_row.copy()
        self._vectors: dict[tuple[str, int], NDArray[np.float32]] = {}

    def place(self, matrix: Matrix | None) -> int:
        """The address of a matrix's description, 0 for none."""
        place: int = 0 if matrix is None else self._rows[matrix].ctypes.data
        return place

    def move(self, matrix: Matrix, tiles: PackedMatrix) -> None:
        """Let a matrix be where its tiles are now."""
        self._rows[matrix][table.WEIGHTS : table.SCALES + 1] = tiles.places[:2]

    def packed(self, matrix: Matrix) -> PackedMatrix:
        return self._packed[matrix]

    def bias(self, matrix: Matrix | None) -> int:
        """The address of its bias, f32 cut like its rows and padded to whole tiles; 0 for none."""
        if matrix is None or not matrix.bias:
            return 0
        key = (matrix.bias, matrix.first)
        if key not in self._vectors:
            whole = self._file.matrix_f32(matrix.bias).ravel()
            num_rows, height = matrix.experts * matrix.rows, len(whole) // matrix.experts
            ranges = _ranges(matrix, 0, num_rows, height)
            self._keep(key, np.concatenate([whole[start:stop] for start, stop in ranges]))
        return self._address(key)

    def vector(self, name: str, width: int = 0) -> int:
        """The address of a vector, f32 padded to whole tiles; ones [width] where it has no name."""
        key = (name, -1 if name else width)
        if key not in self._vectors:
            self._keep(key, self._file.matrix_f32(name).ravel() if name else np.ones(width))
        return self._address(key)

    def turned(self, name: str, rows: int) -> int:
        """The address of a matrix [rows, columns] as f32 [columns, rows]."""
        if (name, -1) not in self._vectors:
            values = self._file.matrix_f32(name).reshape(rows, -1)
            self._keep((name, -1), np.ascontiguousarray(values.T).ravel())
        return self._address((name, -1))

    def number(self, name: str) -> float:
        """The one number of a tensor."""
        return float(self._file.matrix_f32(name).ravel()[0])

    def _keep(self, key: tuple[str, int], values: NDArray[Any]) -> None:
        padded = np.zeros(-(-len(values) // TILE_ROWS) * TILE_ROWS, np.float32)
        padded[: len(values)] = values
        self._vectors[key] = padded

    def _address(self, key: tuple[str, int]) -> int:
        address: int = self._vectors[key].ctypes.data
        return address

    def head_place(self, num_logits: int) -> int:
        """The address of the head's description, for the first so many tokens."""
        if num_logits == self.head.num_rows:
            place: int = self._head_row.ctypes.data
            return place
        self._short_head[table.NUM_TILES] = -(-num_logits // TILE_ROWS)
        short: int = self._short_head.ctypes.data
        return short

    @property
    def kinds(self) -> frozenset[TensorType]:
        """Types of all matrices that are multiplied."""
        layers = (matrix.format.type for matrix in self._packed.values())
        return frozenset({self.head.format.type, *layers})

    @property
    def size_bytes(self) -> int:
        lent = self._lender
        held = {id(each): each for each in (self.embedding, self.head, *self._packed.values())}
        if lent is not None:
            held = {key: each for key, each in held.items() if not lent.holds(each)}
        small = sum(vector.nbytes for vector in self._vectors.values())
        return sum(matrix.size_bytes for matrix in held.values()) + small

    def holds(self, matrix: PackedMatrix | RowsOnDisk) -> bool:
        """Whether a matrix is the embedding or the output head."""
        return matrix is self.embedding or matrix is self.head
