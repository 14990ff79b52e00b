"""Calls of kernels on one piece of memory, recorded to be made anywhere: by every instruction set
here, and by emulated processors of another kind.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgespec.backends.native.kernels import isa, row_ops, tile
from edgespec.backends.native.kernels.emit import Emitter, Function
from edgespec.backends.native.kernels.integer_tile import Operations
from tests.backends.test_row_ops import GATES, QUANTISE, SCORES
from tests.backends.tiles import KINDS, Activations, Tile, call, raw_rows

NUM_ARGUMENTS = tile.NUM_ARGUMENTS
LINE = 64
GUARD = b"\xa5" * LINE
ROW_FUNCTIONS = {
    "rms_norm": row_ops.rms_norm(),
    "quantise": row_ops.quantise(),
    "gate": row_ops.gate(),
    "softmax": row_ops.softmax(),
    "rotate_halves": row_ops.rotate(interleaved=False),
    "rotate_pairs": row_ops.rotate(interleaved=True),
} | {
    f"{function.__name__}_{size}": function(size)
    for function in (row_ops.scores, row_ops.mix)
    for size in row_ops.ROW_SIZES
}


def functions(name: str) -> dict[str, Function]:
    """All functions of an instruction set, by the name calls know them by."""
    tiles = {
        f"{kind.name}_{size}": isa.emit_tile(name, kind, size)
        for kind in KINDS
        for size in tile.FORMATS[kind].sizes
    }
    return ROW_FUNCTIONS | tiles | {"lookup": _lookup(isa.operations(name))}


VALUES = bytes([0, 255, 128, 127, 1, 254, 77, 200, 3, 5, 8, 13, 21, 34, 55, 89])
"""What is looked up."""


def _lookup(operations: Operations) -> Function:
    """(indices, output, quads): the bytes of VALUES that indices 0..15 name."""
    emitter = Emitter("lookup", NUM_ARGUMENTS, operations.lanes)
    source, target, count = emitter.arguments[:3]
    with emitter.loop(count) as index:
        for first in range(0, tile.TILE_ROWS, operations.lanes):
            indices = emitter.load(emitter.address(source, (index, LINE), 4 * first), emitter.i32)
            found = operations.lookup(emitter, VALUES, indices)
            emitter.store(found, emitter.address(target, (index, LINE), 4 * first))
    return emitter.done()


class Place(NamedTuple):
    """An address: bytes from the start of the memory."""

    offset: int


class Calls:
    """Which functions are called with what, and the memory they are called on."""

    def __init__(self) -> None:
        self.memory = bytearray()
        self.made: list[tuple[str, tuple[int | Place, ...]]] = []
        self.known: dict[Place, NDArray[Any]] = {}
        """What must stand in places that plain loops do not fill."""

    def place(self, array: NDArray[Any]) -> Place:
        """Put an array into the memory, with something beside it that must stay as it is."""
        self.memory += GUARD
        offset = len(self.memory)
        data = array.tobytes()
        self.memory += data + bytes(-len(data) % LINE)
        return Place(offset)

    def add(self, name: str, *arguments: int | Place) -> None:
        """Record a call."""
        self.made.append((name, (*arguments, *[0] * (NUM_ARGUMENTS - len(arguments)))))

    def run(self, addresses: Mapping[str, int]) -> NDArray[np.uint8]:
        """Make all calls here; returns the memory after them."""
        memory = np.zeros(len(self.memory) + LINE, np.uint8)
        start = -memory.ctypes.data % LINE
        memory[start : start + len(self.memory)] = np.frombuffer(self.memory, np.uint8)
        base = memory.ctypes.data + start
        for name, arguments in self.made:
            if name not in addresses:
                continue
            call(
                addresses[name],
                *(base + each.offset if isinstance(each, Place) else each for each in arguments),
            )
        return memory[start : start + len(self.memory)]

    def differences(
        self, ours: NDArray[np.uint8], expected: NDArray[np.uint8]
    ) -> list[tuple[str, tuple[int | Place, ...]]]:
        """Calls with an argument that points to what differs."""
        wrong = set[Place]()
        places = sorted({each for _, args in self.made for each in args if isinstance(each, Place)})
        for place, end in zip(places, [*(each.offset for each in places[1:]), None], strict=True):
            if not np.array_equal(ours[place.offset : end], expected[place.offset : end]):
                wrong.add(place)
        return [made for made in self.made if wrong.intersection(made[1])]


def record() -> Calls:
    """Calls of everything: all types and sizes of tiles, row operations at all their extremes."""
    calls = Calls()
    for kind in KINDS:
        _record_tiles(calls, kind)
    for values in QUANTISE.values():
        planes = np.zeros((tile.NUM_PLANES, len(values) // tile.BLOCK), np.int32)
        places = [calls.place(each) for each in (values, np.zeros(len(values), np.int8), planes)]
        calls.add("quantise", *places, planes.strides[0], planes.shape[1])
    for values in GATES.values():
        up = _normal(len(values), seed=1)
        places = [calls.place(each.astype(np.float32)) for each in (values, up, np.zeros(len(up)))]
        calls.add("gate", *places, len(values) // 16)
    for values in SCORES.values():
        scores = calls.place(values.astype(np.float32))
        calls.add("softmax", scores, len(values) // 16, calls.place(np.zeros(1, np.float32)))
    for scale in (1.0, 1e-12, 1e-3, 1e4, 1e18):
        values, gain = _normal(1040, scale=scale), _normal(1040, seed=1)
        places = [calls.place(each) for each in (values, gain, np.zeros_like(gain))]
        calls.add("rms_norm", *places, len(gain) // 16, int(np.float32(1e-5).view(np.int32)))
    _record_attention(calls)
    _record_lookup(calls)
    return calls


def _normal(*shape: int, scale: float = 1.0, seed: int = 0) -> NDArray[np.float32]:
    values = np.random.default_rng(seed).standard_normal(shape) * scale
    return values.astype(np.float32)


def _record_tiles(calls: Calls, kind: Any) -> None:
    form = tile.FORMATS[kind]
    columns = 514 if form.is_float else 512
    packed = Tile.pack(kind, raw_rows(kind, 16, columns, seed=5), columns)
    ones = Tile.pack(kind, np.full((16, kind.row_bytes(columns)), 0xFF, np.uint8), columns)
    ones.scales[:] = packed.scales  # all bits of the weights set
    tiles = [packed] if form.is_float else [packed, ones]
    for which, size in ((which, size) for which in tiles for size in form.sizes):
        activations = Activations.random(size, columns, seed=size, extreme=True)
        for accumulate in (0, 1):
            output = _normal(size, 20, seed=9)
            arrays = (
                which.weights,
                which.scales,
                activations.values if form.is_float else activations.quants,
                activations.planes,
                output,
            )
            calls.add(
                f"{kind.name}_{size}",
                *(calls.place(each) for each in arrays),
                columns // (2 if form.is_float else tile.BLOCK),
                arrays[2].strides[0],
                activations.planes.strides[1],
                activations.planes.strides[0],
                output.strides[0],
                size,
                accumulate,
            )


def _record_lookup(calls: Calls) -> None:
    indices = np.random.default_rng(3).integers(0, 16, 5 * LINE, dtype=np.uint8)
    output = calls.place(np.zeros_like(indices))
    calls.add("lookup", calls.place(indices), output, 5)
    calls.known[output] = np.frombuffer(VALUES, np.uint8)[indices]


def _record_attention(calls: Calls) -> None:
    for name in ("rotate_halves", "rotate_pairs"):
        values, angles = _normal(160), _normal(64, scale=3.0, seed=1)
        arrays = (values, np.cos(angles), np.sin(angles), np.zeros_like(values))
        factor = int(np.float32(0.125).view(np.int32))
        calls.add(name, *(calls.place(each) for each in arrays), 4, 2, factor)
    for size in row_ops.ROW_SIZES:
        queries, keys = _normal(size, 100), _normal(100, 16, seed=1).astype(np.float16)
        scores = np.zeros((size, 24), np.float32)
        calls.add(
            f"scores_{size}",
            *(calls.place(queries), queries.strides[0], calls.place(keys), 100),
            *(calls.place(scores), scores.strides[0]),
        )
        weights, values = np.abs(_normal(size, 40)), _normal(37, 64, seed=2).astype(np.float16)
        output = _normal(size, 80, seed=3)
        calls.add(
            f"mix_{size}",
            *(calls.place(weights), weights.strides[0], calls.place(values), values.strides[0]),
            *(37, calls.place(output), output.strides[0], 4),
        )


def expected(calls: Calls) -> NDArray[np.uint8]:
    """The memory after all calls as plain loops leave it."""
    memory = calls.run(dict(_plain_addresses()))
    for place, values in calls.known.items():
        memory[place.offset : place.offset + values.nbytes] = values.view(np.uint8)
    return memory


def _plain_addresses() -> Iterator[tuple[str, int]]:
    for name, function in ROW_FUNCTIONS.items():
        yield name, isa.compile_function(*function, isa.processor(isa.PLAIN))
    for kind in KINDS:
        for size in tile.FORMATS[kind].sizes:
            yield f"{kind.name}_{size}", isa.tile_address(isa.PLAIN, kind, size)
