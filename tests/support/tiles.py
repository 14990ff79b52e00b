"""Random weight tiles and activations, machine code called by address, and what it should give."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import NDArray

from edgespec.backends.native.kernels.matmul import tile
from edgespec.backends.native.weights import PackedMatrix
from edgespec.models.spec import TensorType
from tests.support.gguf_models import set_scales

KINDS = tuple(tile.FORMATS)


def name(kind: object) -> str:
    """A readable test id."""
    return kind.name if isinstance(kind, TensorType) else str(kind)


def raw_rows(kind: TensorType, num_rows: int, num_columns: int, seed: int = 0) -> NDArray[np.uint8]:
    """Rows [rows, row_bytes] as a file holds them: every bit random but those of the scales."""
    rng = np.random.default_rng(seed)
    floats = rng.standard_normal((num_rows, num_columns), dtype=np.float32)
    if kind is TensorType.F32:
        return floats.view(np.uint8)
    if kind is TensorType.F16:
        return floats.astype(np.float16).view(np.uint8)
    if kind is TensorType.BF16:
        return (floats.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    raw = rng.integers(0, 256, (num_rows, kind.row_bytes(num_columns)), dtype=np.uint8)
    scales = rng.standard_normal((num_rows, num_columns // kind.block_size)) / 100
    set_halves(kind, raw, scales)
    return raw


def set_halves(kind: TensorType, raw: NDArray[np.uint8], value: Any) -> None:
    """Make every scale and minimum of the raw rows' blocks a number, or those of [rows, blocks]."""
    blocks = raw.reshape(len(raw), -1, kind.block_bytes)
    set_scales(kind.name, blocks, np.broadcast_to(np.float32(value), blocks.shape[:2]))


def dequantised(kind: TensorType, raw: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Rows [rows, columns] f32, by the gguf package."""
    values: NDArray[np.float32] = dequantize(raw, GGMLQuantizationType[kind.name])
    return values.astype(np.float32)


@dataclass(frozen=True, slots=True)
class Tile:
    """Up to 16 packed rows."""

    kind: TensorType
    num_columns: int
    weights: NDArray[np.uint8]
    scales: NDArray[np.uint8]

    @classmethod
    def pack(cls, kind: TensorType, raw: NDArray[np.uint8], num_columns: int) -> Tile:
        matrix = PackedMatrix.allocate(tile.FORMATS[kind], len(raw), num_columns)
        matrix.pack_rows(0, raw)
        return cls(kind, num_columns, matrix.weights, matrix.scales)

    @property
    def addresses(self) -> tuple[int, int]:
        return self.weights.ctypes.data, self.scales.ctypes.data


@dataclass(frozen=True, slots=True)
class Activations:
    """Tokens' activations in both forms."""

    values: NDArray[np.float32]
    """What they stand for, [tokens, columns]."""
    quants: NDArray[np.int8]
    planes: NDArray[np.int32]
    """[planes, tokens, blocks]."""

    @classmethod
    def random(
        cls, num_tokens: int, num_columns: int, seed: int = 1, extreme: bool = False
    ) -> Activations:
        """Any int8 but -128, any scale; columns in whole blocks or, for floats only, not.

        The first token of an `extreme` batch is the least there is in all its columns.
        """
        rng = np.random.default_rng(seed)
        blocks = -(-num_columns // tile.BLOCK)
        quants = rng.integers(-127, 128, (num_tokens, blocks * tile.BLOCK)).astype(np.int8)
        quants[:, rng.random(blocks * tile.BLOCK) < 0.1] = 127
        quants[: int(extreme)] = -127
        scales: NDArray[np.float32] = np.abs(
            rng.standard_normal((num_tokens, blocks), dtype=np.float32)
        ) / np.float32(50)
        scales[rng.random(scales.shape) < 0.1] = 0.0
        values = (quants * np.repeat(scales, tile.BLOCK, axis=1)).astype(np.float32)
        values = np.ascontiguousarray(values[:, :num_columns])
        return cls(values, quants, planes_of(quants, scales))

    def arguments(
        self, packed: Tile, output: NDArray[np.float32], accumulate: bool = False
    ) -> tuple[int, ...]:
        """The twelve integers of a tile function; results go to output [tokens, >= 16]."""
        is_float = tile.FORMATS[packed.kind].is_float
        source: NDArray[Any] = self.values if is_float else self.quants
        return (
            *packed.addresses,
            source.ctypes.data,
            self.planes.ctypes.data,
            output.ctypes.data,
            packed.num_columns // (2 if is_float else tile.BLOCK),
            source.strides[0],
            self.planes.strides[1],
            self.planes.strides[0],
            output.strides[0],
            len(self.values),
            int(accumulate),
        )

    def run(
        self, address: int, packed: Tile, *, output: NDArray[np.float32], accumulate: bool = False
    ) -> None:
        """Call a tile function for all tokens."""
        call(address, *self.arguments(packed, output, accumulate))


def planes_of(quants: NDArray[np.int8], scales: NDArray[np.float32]) -> NDArray[np.int32]:
    """What tiles need to know of each block, [planes, tokens, blocks] (see `tile.py`)."""
    num_tokens, num_blocks = scales.shape
    halves = quants.reshape(num_tokens, num_blocks, 2, 16).astype(np.int32).sum(axis=3)
    sums = halves.sum(axis=2, dtype=np.int32)
    planes = np.zeros((tile.NUM_PLANES, num_tokens, num_blocks), np.int32)
    planes[tile.SCALE] = scales.view(np.int32)
    planes[tile.START_128] = -128 * sums
    planes[tile.START_8] = -8 * sums
    planes[tile.START_16] = -16 * sums
    planes[tile.START_32_LOW] = -32 * halves[..., 0]
    planes[tile.START_32_HIGH] = -32 * halves[..., 1]
    planes[tile.SUM] = (scales * sums.astype(np.float32)).view(np.int32)
    return planes


def call(address: int, *arguments: int) -> None:
    """Call machine code that takes 64-bit integers and returns nothing."""
    ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * len(arguments))(address)(*arguments)
