"""Machine code is made once, and made all the same where nothing can be kept on disk."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from edgespec.backends.native.kernels.codegen import isa, machine_code
from edgespec.backends.native.kernels.codegen.x86 import AVX2
from edgespec.backends.native.kernels.matmul import float_tile
from edgespec.models.spec import TensorType

ROOT = Path(__file__).parents[2]
RUN = """
import numpy as np
from edgespec.backends.native.kernels.codegen import isa
from edgespec.models.spec import TensorType
from tests.support.tiles import Activations, Tile, raw_rows
kind = TensorType.F32
output = np.zeros((1, 16), np.float32)
packed = Tile.pack(kind, raw_rows(kind, 16, 64), 64)
Activations.random(1, 64).run(isa.tile_address(isa.available()[0], kind, 1), packed, output=output)
print(output.tobytes().hex())
"""


def _run(cache: Path, code: str = RUN, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "EDGESPEC_CACHE": str(cache)} | environment,
    )


RUN_NUMBA = """
import numpy as np
from edgespec.backends.native.kernels.matmul import plain, tile, unpack
from edgespec.models.spec import TensorType
for kind in (TensorType.F16, TensorType.Q8_0, TensorType.Q5_K):
    plain.address(kind)
    rows, out = np.zeros(0, np.int32), np.zeros((0, 0), np.float32)
    unpack.unpack_rows(tuple(tile.FORMATS[kind].layout), (0, 0, 0, 0), rows, out)
"""


def test_numba_compiles_once(tmp_path: Path) -> None:
    """Its cache also finds tiles that are closures, each by the layout it is made for."""
    states = []
    for _ in range(2):
        _run(tmp_path, RUN_NUMBA)
        states.append({path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.nbc")})
    assert sum("integer_tile" in path.name for path in states[0]) == 2
    assert states[0] == states[1]


def test_no_cache_folder_costs_one_line(tmp_path: Path) -> None:
    """A folder that cannot be made (even by root): its parent is a file."""
    file = tmp_path / "file"
    file.write_text("")
    found = _run(file / "cache")
    assert found.stdout == _run(tmp_path / "cache").stdout
    assert len(found.stderr.splitlines()) == 1
    assert "EDGESPEC_CACHE" in found.stderr
    assert str(file) in found.stderr


NOTHING_EMITTED = """
from edgespec.backends.native.kernels.codegen import emit
def done(self):
    raise AssertionError(f"{self.function.name} is emitted once more")
emit.Emitter.done = done
"""


def test_what_is_on_disk_is_not_emitted(tmp_path: Path) -> None:
    first = _run(tmp_path)
    assert _run(tmp_path, NOTHING_EMITTED + RUN).stdout == first.stdout
    with pytest.raises(subprocess.CalledProcessError):
        _run(tmp_path / "empty", NOTHING_EMITTED + RUN)


HOST = isa.processor(isa.PLAIN)


def test_key_changes_with_the_text() -> None:
    text, other = (float_tile.emit_tile(TensorType.F32, size, AVX2)[0] for size in (1, 2))
    assert machine_code._cache_path(text, HOST) == machine_code._cache_path(text, HOST)
    assert machine_code._cache_path(text, HOST) != machine_code._cache_path(other, HOST)
    edited = text + "\n; a comment"
    assert machine_code._cache_path(text, HOST) != machine_code._cache_path(edited, HOST)


@pytest.mark.parametrize("part", ["triple", "cpu", "features"])
def test_key_changes_with_the_processor(part: str) -> None:
    here = machine_code._cache_path("text", HOST)
    assert machine_code._cache_path("text", replace(HOST, **{part: "another"})) != here


def test_key_changes_with_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    here = machine_code._cache_path("text", HOST)
    monkeypatch.setattr(machine_code.llvmlite, "__version__", "0.0.0")
    assert machine_code._cache_path("text", HOST) != here


def test_same_text_is_compiled_once() -> None:
    function = float_tile.emit_tile(TensorType.F32, 1, AVX2)
    first, second = (machine_code.compile_function(*function, HOST) for _ in range(2))
    assert first == second


def test_variants_of_one_name_are_told_apart() -> None:
    emit = partial(float_tile.emit_tile, TensorType.F32, 1, AVX2)
    one, other, again = (
        machine_code.compile_named("tile_F32_1", emit, HOST, variant) for variant in ("a", "b", "a")
    )
    assert one == again != other
