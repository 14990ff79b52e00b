"""Compiled code is loaded from one's own folders alone, and what is wrong in one is made anew."""

from __future__ import annotations

import errno
import json
import os
import pickle
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edgespec.control import curve_cache
from edgespec.system import disk_cache, user_data
from edgespec.system.disk_cache import (
    is_object_code,
    keep_json,
    kept_json,
    load_checked,
    store_checked,
    unusable,
)
from edgespec.system.ownership import is_own, why_shared
from edgespec.system.user_data import data_folder, make_private, write_private

posix = pytest.mark.skipif(not hasattr(os, "getuid"), reason="owners are POSIX's")
superuser = pytest.mark.skipif(
    not hasattr(os, "getuid") or os.getuid() != 0, reason="only the superuser gives files away"
)


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A folder of this user's; pytest's are 0700."""
    folder = tmp_path / "own"
    make_private(folder)
    return folder


@posix
def test_what_is_made_is_private(own: Path) -> None:
    store_checked(own / "deep" / "er" / "code.o", b"code")
    for folder in (own, own / "deep", own / "deep" / "er"):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((own / "deep" / "er" / "code.o").stat().st_mode) == 0o600
    assert why_shared(own) == unusable(own) == ""


@posix
@pytest.mark.parametrize("mode", [0o777, 0o757, 0o702])
def test_a_folder_that_others_write_is_refused(mode: int, own: Path) -> None:
    own.chmod(mode)
    assert "other users may write" in why_shared(own)
    assert "other users may write" in why_shared(own / "below" / "it")
    own.chmod(0o755)
    assert why_shared(own) == ""


@posix
def test_a_shared_folder_with_the_sticky_bit_holds_own_folders(own: Path) -> None:
    """As /tmp does: nobody can take another's folder away there."""
    own.chmod(0o1777)
    make_private(own / "mine")
    assert why_shared(own / "mine") == ""


@superuser
def test_what_belongs_to_another_is_refused(own: Path) -> None:
    theirs = own / "theirs"
    make_private(theirs)
    path = theirs / "code.o"
    store_checked(path, b"code")
    assert load_checked(path) == b"code"
    os.chown(path, 12345, 12345)
    assert load_checked(path) is None
    os.chown(theirs, 12345, 12345)
    assert "another user" in why_shared(theirs)
    assert "another user" in why_shared(theirs / "kernels")


@posix
def test_a_file_that_others_write_is_not_loaded(own: Path) -> None:
    path = own / "code.o"
    store_checked(path, b"code")
    path.chmod(0o666)
    assert load_checked(path) is None
    assert not is_own(path.stat())


@posix
def test_a_link_is_not_followed(own: Path) -> None:
    path, link = own / "code.o", own / "link" / "code.o"
    store_checked(path, b"code")
    link.parent.mkdir()
    link.symlink_to(path)
    assert load_checked(link) is None


def test_a_file_is_good_under_its_name_alone(own: Path) -> None:
    store_checked(own / "one.nbc", b"code")
    (own / "other.nbc").write_bytes((own / "one.nbc").read_bytes())
    assert load_checked(own / "one.nbc") == b"code"
    assert load_checked(own / "other.nbc") is None


@posix
def test_a_shared_cache_is_said_once_and_left_alone(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    script = "from edgespec.system.disk_cache import cache_folder as c; print(c()); c()"
    found = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        env=os.environ | {"EDGESPEC_CACHE": str(shared)},
    )
    assert found.returncode == 0, found.stderr
    assert found.stdout.strip() != str(shared)
    assert len(found.stderr.splitlines()) == 1
    assert "other users may write" in found.stderr and "EDGESPEC_CACHE" in found.stderr
    assert list(shared.iterdir()) == []


@posix
def test_a_shared_data_folder_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    shared = tmp_path / "data"
    shared.mkdir()
    monkeypatch.setenv("EDGESPEC_DATA", str(shared))
    monkeypatch.delenv("EDGESPEC_HISTORY", raising=False)
    assert data_folder() == shared
    user_data._told_shared.cache_clear()
    shared.chmod(0o777)
    assert data_folder() is None
    assert "EDGESPEC_DATA" in capfd.readouterr().err


WRONG: dict[str, bytes] = {
    "nothing": b"\0",
    "text": b"not machine code",
    "a pickle": pickle.dumps(os.system),
    "another object file": b"\x7fELF" + bytes(60),
    "the head alone": b"EDGECODE" + bytes(12),
    "lengths beyond the end": b"EDGECODE" + b"\xff" * 12,
    "facts that are no facts": b"EDGECODE" + (2).to_bytes(4, "little") + bytes(8) + b"[]",
}
RUN = """
import sys
from pathlib import Path
import numpy as np
import edgespec.system.jit as jit
from edgespec.system.disk_cache import store_checked, kernel_folder
from edgespec.verification import noise
from edgespec.backends.native.kernels.codegen import isa
from edgespec.models.spec import TensorType
address = isa.tile_address(isa.available()[0], TensorType.F32, 1)
print(noise.gumbel_noise(1, 2, [3]).tolist(), bool(address))
functions = [one for one in vars(noise).values() if hasattr(one, "stats")]
print(sum(count for one in functions for count in one.stats.cache_hits.values()))
"""
WRITE = """
import sys
from pathlib import Path
from edgespec.system.disk_cache import store_checked
for path in Path(sys.argv[1]).rglob("*"):
    if path.suffix in (".nbc", ".o"):
        store_checked(path, bytes.fromhex(sys.argv[2]))
"""


def _run(script: str, folder: Path, *arguments: str) -> str:
    found = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        capture_output=True,
        text=True,
        env=os.environ | {"EDGESPEC_CACHE": str(folder), "EDGESPEC_KERNELS": "jit"},
    )
    assert found.returncode == 0, found.stderr
    return found.stdout


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """A cache that a process has filled, and what that said."""
    pytest.importorskip("numba")
    folder = tmp_path_factory.mktemp("compiled")
    yield folder, _run(RUN, folder)


@pytest.mark.parametrize("case", WRONG)
def test_wrong_content_with_a_valid_checksum_is_compiled_anew(
    case: str, compiled: tuple[Path, str]
) -> None:
    folder, first = compiled
    files = [path for end in ("o", "nbc") for path in folder.rglob(f"*.{end}")]
    assert {path.suffix for path in files} == {".o", ".nbc"}
    _run(WRITE, folder, str(folder), WRONG[case].hex())
    assert _run(RUN, folder).splitlines()[0] == first.splitlines()[0]
    again = _run(RUN, folder)
    assert int(again.splitlines()[1]) > 0


def test_no_pickle_is_read_anywhere() -> None:
    package = Path(disk_cache.__file__).parents[1]
    for path in package.rglob("*.py"):
        text = path.read_text("utf-8")
        for word in ("import pickle", "import marshal", "import shelve", "pickle.loads"):
            assert word not in text, path
        assert "allow_pickle=True" not in text, path


def test_object_files_are_known_by_their_beginning() -> None:
    assert is_object_code(b"\x64\x86" + bytes(18))
    assert not is_object_code(b"\x7fELF" + bytes(96)) and not is_object_code(b"#!/bin/sh")


DAMAGED_JSON: dict[str, bytes] = {
    "brackets": b"[" * 200_000,
    "objects": b'{"a":' * 60_000,
    "a long number": b'{"1": ' + b"9" * 400 + b"}",
    "a long size": b'{"' + b"9" * 400 + b'": 0.1}',
    "a size of none": b'{"0": 0.1}',
    "no number": b'{"1": NaN}',
    "too long": b'{"1": 0.1}' + b" " * (1 << 20),
    "not UTF-8": b'{"\xff": 1}',
    "a list": b"[1, 2]",
    "empty": b"",
}


@pytest.mark.parametrize("case", DAMAGED_JSON)
def test_a_damaged_curve_is_as_good_as_none(case: str, own: Path) -> None:
    path = own / "curve.json"
    path.write_bytes(DAMAGED_JSON[case])
    assert curve_cache._read(path) is None
    keep_json(path, {1: 0.5, 2: 0.6})
    assert curve_cache._read(path) == {1: 0.5, 2: 0.6}
    assert json.loads(path.read_bytes()) == kept_json(path)


def _full(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


WRITES: dict[str, Callable[[Path], object]] = {
    "code": lambda path: store_checked(path, b"new" * 1000),
    "plain values": lambda path: keep_json(path, {"new": 1}),
}


@pytest.mark.parametrize("failing", ["fsync", "open", "replace"])
def test_a_full_disk_leaves_what_was_there(
    failing: str, own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At every call that can find it full; caches say nothing, files that last raise OSError."""
    path = own / "file"
    write_private(path, [b"before"])
    with monkeypatch.context() as patch:
        if failing == "replace":
            patch.setattr(Path, "replace", _full)
        else:
            patch.setattr(os, failing, _full)
        with pytest.raises(OSError, match="space"):
            write_private(path, [b"after"])
        if failing != "fsync":
            for write in WRITES.values():
                write(path)
    assert path.read_bytes() == b"before"
    assert list(own.iterdir()) == [path]


def test_writers_at_once_leave_one_whole_file(own: Path) -> None:
    path = own / "file"
    script = (
        "import sys; from pathlib import Path; from edgespec.system.user_data import write_private;"
        "[write_private(Path(sys.argv[1]), [sys.argv[2].encode() * 50_000]) for _ in range(20)]"
    )
    writers = [
        subprocess.Popen([sys.executable, "-c", script, str(path), letter]) for letter in "abc"
    ]
    assert [writer.wait(120) for writer in writers] == [0, 0, 0]
    content = path.read_bytes()
    assert len(content) == 50_000 and len(set(content)) == 1
    assert list(own.iterdir()) == [path]
