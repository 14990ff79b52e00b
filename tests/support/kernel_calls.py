"""Calls of kernels on one piece of memory, recorded to be made anywhere: by every instruction set
here, and by emulated processors of another kind.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgespec.backends.native.kernels import activations, row_ops
from edgespec.backends.native.kernels.attention import inner_loops, scaled_kv
from edgespec.backends.native.kernels.attention.spans import WIDTH, row_sizes, score_sizes
from edgespec.backends.native.kernels.codegen import isa
from edgespec.backends.native.kernels.codegen.emit import I64, Emitter, Function
from edgespec.backends.native.kernels.codegen.machine_code import compile_function
from edgespec.backends.native.kernels.kv.forms import FORMS
from edgespec.backends.native.kernels.matmul import tile
from edgespec.backends.native.kernels.matmul.integer_tile import Operations
from edgespec.backends.native.kernels.moe import row_functions
from edgespec.backends.native.kernels.recurrent import inputs, state
from edgespec.memory.plan.settings import KV_TYPES
from edgespec.memory.plan.state_layout import CONVOLUTIONS, STEP_WORDS
from tests.backends.test_attention_ops import SCORES
from tests.backends.test_row_ops import GATES, QUANTISE
from tests.support import attention_arrays as arrays
from tests.support.state_steps import Step
from tests.support.tiles import KINDS, Activations, Tile, call, raw_rows

NUM_ARGUMENTS = tile.NUM_ARGUMENTS
LINE = 64
GUARD = b"\xa5" * LINE
ROW_FUNCTIONS = {
    "rms_norm": row_ops.rms_norm(),
    "quantise": row_ops.quantise(),
    "gate": row_ops.gate(),
    "rotate_halves": row_ops.rotate(interleaved=False),
    "rotate_pairs": row_ops.rotate(interleaved=True),
    **{name: emit() for name, emit in activations.FUNCTIONS.items() if name != "silu"},
    **{name: emit() for name, emit in inputs.FUNCTIONS.items()},
    **{name: emit() for name, emit in row_functions.FUNCTIONS.items()},
}


def attention(name: str) -> dict[str, Function]:
    """Attention's functions of an instruction set."""
    return {
        key: emit()
        for kv_type in KV_TYPES
        for key, emit in inner_loops.functions(kv_type, isa.operations(name)).items()
    }


def functions(name: str) -> dict[str, Function]:
    """All functions of an instruction set, by the name calls know them by."""
    tiles = {
        f"{kind.name}_{size}": isa.emit_tile(name, kind, size)
        for kind in KINDS
        for size in tile.FORMATS[kind].sizes
    }
    more = sweeps(name) | {"lookup": _lookup(isa.operations(name)), "point": _point()}
    return ROW_FUNCTIONS | attention(name) | tiles | more


def sweeps(name: str) -> dict[str, Function]:
    """Sweeps over states, of an instruction set."""
    made = state.functions(isa.operations(name).lanes)
    return {key: emit() for key, emit in made.items()}


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


def _point() -> Function:
    """(words, base, sign, count): words += base * sign. Makes addresses of places, and the other
    way round."""
    emitter = Emitter("point", NUM_ARGUMENTS)
    words, base, sign, count = emitter.arguments[:4]
    with emitter.loop(count) as index:
        place = emitter.address(words, (index, 8))
        emitter.store(emitter.address(emitter.load(place, I64), (base, sign)), place, 8)
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
        places = [calls.place(each) for each in (values, up)]
        for name in ("gate", "gelu", "swiglu_oai", "sigmoid_gate"):
            output = calls.place(np.zeros(len(up), np.float32))
            calls.add(name, *places, output, len(values) // 16)
        for name in ("tanh", "softcap"):
            output, cap = calls.place(np.zeros(len(up), np.float32)), np.float32(30).view(np.int32)
            calls.add(name, places[0], output, len(values) // 16, int(cap))
        _record_routing(calls, values.astype(np.float32))
    for scale in (1.0, 1e-12, 1e-3, 1e4, 1e18):
        values, gain = _normal(1040, scale=scale), _normal(1040, seed=1)
        places = [calls.place(each) for each in (values, gain, np.zeros_like(gain))]
        calls.add("rms_norm", *places, len(gain) // 16, int(np.float32(1e-5).view(np.int32)))
    _record_attention(calls)
    _record_recurrent(calls)
    _record_lookup(calls)
    return calls


def _record_routing(calls: Calls, values: NDArray[np.float32]) -> None:
    """A router's scores, and sums over experts."""
    logits, count = calls.place(values), len(values)
    for name in ("softmax_row", "sigmoid_row"):
        calls.add(name, logits, calls.place(np.zeros_like(values)), count - 5)
    factor = int(np.float32(0.3).view(np.int32))
    for name in ("scale", "add_scaled"):
        calls.add(name, logits, calls.place(_normal(count, seed=2)), count // 16, factor)
    target = calls.place(np.zeros((3, count + 8), np.float32))
    calls.add("copy_rows", logits, target, 4 * (count // 4), 4 * (count + 8), 3, count // 4 + 1)


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
    for kv_type in KV_TYPES:
        _record_loops(calls, kv_type)
    for values in SCORES.values():
        places = [calls.place(np.zeros(1, np.float32)) for _ in range(3)]
        scales = calls.place(np.abs(_normal(len(values), seed=1)))
        for kv_type in KV_TYPES:
            scores, count = calls.place(values.astype(np.float32)), len(values) // 16
            calls.add(f"softmax_{kv_type}", scores, count, *places[:2], scales, places[2])
    for kind in (np.float32, np.int32):
        mixed, facts = (_normal(2, 19, 32) * 1e4).astype(kind), np.abs(_normal(2, 3, 32, seed=1))
        output = np.zeros((2, 24), np.float32)
        sizes = (mixed.strides[0], calls.place(facts), facts.strides[0], 19)
        for kv_type in ("f16",) if kind is np.float32 else FORMS:
            arguments = (calls.place(mixed), *sizes, calls.place(output), 24, 2)
            calls.add(f"combine_{kv_type}", *arguments)
    for scale in (1.0, 1e-7, 1e6, 0.0):
        number = calls.place(_normal(40, scale=scale))
        for kv_type in FORMS:
            for name, count in {"store_key": 64 * 10, "store_value": 4 * 64}.items():
                scales, room = (calls.place(np.zeros(size, np.uint8)) for size in (64, count))
                calls.add(f"{name}_{kv_type}", number, room, scales, 40)
            room = calls.place(np.zeros(12 * 140, np.uint8))
            calls.add(f"put_query_{kv_type}", number, room, 40)
    for head_dim in (20, 40, 64, 96):
        for kv_type in FORMS:
            calls.add(f"turn_{kv_type}", calls.place(_normal(head_dim)), head_dim)
    spread = np.abs(_normal(32)).astype(np.float16)
    for kv_type in FORMS:
        room = calls.place(np.zeros(32, np.float32))
        calls.add(f"spread_{kv_type}", calls.place(spread), room, 2)


def _record_recurrent(calls: Calls) -> None:
    """Sweeps over states of two widths, one of them no whole number of blocks, and their inputs."""
    for net in ("delta", "mamba"):
        for rows, columns in ((48, 128), (16, 48)):
            before, steps = calls.place(_normal(rows, columns)), []
            after = calls.place(np.zeros((rows, columns), np.float32))
            for seed in range(3):
                one = Step.random(rows, columns, seed)
                steps.append([calls.place(each).offset for each in one.arrays])
            words = calls.place(np.array(steps, np.int64))
            last = Place(words.offset + 2 * state.STEP_BYTES)
            calls.add("point", words, Place(0), 1, 3 * STEP_WORDS)
            for read in (0, 1):
                step = Place(words.offset + read * state.STEP_BYTES)
                calls.add(f"{net}_read", before, before, rows, columns // 16, step, 0, step)
            calls.add(f"{net}_advance", before, after, rows, columns // 16, words, 2, last)
            calls.add(f"{net}_update", after, after, rows, columns // 16, last, 1, last)
            calls.add("point", words, Place(0), -1, 3 * STEP_WORDS)
    epsilon, half = (int(np.float32(each).view(np.int32)) for each in (1e-6, 0.5))
    for values in GATES.values():
        more = [_normal(len(values), seed=seed) for seed in range(2)]
        source, bias, rate, decays, steps = (
            calls.place(each) for each in (values.astype(np.float32), *more, *more, *more)[:5]
        )
        count = len(values) // 16
        calls.add("time_steps", source, bias, rate, decays, steps, count)
        calls.add("sigmoid", source, calls.place(more[0]), count)
        calls.add("multiply", source, bias, calls.place(more[0]), count)
        for name in ("norm_then_gate", "gate_then_norm") if np.all(np.isfinite(values)) else ():
            calls.add(name, rate, bias, source, calls.place(more[0]), count, epsilon)
    for scale in (1.0, 1e-12, 1e4, 1e18):
        vector = _normal(144, scale=scale)
        calls.add("l2_norm", calls.place(vector), calls.place(vector), 9, epsilon, half)
    for width, silu in ((width, silu) for width in CONVOLUTIONS for silu in ("", "_silu")):
        values, taps = (calls.place(_normal(width, 64, seed=seed)) for seed in range(2))
        rows = calls.place(np.array([values.offset + 256 * i for i in range(width)], np.int64))
        calls.add("point", rows, Place(0), 1, width)
        for bias in (0, taps):
            output = calls.place(np.zeros(48, np.float32))
            place = Place(taps.offset + 64)
            calls.add(f"convolve_{width}{silu}", rows, 64, place, 256, bias, output, 3)
        calls.add("point", rows, Place(0), -1, width)


def _record_loops(calls: Calls, kv_type: str) -> None:
    """Scores and mixing, for the numbers of rows that all instruction sets have functions for."""
    digits = scaled_kv.DIGITS if kv_type in FORMS else 1
    queries, keys = arrays.queries(kv_type, 40), arrays.keys(kv_type, 4, 40)
    values = arrays.values(kv_type, 36, 48)
    asked, tiles, scales, rows = (
        calls.place(each) for each in (queries.data, keys.data, keys.scales, values.data)
    )
    for size in row_sizes(8, digits) if kv_type in FORMS else score_sizes(8):
        scores = calls.place(np.zeros((size, WIDTH), np.float32))
        steps = 40 // (2 if kv_type == "f16" else 4)
        sizes = (keys.data.strides[0], 4, steps, scales)
        calls.add(f"scores_{kv_type}_{size}", asked, tiles, *sizes, scores, tiles)
    for size in row_sizes(8, digits):
        weights, output = arrays.weights(size, 36), np.zeros((size, 48), np.float32)
        shares, mixed = calls.place(weights), calls.place(output)
        if kv_type in FORMS:
            largest = calls.place(weights.max(axis=1))
            for row in range(size):
                share = Place(shares.offset + row * weights.strides[0])
                step, target = Place(largest.offset + 4 * row), Place(mixed.offset + 192 * row)
                calls.add(f"weigh_{kv_type}", share, 3, step, target, 3)
        stride = values.data.strides[0]
        calls.add(f"mix_{kv_type}_{size}", shares, rows, stride, 36, mixed, 192, 3, rows)


def plain_names() -> list[str]:
    """All functions of the plain set, by the name calls know them by."""
    sizes = [f"{kind.name}_{size}" for kind in KINDS for size in tile.FORMATS[kind].sizes]
    return [*ROW_FUNCTIONS, *attention(isa.PLAIN), *sweeps(isa.PLAIN), *sizes]


def point_address() -> int:
    """Where the function is that makes addresses of places."""
    return compile_function(*_point(), isa.processor(isa.PLAIN))


def expected(calls: Calls) -> NDArray[np.uint8]:
    """The memory after all calls as plain loops leave it."""
    memory = calls.run(dict(_plain_addresses()))
    for place, values in calls.known.items():
        memory[place.offset : place.offset + values.nbytes] = values.view(np.uint8)
    return memory


def _plain_addresses() -> Iterator[tuple[str, int]]:
    plain = ROW_FUNCTIONS | attention(isa.PLAIN) | sweeps(isa.PLAIN) | {"point": _point()}
    for name, function in plain.items():
        yield name, compile_function(*function, isa.processor(isa.PLAIN))
    for kind in KINDS:
        for size in tile.FORMATS[kind].sizes:
            yield f"{kind.name}_{size}", isa.tile_address(isa.PLAIN, kind, size)
