"""How fast are the kernels, type by type?

    python -m lab.kernels [TYPE...] [--megabytes 256] [--columns 4096] [--threads N] [--rounds 7]

One matrix of each type, packed, is multiplied by 1, 2, 4 and 8 tokens, each thread with tiles of
its own. `GB/s` is what the tiles hold over the time for one token, beside what the machine reads at
most; `T(n)` is the time for n tokens over that for one. `bits` are those of a packed weight, `file`
those in the file.
"""

from __future__ import annotations

import ctypes
import os
from functools import partial

import numpy as np

from edgespec.backends.native.kernels.codegen import isa
from edgespec.backends.native.kernels.codegen.intrinsics import call_tile, load_long
from edgespec.backends.native.kernels.matmul.tile import FORMATS, NUM_ARGUMENTS, TILE_ROWS
from edgespec.backends.native.weights import PackedMatrix
from edgespec.models.spec import TensorType
from edgespec.system.entries import Entry
from edgespec.system.numba_compiler import callback_address
from edgespec.tools.bench.loops import multiply_of
from edgespec.tools.bench.roofs import Roofs, Team
from edgespec.tools.bench.turns import take_turns
from lab.harness import THREADS, Asked, Rows, Script, Spread, option, rounds
from tests.support.tiles import Activations, Tile, raw_rows

SIZES = (1, 2, 4, 8)
SLAB_ROWS = 256
"""Rows that are made; the rest of the matrix repeats them."""
script = Script(__doc__)


def _multiply(function, numbers, weight_bytes, scale_bytes, first, last):  # type: ignore[no-untyped-def]
    """Call a tile function for some tiles; `numbers` is the address of its arguments for tile 0."""
    weights, scales = load_long(numbers), load_long(numbers + 8)
    for tile in range(first, last):
        call_tile(
            function,
            (
                weights + tile * weight_bytes,
                scales + tile * scale_bytes,
                load_long(numbers + 16),
                load_long(numbers + 24),
                load_long(numbers + 32),
                load_long(numbers + 40),
                load_long(numbers + 48),
                load_long(numbers + 56),
                load_long(numbers + 64),
                load_long(numbers + 72),
                load_long(numbers + 80),
                load_long(numbers + 88),
            ),
        )


class Matrix:
    """A packed matrix and how long it takes to be multiplied."""

    def __init__(self, kind: TensorType, megabytes: int, columns: int, team: Team) -> None:
        self.form, self._team = FORMATS[kind], team
        per_tile = sum(self.form.tile_bytes(columns))
        slabs = max(1, (megabytes << 20) // (per_tile * SLAB_ROWS // TILE_ROWS))
        slab = Tile.pack(kind, raw_rows(kind, SLAB_ROWS, columns), columns)
        packed = PackedMatrix.allocate(self.form, slabs * SLAB_ROWS, columns)
        packed.weights.reshape(slabs, -1)[:] = slab.weights
        packed.scales.reshape(slabs, -1)[:] = slab.scales
        self._tile = Tile(kind, columns, packed.weights, packed.scales)
        self._sizes = self.form.tile_bytes(columns)
        self._num_tiles = slabs * SLAB_ROWS // TILE_ROWS
        self.size_bytes = packed.size_bytes
        place = callback_address(Entry("lab.kernels", lambda: _multiply, None, 6, False))
        self._run = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 6)(place)

    def seconds(self, num_tokens: int) -> list[float]:
        """All tiles, shared by the threads."""
        address = isa.tile_address(isa.chosen(), self.form.type, num_tokens)
        activations = Activations.random(num_tokens, self._tile.num_columns)
        outputs = [np.zeros((num_tokens, TILE_ROWS), np.float32) for _ in range(self._team.size)]
        numbers = [
            np.array(activations.arguments(self._tile, output), np.int64) for output in outputs
        ]
        assert all(len(each) == NUM_ARGUMENTS for each in numbers)
        ends = np.linspace(0, self._num_tiles, self._team.size + 1).astype(int).tolist()

        def work(index: int) -> None:
            place = numbers[index].ctypes.data
            self._run(address, place, *self._sizes, ends[index], ends[index + 1])

        return [self._team.seconds(work)]


@script.command(
    option("types", nargs="*", metavar="TYPE", help=", ".join(kind.name for kind in FORMATS)),
    option("--megabytes", type=int, default=256, help="of the packed matrix"),
    option("--columns", type=int, default=4096),
    THREADS,
    rounds(7),
)
def kernels(asked: Asked) -> Rows:
    """Tiles by type: bytes read per second, and what more tokens cost."""
    threads = asked.threads or os.cpu_count() or 1
    team, num_bytes = Team(threads), asked.megabytes << 20
    multiply = multiply_of(isa.chosen(), floats=False)
    script.note(f"{isa.chosen()}, {threads} threads, {asked.megabytes} MiB a matrix")
    with Roofs(num_bytes, 4 * num_bytes, threads, multiply) as roofs:
        for name in asked.types or [kind.name for kind in FORMATS]:
            kind = TensorType[name]
            matrix = Matrix(kind, asked.megabytes, asked.columns, team)
            asks = {str(size): partial(matrix.seconds, size) for size in SIZES}
            found, _ = take_turns({name: asks, "roof": {"read": roofs.read}}, asked.rounds)
            one = Spread.of(found[name]["1"])
            bits = 8 * matrix.form.matrix_bytes(TILE_ROWS, asked.columns) / asked.columns
            row = {
                "type": name,
                "file": 8 * kind.block_bytes / kind.block_size,
                "bits": bits / TILE_ROWS,
                "GB/s": one.rate(matrix.size_bytes / 1e9),
                "read, GB/s": Spread.of(found["roof"]["read"]).median / 1e9,
            }
            for size in SIZES[1:]:
                row[f"T({size})"] = Spread.of(found[name][str(size)]).median / one.median
            yield row
    team.close()


if __name__ == "__main__":
    script.run()
