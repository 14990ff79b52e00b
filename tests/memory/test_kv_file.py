"""Files of keys and values: what is read back, and everything that is refused."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from edgespec.errors import KvFileError
from edgespec.memory.kv.kv_file import PAGE_BYTES, KvFile, KvHeader, write_kv
from edgespec.memory.kv.spill import SpillFolder

BLOCK_BYTES = 192
IDS = np.arange(300, dtype=np.int32)
HEADER = KvHeader(b"k" * 32, BLOCK_BYTES, IDS, "a note, ä")
SIZED = KvHeader(b"k" * 32, 0, IDS, "a note, ä", sizes=(192, 64, 300, 1, 192))
HEADERS = {
    "one size": HEADER,
    "several sizes": SIZED,
    "quick": replace(HEADER, quick=True),
    "quick, several sizes": replace(SIZED, quick=True),
}


def some_blocks(seed: int = 0, header: KvHeader = HEADER) -> list[NDArray[np.uint8]]:
    random, count = np.random.default_rng(seed), header.num_blocks
    return [random.integers(0, 256, header.bytes_of(index), np.uint8) for index in range(count)]


def read_all(path: Path, secret: bytes = b"") -> tuple[KvHeader, list[NDArray[np.uint8]]]:
    with path.open("rb") as file:
        found = KvFile.open(path, file, secret)
        sizes = map(found.header.bytes_of, range(found.header.num_blocks))
        blocks = [np.zeros(size, np.uint8) for size in sizes]
        for index, block in enumerate(blocks):
            found.read(file, index, block)
    return found.header, blocks


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("kv") / "one.keys"
    assert write_kv(path, HEADER, some_blocks()) == path.stat().st_size
    return path


def test_what_was_written_is_read_back(written: Path) -> None:
    header, blocks = read_all(written)
    assert (header.kind, header.note, header.block_bytes) == (b"k" * 32, "a note, ä", BLOCK_BYTES)
    np.testing.assert_array_equal(header.ids, IDS)
    np.testing.assert_array_equal(blocks, some_blocks())
    assert header.place(0) % PAGE_BYTES == 0 and header.place(1) % 64 == 0
    assert list(written.parent.iterdir()) == [written]


def test_blocks_of_several_sizes_are_read_back(tmp_path: Path) -> None:
    path = tmp_path / "one.keys"
    blocks = some_blocks(1, SIZED)
    assert write_kv(path, SIZED, blocks, b"mine") == path.stat().st_size
    header, found = read_all(path, b"mine")
    assert (header.sizes, header.block_bytes, header.note) == (SIZED.sizes, 0, SIZED.note)
    for own, other in zip(found, blocks, strict=True):
        np.testing.assert_array_equal(own, other)
    places = [header.place(index) for index in range(len(blocks) + 1)]
    assert all(place % 64 == 0 for place in places)
    gaps = [after - place for place, after in zip(places, places[1:], strict=False)]
    assert gaps == [192, 64, 320, 64, 192]


def test_files_of_prefixes_stay_as_they_are(written: Path) -> None:
    """They are kept from version to version."""
    found = hashlib.blake2b(written.read_bytes(), digest_size=8).hexdigest()
    assert found == "1451245c7dbb52ab"


@pytest.mark.skipif(os.name != "posix", reason="file modes are POSIX's")
def test_only_the_owner_reads_it(written: Path) -> None:
    assert written.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("form", HEADERS)
@given(data=st.data())
def test_a_flipped_bit_is_noticed(
    form: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Wherever something is told: only what pads the header and blocks may be anything."""
    path, header = tmp_path_factory.mktemp("flip") / "one.keys", HEADERS[form]
    write_kv(path, header, some_blocks(0, header))
    raw = bytearray(path.read_bytes())
    told = 64 + 4 * len(IDS) + len("a note, ä".encode()) + 8 * len(header.sizes)
    told += 16 * (header.num_blocks + 1)
    places = [st.integers(0, told - 1)]
    for index in range(header.num_blocks):
        place = header.place(index)
        places.append(st.integers(place, place + header.bytes_of(index) - 1))
    raw[data.draw(st.one_of(places))] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(raw)
    with pytest.raises(KvFileError, match=r"one\.keys"):
        read_all(path)


@pytest.mark.parametrize("form", HEADERS)
@given(data=st.data())
def test_a_file_of_another_length_is_refused(
    form: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path, header = tmp_path_factory.mktemp("cut") / "one.keys", HEADERS[form]
    write_kv(path, header, some_blocks(0, header))
    raw = path.read_bytes()
    length = data.draw(st.integers(0, len(raw) + 10).filter(lambda n: n != len(raw)))
    path.write_bytes(raw.ljust(length, b"\0")[:length])
    with pytest.raises(KvFileError, match=r"one\.keys"):
        read_all(path)


@given(st.binary(max_size=400))
def test_noise_is_no_such_file(raw: bytes) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "one.keys"
        heads = [b"EDGEKEYS%c\0\0\0" % version for version in range(6)]
        for head in (b"", b"EDGEKEYS", *heads):
            path.write_bytes(head + raw)
            with pytest.raises(KvFileError):
                read_all(path)


def test_without_the_secret_none_can_be_made(tmp_path: Path) -> None:
    path = tmp_path / "one.keys"
    write_kv(path, HEADER, some_blocks(), b"mine")
    read_all(path, b"mine")
    write_kv(tmp_path / "two.keys", HEADER, some_blocks(), b"theirs")
    with pytest.raises(KvFileError, match="checksum"):
        read_all(tmp_path / "two.keys", b"mine")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[SpillFolder]:
    yield SpillFolder(tmp_path / "spill")


def test_blocks_are_spilled_and_read_in_part(folder: SpillFolder) -> None:
    path = folder.write(HEADER, some_blocks())
    into = [np.zeros(BLOCK_BYTES, np.uint8)]
    folder.read(path, HEADER, 1, into)
    np.testing.assert_array_equal(into[0], some_blocks()[1])
    folder.remove(path)
    assert not path.exists()
    with pytest.raises(OSError, match="one|keys"):
        folder.read(path, HEADER, 1, into)


def test_another_texts_file_is_refused(folder: SpillFolder) -> None:
    """Files that were exchanged are both sound."""
    other = KvHeader(HEADER.kind, BLOCK_BYTES, IDS + 1)
    path = folder.write(other, some_blocks())
    with pytest.raises(KvFileError, match="another text"):
        folder.read(path, HEADER, 0, some_blocks())
    path = folder.write(SIZED, some_blocks(0, SIZED))
    with pytest.raises(KvFileError, match="another text"):
        folder.read(path, replace(SIZED, sizes=SIZED.sizes[::-1]), 0, some_blocks(0, SIZED)[::-1])


def test_a_full_disk_is_not_filled_further(
    folder: SpillFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgespec.memory.kv.spill.RESERVE_BYTES", 2**62)
    with pytest.raises(OSError, match="free"):
        folder.write(HEADER, some_blocks())


def test_files_of_ended_processes_are_removed(tmp_path: Path) -> None:
    """Those of one that runs stay, and a file that is none of ours does."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    running = subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    try:
        left = tmp_path / f"{ended.pid}-00.keys"
        part = tmp_path / f"{ended.pid}-01.keys.{ended.pid}.part"
        stays = [tmp_path / f"{running.pid}-00.keys", tmp_path / f"{os.getpid()}-00.keys"]
        for path in (left, part, *stays, tmp_path / "notes.txt"):
            path.write_bytes(b"x")
        old = tmp_path / f"{running.pid}-02.keys"  # written before that process began
        old.write_bytes(b"x")
        os.utime(old, (1, 1))
        SpillFolder(tmp_path)
        assert sorted(tmp_path.iterdir()) == sorted([*stays, tmp_path / "notes.txt"])
    finally:
        running.communicate(b"\n")
