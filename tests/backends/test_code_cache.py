"""Compiled code on disk is found again only by what it was compiled from, for and with."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from edgespec.system import disk_cache, sources

ROOT = Path(__file__).parents[2]
CALLER = """
import numpy as np
from edgespec.system.jit import kernel
from edgespec.verification.noise import uniform

@kernel
def draw(key):
    return uniform(np.uint64(key), 0)
"""
"""A kernel that calls one of another file, which Numba's own cache would not look at."""
RUN = """
import json
import numpy as np
from edgespec.backends.native.kernels.codegen import isa
from edgespec.models.spec import TensorType
from edgespec.verification import noise
from edgespec.verification.caller import draw
from tests.support.tiles import Activations, Tile, call, raw_rows

used, tiles = isa.available()[0], {}
for kind in (TensorType.F32, TensorType.Q8_0):
    packed = Tile.pack(kind, raw_rows(kind, 16, 64), 64)
    output = np.zeros((1, 16), np.float32)
    Activations.random(1, 64).run(isa.tile_address(used, kind, 1), packed, output=output)
    tiles[kind.name] = output.tolist()
gated = np.ones((3, 16), np.float32)
gate = isa.row_addresses(used, False)[2]
call(gate, *(row.ctypes.data for row in gated), 1, 0, 0, 0, 0)
print(json.dumps({
    "kernel": noise.gumbel_noise(1, 2, [3]).tolist(),
    "kernel in another file": draw(7),
    "float tile": tiles["F32"],
    "quantised tile": tiles["Q8_0"],
    "packed weights": packed.weights.tolist(),
    "row operation": gated.tolist(),
    "hits": sum(draw.stats.cache_hits.values()),
}))
"""
Results = dict[str, Any]


class Installation:
    """A copy of the package that has run once, with a cache folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.package, self.cache = folder / "edgespec", folder / "cache"
        leave_out = shutil.ignore_patterns("bundled", "train", "__pycache__")
        shutil.copytree(ROOT / "edgespec", self.package, ignore=leave_out)
        (self.package / "verification" / "caller.py").write_text(CALLER)
        self.first = self.run()
        self.files = [path for end in ("o", "nbc") for path in self.cache.rglob(f"*.{end}")]
        assert {path.suffix for path in self.files} == {".o", ".nbc"}

    def run(self, **environment: str) -> Results:
        paths = os.pathsep.join([str(self.package.parent), str(ROOT)])
        own = {
            "PYTHONPATH": paths,
            "EDGESPEC_CACHE": str(self.cache),
            "EDGESPEC_KERNELS": "jit",
            "PYTHONDONTWRITEBYTECODE": "1",  # Python, too, would take an edited file for the old
        }
        found = subprocess.run(
            [sys.executable, "-c", RUN],
            capture_output=True,
            text=True,
            check=False,
            cwd=self.package.parent,
            env=os.environ | own | environment,
        )
        assert found.returncode == 0, found.stderr
        results: Results = json.loads(found.stdout)
        return results

    def edit(self, name: str, old: str, new: str) -> None:
        """Change one place so that size and time of the file, which Numba looks at, stay."""
        path = self.package / name
        text, status = path.read_text("utf-8"), path.stat()
        assert text.count(old) == 1 and len(old) == len(new)
        path.write_text(text.replace(old, new), "utf-8", newline="")
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Installation, Results]:
    """An installation that has filled its cache, and what it computed."""
    installation = Installation(tmp_path_factory.mktemp("installation"))
    return installation, installation.first


def test_what_is_cached_is_used(installed: tuple[Installation, Results]) -> None:
    installation, first = installed
    assert first["hits"] == 0
    assert installation.run() == first | {"hits": 1}


EDITS = {
    "a constant of kernels": (
        ("verification/noise.py", "2.0**-52", "2.0**-53"),
        {"kernel", "kernel in another file"},
    ),
    "the text of a tile": (
        ("backends/native/kernels/matmul/float_tile.py", "builder.fadd(", "builder.fsub("),
        {"float tile"},
    ),
    "the text of a quantised tile": (
        (
            "backends/native/kernels/matmul/integer_tile.py",
            "fmul(part.scale, factor)",
            "fadd(part.scale, factor)",
        ),
        {"quantised tile"},
    ),
    "the text of a row operation": (
        (
            "backends/native/kernels/codegen/vectors.py",
            "builder.fadd(power,",
            "builder.fsub(power,",
        ),
        {"row operation"},
    ),
    "how weights are packed": (
        (
            "backends/native/kernels/matmul/pack_blocks.py",
            "constant(0x80808080)",
            "constant(0x80808081)",
        ),
        {"packed weights", "quantised tile"},
    ),
}


@pytest.mark.parametrize(("edit", "parts"), EDITS.values(), ids=EDITS.keys())
def test_an_edited_kernel_is_compiled_again(
    installed: tuple[Installation, Results], edit: tuple[str, str, str], parts: set[str]
) -> None:
    installation, first = installed
    name, old, new = edit
    installation.edit(name, old, new)
    edited = installation.run()
    installation.edit(name, new, old)
    assert {part for part in first if first[part] != edited[part]} == parts


def test_another_processor_gets_code_of_its_own(installed: tuple[Installation, Results]) -> None:
    """Numba's code, that is; LLVM text is always compiled for the processor that is there."""
    installation, first = installed
    for hits in (0, 1):
        other = installation.run(NUMBA_CPU_NAME="generic", NUMBA_CPU_FEATURES="")
        assert other == first | {"hits": hits}


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "truncated": lambda data: data[: len(data) // 2],
    "one bit flipped": lambda data: data[:300] + bytes([data[300] ^ 1]) + data[301:],
    "empty": lambda data: b"",
    "only a checksum": lambda data: data[-32:],
    "text": lambda data: b"not machine code",
}


def test_damaged_code_is_compiled_again(installed: tuple[Installation, Results]) -> None:
    """And what was compiled again is whole: a second start finds it."""
    installation, first = installed
    damage = itertools.cycle(DAMAGE.values())
    for path in installation.files:
        path.write_bytes(next(damage)(path.read_bytes()))
    damaged = {path: path.read_bytes() for path in installation.files}
    assert installation.run() == first
    assert all(path.read_bytes() != data for path, data in damaged.items())
    assert installation.run() == first | {"hits": 1}
    assert not list(installation.cache.rglob("*.part"))


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_file_is_as_good_as_none(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "code.o"
    content = bytes(range(256)) * 4
    disk_cache.store_checked(path, content)
    assert disk_cache.load_checked(path) == content
    path.write_bytes(DAMAGE[kind](path.read_bytes()))
    assert disk_cache.load_checked(path) is None


CHANGES = {
    "numba": lambda monkeypatch: _change_version(monkeypatch, "numba"),
    "llvmlite": lambda monkeypatch: _change_version(monkeypatch, "llvmlite"),
    "numpy": lambda monkeypatch: _change_version(monkeypatch, "numpy"),
    "edgespec": lambda monkeypatch: monkeypatch.setattr(disk_cache, "__version__", "0.0.0"),
    "Python": lambda monkeypatch: monkeypatch.setattr(
        disk_cache, "sys", SimpleNamespace(implementation=SimpleNamespace(cache_tag="cpython-399"))
    ),
    "processor": lambda monkeypatch: monkeypatch.setattr(
        disk_cache, "processor", lambda: "another"
    ),
}


def _change_version(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    told = metadata.version
    monkeypatch.setattr(
        metadata, "version", lambda name: "0.0.0" if name == package else told(name)
    )


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_folder_of_kernels_changes_with(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[pytest.MonkeyPatch], None]
) -> None:
    key = disk_cache.code_key.__wrapped__
    here = key()
    assert key() == here
    change(monkeypatch)
    assert key() != here


@pytest.mark.parametrize("place", ["kernels/loop.py", "system/jit.py", "models/spec.py"])
def test_folder_of_kernels_changes_with_what_they_say(
    place: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Not with what other files say, nor when an edit is taken back."""
    kernel = tmp_path / place
    kernel.parent.mkdir(exist_ok=True)
    monkeypatch.setattr(sources, "__file__", str(tmp_path / "system" / "sources.py"))
    keys = []
    for text in ("x = 1", "x = 2", "x = 1"):
        kernel.write_text(text)
        (tmp_path / "prose.py").write_text(f"{text} in a module without kernels")
        keys.append(sources.source_hash.__wrapped__())
    assert keys[0] == keys[2] != keys[1]
    kernel.rename(kernel.with_name("other.py"))
    assert sources.source_hash.__wrapped__() != keys[0]


def test_the_hash_of_sources_is_in_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    before = disk_cache.code_key.__wrapped__()
    monkeypatch.setattr(disk_cache, "source_hash", lambda: "another")
    assert disk_cache.code_key.__wrapped__() != before


def test_folder_of_kernels_changes_with_the_place(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Numba keeps the code of each place apart, so being compiled is told apart too."""
    keys = set()
    for place in ("one", "other"):
        monkeypatch.setattr(
            disk_cache, "__file__", str(tmp_path / place / "system" / "disk_cache.py")
        )
        keys.add(disk_cache.code_key.__wrapped__())
    assert len(keys) == 2
