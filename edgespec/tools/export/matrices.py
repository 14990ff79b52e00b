"""Weight matrices in the forms ONNX Runtime multiplies, streamed from a GGUF file to a data file.

What a GGUF file holds in blocks of 32 with one scale and no minimum (Q8_0, Q4_0) means the same in
MatMulNBits, so those are copied exactly; floats are copied as they are; everything else is rounded
anew. A few rows are in memory at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from io import BufferedWriter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgespec.models.file import ModelFile
from edgespec.models.gguf.dequantise import dequantise
from edgespec.models.spec import TensorInfo, TensorType
from edgespec.system.records import dataclass

BLOCK = 32
"""Columns that share a scale."""
_STEP_BYTES = 4 << 20
_ALIGNMENT = 4096
"""Of tensors in the data file: whole pages, so that they can be mapped."""
_FLOATS = {TensorType.F32: "FLOAT", TensorType.F16: "FLOAT16", TensorType.BF16: "BFLOAT16"}
_FLOAT_BITS = {16: "FLOAT16", 32: "FLOAT"}


@dataclass(frozen=True, slots=True)
class Form:
    """How a matrix is written: quantised to 4 or 8 `bits`, or as a float `kind` with 0."""

    bits: int
    kind: str = "UINT8"


def form_of(info: TensorInfo, bits: int | None) -> Form:
    """The form of a matrix; `bits` None keeps what the file has, as nearly as there is a form.

    Rows that are not whole blocks stay floats.
    """
    whole = info.shape[-1] % BLOCK == 0
    if bits is None:
        if info.type in _FLOATS:
            return Form(0, _FLOATS[info.type])
        bits = 4 if info.type is TensorType.Q4_0 else 8
    if bits in _FLOAT_BITS or not whole:
        return Form(0, _FLOAT_BITS.get(bits, "FLOAT"))
    return Form(bits)


class DataFile:
    """The file of external data: tensors one after the other, each at the start of a page."""

    def __init__(self, file: BufferedWriter, name: str) -> None:
        self._file = file
        self._name = name

    def add(self, name: str, kind: str, shape: tuple[int, ...], parts: Iterator[Any]) -> Any:
        """Append a tensor from arrays that follow one another; returns its TensorProto."""
        self._file.write(bytes(-self._file.tell() % _ALIGNMENT))
        start = self._file.tell()
        for part in parts:
            self._file.write(np.ascontiguousarray(part).data.cast("B"))
        return self._proto(name, kind, shape, start, self._file.tell() - start)

    def again(self, name: str, shape: tuple[int, ...], tensor: Any) -> Any:
        """The same bytes under another name and shape."""
        place = {entry.key: int(entry.value) for entry in tensor.external_data[1:]}
        return self._proto(name, "UINT8", shape, place["offset"], place["length"])

    def _proto(self, name: str, kind: str, shape: tuple[int, ...], start: int, size: int) -> Any:
        from onnx import TensorProto

        tensor = TensorProto(name=name, data_type=TensorProto.DataType.Value(kind), dims=shape)
        tensor.data_location = TensorProto.EXTERNAL
        facts = (("location", self._name), ("offset", str(start)), ("length", str(size)))
        for key, value in facts:
            tensor.external_data.add(key=key, value=value)
        return tensor


def float_rows(file: ModelFile, name: str, kind: str) -> Iterator[NDArray[Any]]:
    """A matrix as floats; those the file has in this kind are copied bit for bit."""
    info = file.tensors[name]
    for raw in _steps(file, info):
        if _FLOATS.get(info.type) == kind:
            yield raw
        else:
            values = dequantise(raw, info.type)
            yield values.astype(np.float16) if kind == "FLOAT16" else values


def quantised_rows(file: ModelFile, name: str, bits: int) -> Iterator[NDArray[np.uint8]]:
    """Unsigned weights [rows, columns * bits / 8]; the middle of their range means 0."""
    info = file.tensors[name]
    for raw in _steps(file, info):
        yield (
            _copied(raw, info.type, bits, _weights)
            if _exact(info, bits)
            else _rounded(dequantise(raw, info.type), bits)[0]
        )


def scale_rows(file: ModelFile, name: str, bits: int) -> Iterator[NDArray[np.float32]]:
    """Scales [rows, columns / 32] f32 of `quantised_rows`."""
    info = file.tensors[name]
    for raw in _steps(file, info):
        yield (
            _copied(raw, info.type, bits, _scales)
            if _exact(info, bits)
            else _rounded(dequantise(raw, info.type), bits)[1]
        )


def _steps(file: ModelFile, info: TensorInfo) -> Iterator[NDArray[np.uint8]]:
    """Raw rows, a few megabytes of floats at a time."""
    count = max(1, _STEP_BYTES // (4 * info.shape[-1]))
    for start in range(0, info.shape[0], count):
        yield file.rows(info.name, start, min(start + count, info.shape[0]))


def _exact(info: TensorInfo, bits: int) -> bool:
    return (info.type, bits) in ((TensorType.Q8_0, 8), (TensorType.Q4_0, 4))


def _copied(
    raw: NDArray[np.uint8], kind: TensorType, bits: int, part: Callable[..., NDArray[Any]]
) -> NDArray[Any]:
    blocks = raw.reshape(-1, kind.block_bytes)
    return part(blocks, bits).reshape(len(raw), -1)


def _scales(blocks: NDArray[np.uint8], bits: int) -> NDArray[np.float32]:
    return np.ascontiguousarray(blocks[:, :2]).view("<f2").astype(np.float32)


def _weights(blocks: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    if bits == 8:
        return blocks[:, 2:] ^ np.uint8(128)
    packed = blocks[:, 2:]
    return _pairs(np.concatenate([packed & 15, packed >> 4], axis=1))


def _pairs(nibbles: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Two neighbours in a byte, the first in its low half."""
    return nibbles[:, ::2] | nibbles[:, 1::2] << np.uint8(4)


def _rounded(values: NDArray[np.float32], bits: int) -> tuple[NDArray[np.uint8], NDArray[Any]]:
    """Weights and scales of floats [rows, columns]: 8 bits as Q8_0 rounds, 4 bits as Q4_0."""
    blocks = values.reshape(-1, BLOCK)
    places = np.abs(blocks).argmax(axis=1)[:, None]
    extremes = np.take_along_axis(blocks, places, axis=1)
    middle = 1 << (bits - 1)
    scales = np.abs(extremes) / 127 if bits == 8 else extremes / -8
    inverse = np.divide(1, scales, out=np.zeros_like(scales), where=scales != 0)
    weights = np.clip(np.rint(blocks * inverse) + middle, 0, 2 * middle - 1).astype(np.uint8)
    weights = weights if bits == 8 else _pairs(weights)
    return weights.reshape(len(values), -1), scales.astype(np.float32).reshape(len(values), -1)
