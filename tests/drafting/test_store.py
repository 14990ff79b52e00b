"""Datastores: what is built is what is read, and nothing damaged gets through."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from naive_counts import NaiveTable

from edgespec.drafting.tables.followers import CHECK, FIRST, TOTAL, count_text, find, keys_in_text
from edgespec.drafting.text.store import COLUMNS, HEADER_BYTES, ORDERS, WAYS, Store, write_store
from edgespec.drafting.text.store_builder import LEAST_ORDER, build_store
from edgespec.errors import OptionError, StoreError
from edgespec.memory.plan.sizing import MAPPED_BYTES
from edgespec.models.open_model import open_model
from edgespec.models.tokenizers.tokenizer import Tokenizer
from edgespec.system.jit import kernel

FINGERPRINT = bytes(range(16))


@kernel
def row_of(rows: np.ndarray, keys: np.ndarray, text: np.ndarray) -> int:
    """The row of the context that a text is, or -1."""
    if keys_in_text(text, len(text), keys) < len(text):
        return -1
    return find(rows, keys[len(text) - 1, 0], keys[len(text) - 1, 1])


def followers_of(store: Store, context: tuple[int, ...]) -> list[list[int]]:
    keys = np.zeros((ORDERS, 2), np.int64)
    row = row_of(store.rows, keys, np.array(context, np.int32))
    if row < 0:
        return []
    entries = zip(
        store.rows[row, FIRST : FIRST + WAYS], store.rows[row, FIRST + WAYS :], strict=True
    )
    return [[int(token), int(weight)] for token, weight in entries if token >= 0]


@pytest.fixture(scope="module")
def tokenizer(bundled_model: Path) -> Tokenizer:
    with open_model(bundled_model) as model:
        return model.tokenizer


def small_store(path: Path) -> Path:
    rows = np.zeros((256, COLUMNS), np.int32)
    text = np.array([1, 2, 3, 1, 2, 4, 1, 2, 3], np.int32)
    count_text(rows, np.zeros((ORDERS, 2), np.int64), text, 0, 0)
    write_store(path, rows, len(text), 10, FINGERPRINT)
    return path


def test_a_folder_becomes_what_plain_dictionaries_say(tmp_path: Path, tokenizer: Tokenizer) -> None:
    folder = tmp_path / "texts"
    (folder / "deep").mkdir(parents=True)
    (folder / ".hidden").mkdir()
    texts = {
        "a.txt": "the red ball and the red box\n" * 5,
        "deep/b.py": "for i in range(3):\n  i\n",
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "noise.bin").write_bytes(b"\xff\xfe\x00\x01" * 50)
    (folder / "zeros").write_bytes(b"a\x00b")
    (folder / ".hidden" / "c.txt").write_text("never read")
    told: list[tuple[int, int]] = []
    report = build_store(
        folder, tokenizer, tmp_path / "s", 2**20, lambda done, whole: told.append((done, whole))
    )
    assert (report.files, report.skipped) == (2, 2)
    assert told[-1][0] == told[-1][1]
    oracle = NaiveTable(ORDERS, WAYS)
    for text in texts.values():
        oracle.feed(tokenizer.encode(text, add_bos=False))
    store = Store(tmp_path / "s", tokenizer.fingerprint)
    assert store.header.num_tokens == report.tokens
    expected = {c: row for c, row in oracle.rows.items() if len(c) >= LEAST_ORDER}
    assert store.num_contexts() == len(expected)
    for context, row in expected.items():
        assert followers_of(store, context) == row


def test_the_size_is_bounded_and_frequent_contexts_stay(
    tmp_path: Path, tokenizer: Tokenizer
) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    rng = np.random.default_rng(1)
    words = ["ball", "box", "dog", "tree", "house", "river", "stone", "bird", "road", "night"]
    lines = [" ".join(rng.choice(words, 12)) for _ in range(3000)]
    often = "once upon a time there was a king\n"
    (folder / "a").write_text("\n".join(lines[:1500]) + "\n" + often * 100 + "\n".join(lines))
    report = build_store(folder, tokenizer, tmp_path / "s", 100_000)
    assert report.size_bytes == (tmp_path / "s").stat().st_size <= 100_000
    store = Store(tmp_path / "s")
    ids = tokenizer.encode(often * 3, add_bos=False)
    known = [followers_of(store, tuple(ids[i - 3 : i]))[:1] for i in range(8, 20)]
    right = [entry and entry[0][0] == ids[i] for entry, i in zip(known, range(8, 20), strict=True)]
    assert sum(map(bool, right)) >= 10


@pytest.mark.skipif(os.name == "nt", reason="modes are those of POSIX")
def test_a_store_is_its_owners_alone(tmp_path: Path) -> None:
    path = small_store(tmp_path / "s")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in tmp_path.iterdir()] == ["s"]


@pytest.mark.skipif(sys.platform != "linux", reason="reads smaps")
def test_what_is_resident_of_a_store_is_bounded(tmp_path: Path) -> None:
    """Looked at all over, a store of 88 MiB keeps no more of itself in memory than is planned."""
    rows = np.zeros((1 << 21, COLUMNS), np.int32)
    write_store(tmp_path / "a.store", rows, 1, 10, FINGERPRINT)
    store = Store(tmp_path / "a.store", FINGERPRINT)
    assert store.size_bytes > 4 * MAPPED_BYTES
    generator, most = np.random.default_rng(0), 0
    for _ in range(300):
        store.keep_small()
        assert not store.rows[generator.integers(0, len(rows), 60), CHECK].any()
        most = max(most, resident_of(store))
    assert 0 < most <= MAPPED_BYTES


def resident_of(store: Store) -> int:
    """Resident bytes of a store's mapping, as the system counts them."""
    lines = Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines()
    found = [place for place, line in enumerate(lines) if line.endswith(str(store.path))]
    counts = (line for place in found for line in lines[place : place + 8])
    return sum(1024 * int(line.split()[1]) for line in counts if line.startswith("Rss:"))


def test_another_vocabulary_is_refused(tmp_path: Path) -> None:
    path = small_store(tmp_path / "s")
    assert len(Store(path, FINGERPRINT).rows) == 256
    with pytest.raises(StoreError, match="another vocabulary than this model's; build it again"):
        Store(path, bytes(16))


@pytest.mark.parametrize(
    ("place", "what"),
    [(0, "not a datastore"), (8, "version"), (16, "contradicts"), (24, "contradicts"),
     (57, "contradicts"), (73, "contradicts"), (HEADER_BYTES + 4, "checksum")],
)  # fmt: skip
def test_damage_is_noticed(tmp_path: Path, place: int, what: str) -> None:
    path = small_store(tmp_path / "s")
    raw = bytearray(path.read_bytes())
    raw[place] ^= 0x55
    path.write_bytes(raw)
    with pytest.raises(StoreError, match=what):
        Store(path)


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="owners are POSIX's")
def test_a_file_that_others_may_change_is_refused(tmp_path: Path) -> None:
    """Kernels look up what it says, and it was checked when it was opened."""
    path = small_store(tmp_path / "s")
    path.chmod(0o646)
    with pytest.raises(StoreError, match="a folder of your own"):
        Store(path)


@pytest.mark.parametrize("length", [0, 7, 100, HEADER_BYTES, HEADER_BYTES + 5000, -1, 10**6])
def test_a_file_of_another_length_is_refused(tmp_path: Path, length: int) -> None:
    path = small_store(tmp_path / "s")
    raw = path.read_bytes()
    path.write_bytes(raw[:length] if length < len(raw) else raw.ljust(length, b"\0"))
    with pytest.raises(StoreError):
        Store(path)


@pytest.mark.parametrize(
    ("column", "value"),
    [(FIRST, 10), (FIRST, -2), (FIRST + WAYS, -5), (FIRST + WAYS, 2**30), (TOTAL, 0), (TOTAL, -1)],
)
def test_rows_that_no_table_has_are_refused_however_well_signed(
    tmp_path: Path, column: int, value: int
) -> None:
    rows = Store(small_store(tmp_path / "s")).rows.copy()
    rows[int(np.flatnonzero(rows[:, CHECK])[0]), column] = value
    write_store(tmp_path / "t", rows, 9, 10, FINGERPRINT)
    with pytest.raises(StoreError, match="cannot be"):
        Store(tmp_path / "t")


@settings(max_examples=60, deadline=None)
@given(place=st.integers(0, HEADER_BYTES + 256 * COLUMNS * 4 - 1), flip=st.integers(1, 255))
def test_no_flipped_byte_of_meaning_passes(
    tmp_path_factory: pytest.TempPathFactory, place: int, flip: int
) -> None:
    path = small_store(tmp_path_factory.mktemp("stores") / "s")
    raw = bytearray(path.read_bytes())
    raw[place] ^= flip
    path.write_bytes(raw)
    if 88 <= place < HEADER_BYTES:  # padding
        assert len(Store(path).rows) == 256
    else:
        with pytest.raises(StoreError):
            Store(path)


def test_what_cannot_be_built_is_explained(tmp_path: Path, tokenizer: Tokenizer) -> None:
    with pytest.raises(StoreError, match="no such folder"):
        build_store(tmp_path / "none", tokenizer, tmp_path / "s", 2**20)
    with pytest.raises(StoreError, match="holds no UTF-8 text"):
        build_store(tmp_path, tokenizer, tmp_path / "s", 2**20)
    with pytest.raises(OptionError, match="too small"):
        build_store(tmp_path, tokenizer, tmp_path / "s", 1000)
    (tmp_path / "a.txt").write_text("some text", encoding="utf-8")
    with pytest.raises(StoreError, match="choose another --out"):
        build_store(tmp_path, tokenizer, tmp_path / "no" / "s", 2**20)
    with pytest.raises(StoreError, match="cannot open the datastore"):
        Store(tmp_path / "missing")
    assert not (tmp_path / "s").exists()
