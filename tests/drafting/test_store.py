"""Datastores: what is built is what is found, and nothing damaged gets through."""

from __future__ import annotations

import mmap
import os
import stat
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from edgespec.drafting.text.store import HEADER_BYTES, Store, StoreHeader, write_store
from edgespec.drafting.text.store_builder import build_store, sorted_by_context
from edgespec.drafting.text.store_kernels import (
    FOUND,
    FOUND_TOKEN,
    FOUND_VOTES,
    LEAST,
    LONGEST,
    MOST_FOUND,
    NUM_STORE_WORDS,
    ORDER,
    TEXT,
    VOCABULARY,
    search,
)
from edgespec.errors import OptionError, StoreError
from edgespec.memory.plan.sizing import MAPPED_BYTES
from edgespec.models.open_model import open_model
from edgespec.models.tokenizers.tokenizer import Tokenizer
from edgespec.system.addresses import AddressTable
from edgespec.system.jit import kernel

FINGERPRINT = bytes(range(16))
LINES = st.one_of(
    st.lists(st.integers(-1, 2), min_size=1, max_size=120),
    st.lists(st.integers(-1, 30), min_size=1, max_size=120),
    st.builds(
        lambda unit, times: unit * times,
        st.lists(st.integers(-1, 5), min_size=1, max_size=30),
        st.integers(1, 5),
    ),
)


@kernel
def searched(table: int, tail: np.ndarray) -> tuple[int, int]:
    """What a search finds, from Python."""
    return search(table, tail)


def found_in(
    text: NDArray[np.int32], order: NDArray[np.int32], tail: list[int]
) -> tuple[int, dict]:
    """The longest context's length, and how often each next token was seen there."""
    table, found = AddressTable(NUM_STORE_WORDS), np.zeros((MOST_FOUND, 3), np.int64)
    table.bind(TEXT, text)
    table.bind(ORDER, order)
    table.bind(FOUND, found)
    table.words[VOCABULARY] = 100
    count, match = searched(table.address, np.array(tail, np.int32))
    return match, dict(found[:count, [FOUND_TOKEN, FOUND_VOTES]].tolist())


def before(text: list[int], place: int) -> list[int]:
    """The tokens before a place, the nearest first, as far as contexts reach."""
    near = text[max(place - LONGEST, 0) : place][::-1]
    return near + [-1] * (LONGEST - len(near))


@settings(max_examples=100, deadline=None)
@given(text=LINES)
def test_places_are_in_order_of_what_is_before_them(text: list[int]) -> None:
    order = sorted_by_context(np.array(text, np.int32)).tolist()
    assert order == sorted(range(len(text)), key=lambda place: (before(text, place), place))


@settings(max_examples=200, deadline=None)
@given(text=LINES, data=st.data())
def test_the_longest_context_that_is_known_is_found(text: list[int], data: st.DataObject) -> None:
    if data.draw(st.booleans()):
        end = data.draw(st.integers(0, len(text)))
        tail = text[max(end - 20, 0) : end]
    else:
        tail = data.draw(st.lists(st.integers(-1, 5), max_size=20))
    known: list[int] = []
    for token in reversed(tail[-LONGEST:]):
        if token < 0:
            break
        known.append(token)
    after: dict[int, list[int]] = {}
    for place in range(len(text)):
        same = 0
        while same < min(len(known), place) and text[place - 1 - same] == known[same]:
            same += 1
        after.setdefault(same, []).append(text[place])
    longest = max(after)
    lines = np.array(text, np.int32)
    match, found = found_in(lines, sorted_by_context(lines), tail)
    assert match == (longest if longest >= LEAST else 0)
    seen = Counter(token for token in after[longest] if token >= 0)
    if match and sum(seen.values()) <= 8 and len(seen) <= MOST_FOUND:
        assert found == dict(seen)
    elif match:
        assert all(votes <= seen[token] for token, votes in found.items())
        assert len(found) > 0 or not seen or -1 in after[longest]
    else:
        assert found == {}


@settings(max_examples=100, deadline=None)
@given(
    text=st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=40),
    order=st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=40),
    tail=st.lists(st.integers(0, 99), max_size=20),
)
def test_a_file_that_changes_after_it_was_checked_does_no_harm(
    text: list[int], order: list[int], tail: list[int]
) -> None:
    match, found = found_in(np.array(text, np.int32), np.array(order, np.int32), tail)
    assert 0 <= match <= LONGEST
    assert all(0 <= token < 100 for token in found)


@pytest.fixture(scope="module")
def tokenizer(bundled_model: Path) -> Tokenizer:
    with open_model(bundled_model) as model:
        return model.tokenizer


def write(path: Path, text: list[int], order: list[int] | None = None) -> Path:
    lines = np.array(text, np.int32)
    header = StoreHeader(len(text), 1, 0, 10, FINGERPRINT, bytes(16))
    places = sorted_by_context(lines) if order is None else np.array(order, np.int32)
    write_store(path, header, lines, places)
    return path


def small_store(path: Path) -> Path:
    return write(path, [-1, 1, 2, 3, 1, 2, 4, 1, 2, 3] * 10)


SMALL_BYTES = HEADER_BYTES + 8 * 100


def test_a_folder_becomes_its_files_tokens(tmp_path: Path, tokenizer: Tokenizer) -> None:
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
    assert (report.files, report.skipped, report.was_current) == (2, 2, False)
    assert told[-1][0] == told[-1][1]
    store = Store(tmp_path / "s", tokenizer.fingerprint)
    ids = [tokenizer.encode(text, add_bos=False) for text in texts.values()]
    assert store.text.tolist() == [-1, *ids[0], -1, *ids[1]]
    assert store.order.tolist() == sorted_by_context(store.text).tolist()
    assert report.tokens == len(ids[0]) + len(ids[1])


def test_what_is_near_comes_first_where_room_is_short(tmp_path: Path, tokenizer: Tokenizer) -> None:
    words = ["ball", "box", "dog", "tree", "house", "river", "stone", "bird", "road", "night"]
    rng = np.random.default_rng(1)
    for name in ("a/far.txt", "b/near.txt", "b/c/edited.txt"):
        path = tmp_path / "texts" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(" ".join(rng.choice(words, 12_000)), encoding="utf-8")
    report = build_store(
        tmp_path / "texts", tokenizer, tmp_path / "s", 70_000, near="b/c/edited.txt"
    )
    assert report.size_bytes == (tmp_path / "s").stat().st_size <= 70_000
    near = tokenizer.encode((tmp_path / "texts/b/near.txt").read_text(), add_bos=False)
    text = Store(tmp_path / "s").text.tolist()
    assert text[1:1001] == near[:1000]
    assert (report.files, report.skipped) == (1, 2)


def test_only_what_has_changed_is_built_again(tmp_path: Path, tokenizer: Tokenizer) -> None:
    folder, out = tmp_path / "texts", tmp_path / "s"
    folder.mkdir()
    (folder / "a.txt").write_text("a red ball", encoding="utf-8")
    first = build_store(folder, tokenizer, out, 2**20)
    again = build_store(folder, tokenizer, out, 2**20)
    assert (first.was_current, again.was_current) == (False, True)
    assert (again.files, again.tokens, again.size_bytes) == (
        first.files, first.tokens, first.size_bytes,
    )  # fmt: skip
    os.utime(folder / "a.txt", ns=(1, 1))
    assert not build_store(folder, tokenizer, out, 2**20).was_current
    (folder / "b.txt").write_text("and a box", encoding="utf-8")
    assert build_store(folder, tokenizer, out, 2**20).files == 2
    out.write_bytes(b"no store any more")
    assert not build_store(folder, tokenizer, out, 2**20).was_current


@pytest.mark.skipif(os.name == "nt", reason="modes are those of POSIX")
def test_a_store_is_its_owners_alone(tmp_path: Path) -> None:
    path = small_store(tmp_path / "s")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in tmp_path.iterdir()] == ["s"]


@pytest.mark.skipif(sys.platform != "linux", reason="reads the table of pages")
def test_what_is_resident_of_a_store_is_bounded(tmp_path: Path) -> None:
    """Looked at all over, a store of 32 MiB keeps no more of itself in memory than is planned."""
    text = np.full(1 << 22, 3, np.int32)
    header = StoreHeader(len(text), 1, 0, 10, FINGERPRINT, bytes(16))
    write_store(tmp_path / "a.store", header, text, np.arange(len(text), dtype=np.int32))
    store = Store(tmp_path / "a.store", FINGERPRINT)
    assert store.size_bytes > 2 * MAPPED_BYTES
    generator, most = np.random.default_rng(0), 0
    for _ in range(300):
        store.keep_small()
        store.order[generator.integers(0, len(text), 60)].sum()
        most = max(most, resident_of(store))
    assert 0 < most <= MAPPED_BYTES


def resident_of(store: Store) -> int:
    """Resident bytes of a store's mapping, as the system counts them."""
    first = (store.text.ctypes.data - HEADER_BYTES) // mmap.PAGESIZE
    pages = -(-store.size_bytes // mmap.PAGESIZE)
    with open("/proc/self/pagemap", "rb") as file:
        file.seek(8 * first)
        words = np.frombuffer(file.read(8 * pages), np.uint64)
    assert len(words) == pages
    return mmap.PAGESIZE * int(np.count_nonzero(words >> np.uint64(63)))


def test_another_vocabulary_is_refused(tmp_path: Path) -> None:
    path = small_store(tmp_path / "s")
    assert len(Store(path, FINGERPRINT).text) == 100
    with pytest.raises(StoreError, match="another vocabulary than this model's; build it again"):
        Store(path, bytes(16))


@pytest.mark.parametrize(
    ("place", "what"),
    [(0, "not a datastore"), (8, "version"), (12, "contradicts"), (16, "contradicts"),
     (60, "contradicts"), (90, "contradicts"), (HEADER_BYTES + 4, "checksum|cannot be")],
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
    ("text", "order"),
    [([1, 10, 2], [0, 1, 2]), ([1, -2, 2], [0, 1, 2]), ([1, 1, 2], [0, 1, 3]),
     ([1, 1, 2], [0, -1, 2])],
)  # fmt: skip
def test_numbers_that_no_store_has_are_refused_however_well_signed(
    tmp_path: Path, text: list[int], order: list[int]
) -> None:
    with pytest.raises(StoreError, match="cannot be"):
        Store(write(tmp_path / "t", text, order))


@settings(max_examples=60, deadline=None)
@given(place=st.integers(0, SMALL_BYTES - 1), flip=st.integers(1, 255))
def test_no_flipped_byte_of_meaning_passes(
    tmp_path_factory: pytest.TempPathFactory, place: int, flip: int
) -> None:
    path = small_store(tmp_path_factory.mktemp("stores") / "s")
    raw = bytearray(path.read_bytes())
    raw[place] ^= flip
    path.write_bytes(raw)
    if 104 <= place < HEADER_BYTES:  # padding
        assert len(Store(path).text) == 100
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
