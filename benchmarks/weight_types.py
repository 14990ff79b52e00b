"""What each type of weights takes to load, in GB of the file per second of a core; and to compile.

    python benchmarks/weight_types.py [TYPE...] [--megabytes 64] [--columns 4096] [--rounds 5]

Three times of one matrix whose file is in the page cache, medians: "pack", from memory to memory
that has been touched; "first touch", into fresh memory, whose pages the system hands out meanwhile;
"load", what opening a model does: read a few rows, pack them, and so on, into fresh memory. Then
the seconds that a first start compiles for the type: its packer and its tile functions.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from edgespec.backends.native.kernels.codegen import isa
from edgespec.backends.native.kernels.matmul.pack import packer
from edgespec.backends.native.kernels.matmul.tile import FORMATS
from edgespec.backends.native.weights import PackedMatrix, load_matrix
from edgespec.models.file import ModelFile
from edgespec.models.gguf.file_source import FileSource
from edgespec.models.gguf.header import GgufHeader
from edgespec.models.spec import TensorInfo, TensorType


def measure(kind: TensorType, megabytes: int, num_columns: int, rounds: int) -> dict[str, float]:
    """Seconds for each of the three, and the bytes of the file."""
    num_rows = (megabytes << 20) // kind.row_bytes(num_columns) // 16 * 16
    raw = np.random.default_rng(0).integers(
        0, 256, (num_rows, kind.row_bytes(num_columns)), dtype=np.uint8
    )
    info = TensorInfo("matrix", (num_rows, num_columns), kind, 0, raw.nbytes)
    touched = PackedMatrix.allocate(FORMATS[kind], num_rows, num_columns)
    with tempfile.NamedTemporaryFile(suffix=".gguf") as path:
        raw.tofile(path)
        path.flush()
        with FileSource(Path(path.name)) as source:
            file = ModelFile(source, GgufHeader(3, {}, {"matrix": info}), None)  # type: ignore[arg-type]

            def first_touch() -> PackedMatrix:
                fresh = PackedMatrix.allocate(FORMATS[kind], num_rows, num_columns)
                fresh.pack_rows(0, raw)
                return fresh

            return {
                "bytes": raw.nbytes,
                "pack": _median(lambda: touched.pack_rows(0, raw), rounds),
                "first touch": _median(first_touch, rounds),
                "load": _median(lambda: load_matrix(file, "matrix"), rounds),
            }


def compile_seconds(kind: TensorType) -> tuple[float, float]:
    """For the packer and for all tile functions; the cache folder must be empty."""
    used, start = isa.chosen(), perf_counter()
    packer(kind)
    middle = perf_counter()
    for size in FORMATS[kind].sizes:
        isa.tile_address(used, kind, size)
    return middle - start, perf_counter() - middle


def _median(work: Callable[[], object], rounds: int) -> float:
    work()
    times = []
    for _ in range(rounds):
        start = perf_counter()
        work()
        times.append(perf_counter() - start)
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    names = [kind.name for kind in FORMATS]
    parser.add_argument("types", nargs="*", metavar="TYPE", help=f"of {', '.join(names)}")
    parser.add_argument("--megabytes", type=int, default=64)
    parser.add_argument("--columns", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    for name in options.types:
        if name not in names:
            parser.error(f"{name} is none of {', '.join(names)}")
    isa.tile_address(isa.chosen(), TensorType.F32, 1)  # what the first compilation sets up once
    print(f"{options.megabytes} MiB in {options.columns} columns, one thread, GB/s of the file")
    print(f"{'type':8}{'pack':>8}{'first touch':>13}{'load':>8}{'compile: pack':>16}{'tiles':>8}")
    for name in options.types or names:
        compiled = compile_seconds(TensorType[name])
        found = measure(TensorType[name], options.megabytes, options.columns, options.rounds)
        speeds = [found["bytes"] / found[key] / 1e9 for key in ("pack", "first touch", "load")]
        print(f"{name:8}{speeds[0]:8.2f}{speeds[1]:13.2f}{speeds[2]:8.2f}", end="")
        print(f"{compiled[0]:14.2f} s{compiled[1]:6.2f} s", flush=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.environ["EDGESPEC_CACHE"] = folder
        main()
