"""Machine code on disk: found again by content, never trusted, never needed."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from edgespec.backends.native.kernels import float_tile, isa, machine_code
from edgespec.backends.native.kernels.x86 import AVX2
from edgespec.models.spec import TensorType

ROOT = Path(__file__).parents[2]
RUN = """
import numpy as np
from edgespec.backends.native.kernels import isa
from edgespec.models.spec import TensorType
from tests.backends.tiles import Activations, Tile, raw_rows
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


@pytest.fixture(scope="module")
def first_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A filled cache folder, and what was computed with an empty one."""
    cache = tmp_path_factory.mktemp("cache")
    return cache, _run(cache).stdout


DAMAGE = {
    "truncated": lambda data: data[: len(data) // 2],
    "one bit flipped": lambda data: data[:500] + bytes([data[500] ^ 1]) + data[501:],
    "empty": lambda data: b"",
    "only a checksum": lambda data: data[-32:],
    "text": lambda data: b"not machine code",
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damaged_code_is_compiled_again(first_run: tuple[Path, str], kind: str) -> None:
    cache, expected = first_run
    files = sorted((cache / "tiles").glob("*.o"))
    assert files
    whole = {path: path.read_bytes() for path in files}
    for path, data in whole.items():
        path.write_bytes(DAMAGE[kind](data))
    found = _run(cache)
    assert found.stdout == expected
    assert found.stderr == ""
    assert {path: path.read_bytes() for path in files} == whole


def test_nothing_half_written_is_left(first_run: tuple[Path, str]) -> None:
    assert not list(first_run[0].rglob("*.part"))


RUN_NUMBA = """
import numpy as np
from edgespec.backends.native.kernels import plain, tile, unpack
from edgespec.models.spec import TensorType
for kind in (TensorType.F16, TensorType.Q8_0, TensorType.Q5_K):
    plain.address(kind)
    unpack.unpack_row(tile.FORMATS[kind].layout, 0, 0, 0, 0, np.zeros(0, np.float32))
"""


def test_numba_compiles_once(tmp_path: Path) -> None:
    """Its cache also finds tiles that are closures, each by the layout it is made for."""
    states = []
    for _ in range(2):
        _run(tmp_path, RUN_NUMBA)
        states.append({path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.nb?")})
    assert sum("integer_tile" in path.name for path in states[0]) == 3  # an index and two entries
    assert states[0] == states[1]


def test_no_cache_folder_costs_one_line(first_run: tuple[Path, str], tmp_path: Path) -> None:
    """A folder that cannot be made (even by root): its parent is a file."""
    file = tmp_path / "file"
    file.write_text("")
    found = _run(file / "cache")
    assert found.stdout == first_run[1]
    assert len(found.stderr.splitlines()) == 1
    assert "EDGESPEC_CACHE" in found.stderr
    assert str(file) in found.stderr


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


def test_same_text_is_compiled_once() -> None:
    function = float_tile.emit_tile(TensorType.F32, 1, AVX2)
    first, second = (machine_code.compile_function(*function, HOST) for _ in range(2))
    assert first == second


@pytest.mark.parametrize("place", ["kernels/loop.py", "backends/base.py"])
def test_source_hash_notices_an_edited_kernel(
    place: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Numba looks at a function's own file only; the folder's name looks at all of them."""
    from edgespec import cache

    package = tmp_path / "edgespec"
    kernel = package / place
    kernel.parent.mkdir(parents=True)
    monkeypatch.setattr(cache, "__file__", str(package / "cache.py"))
    hashes = []
    for text in ("x = 1", "x = 2", "x = 1"):
        kernel.write_text(text)
        (package / "prose.py").write_text(f"{text} in a module without kernels")
        hashes.append(cache.source_hash.__wrapped__())
    assert hashes[0] == hashes[2] != hashes[1]
