"""The prompt cache: the longest beginning is found, what is read was computed, limits hold."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from edgespec.memory.kv import prompt_cache
from edgespec.memory.kv.prompt_cache import PromptCache, prompt_folder

ROW = 16
"""Bytes of a position."""
BLOCK = 4
BLOCK_BYTES = BLOCK * ROW
FILE_BYTES = 4096 + 64
KIND = b"m" * 32
PLENTY = 1 << 30


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_cache, "BLOCK", BLOCK)


def tokens(ids: Sequence[int]) -> NDArray[np.int32]:
    return np.array(ids, np.int32)


def rows(ids: Sequence[int]) -> NDArray[np.uint8]:
    """What a model would keep of each position: it depends on all tokens up to there."""
    hashes = [hashlib.blake2b(repr(ids[: at + 1]).encode()).digest() for at in range(len(ids))]
    return np.frombuffer(b"".join(one[:ROW] for one in hashes), np.uint8).reshape(-1, ROW)


def write(cache: PromptCache, ids: list[int]) -> None:
    padded = np.zeros((-(-len(ids) // BLOCK), BLOCK_BYTES), np.uint8)
    padded.reshape(-1)[: len(ids) * ROW] = rows(ids).ravel()
    cache.write(tokens(ids), list(padded))


def read(cache: PromptCache, ids: list[int]) -> tuple[int, NDArray[np.uint8], str]:
    """How many positions are found and sound, what they hold, and what is wrong."""
    found = cache.find(tokens(ids))
    into = np.zeros((len(found), BLOCK_BYTES), np.uint8)
    count, wrong = cache.read(found, list(into))
    return count, into.reshape(-1, ROW)[:count], wrong


def common(one: list[int], other: list[int]) -> int:
    pairs = zip(one, other, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


@pytest.fixture
def cache(tmp_path: Path) -> PromptCache:
    return PromptCache(tmp_path / "prompts", PLENTY, KIND, BLOCK_BYTES)


def files(cache: PromptCache) -> list[Path]:
    return sorted(cache._folder.glob("*"))


TEXTS = st.lists(st.integers(0, 1), min_size=1, max_size=14)


@given(texts=st.lists(TEXTS, max_size=6), asked=TEXTS)
def test_the_longest_beginning_is_found(
    texts: list[list[int]], asked: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """As comparing with every text that was written finds it."""
    cache = PromptCache(tmp_path_factory.mktemp("prompts"), PLENTY, KIND, BLOCK_BYTES)
    for text in texts:
        write(cache, text)
    count, found, wrong = read(cache, asked)
    assert count == max((common(asked, text) for text in texts), default=0)
    np.testing.assert_array_equal(found, rows(asked)[:count])
    assert not wrong


def test_texts_that_begin_alike_share_files(cache: PromptCache) -> None:
    write(cache, [1] * 8 + [2] * 4)
    write(cache, [1] * 8 + [3] * 4)
    write(cache, [1] * 8 + [3] * 4)
    assert len(files(cache)) == 4


def test_other_models_and_forms_find_nothing(cache: PromptCache) -> None:
    write(cache, [1] * 9)
    other = PromptCache(cache._folder, PLENTY, b"n" * 32, BLOCK_BYTES)
    assert other.find(tokens([1] * 9)) == []
    wider = PromptCache(cache._folder, PLENTY, KIND, 2 * BLOCK_BYTES)
    found = wider.find(tokens([1] * 9))
    into = [np.zeros(2 * BLOCK_BYTES, np.uint8) for _ in found]
    count, wrong = wider.read(found, into)
    assert count == 0 and "another text" in wrong


DAMAGES: dict[str, Callable[[Path], object]] = {
    "cut": lambda path: os.truncate(path, path.stat().st_size - 1),
    "empty": lambda path: path.write_bytes(b""),
    "another file": lambda path: path.write_bytes(b"GGUF" * 1040),
    "of another version": lambda path: _poke(path, 8, 9),
    "other bytes": lambda path: _poke(path, 4096, 1),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
    "gone": Path.unlink,
}


def _poke(path: Path, at: int, value: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[at] ^= value
    path.write_bytes(raw)


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_ends_what_is_read(damage: str, cache: PromptCache) -> None:
    """Before or after it was found; whole again, it is read again."""
    ids = list(range(15))
    write(cache, ids)
    third = cache.find(tokens(ids))[2].path
    found = cache.find(tokens(ids))
    DAMAGES[damage](third)
    count, wrong = cache.read(found, list(np.zeros((4, BLOCK_BYTES), np.uint8)))
    assert count == 8 and wrong
    count, held, _ = read(cache, ids)
    assert count == 8
    np.testing.assert_array_equal(held, rows(ids)[:8])
    if third.is_dir():
        third.rmdir()
    write(cache, ids)
    assert read(cache, ids)[0] == 15


@given(data=st.data())
def test_whatever_is_in_a_file_is_never_another_text(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Bytes of chance, or one bit, or another block's file under this name."""
    cache = PromptCache(tmp_path_factory.mktemp("prompts"), PLENTY, KIND, BLOCK_BYTES)
    ids = list(range(11))
    write(cache, ids)
    paths = [block.path for block in cache.find(tokens(ids))]
    path = data.draw(st.sampled_from(paths))
    raw = bytearray(path.read_bytes())
    match data.draw(st.sampled_from(["bit", "bytes", "other"])):
        case "bit":
            raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        case "bytes":
            raw = bytearray(data.draw(st.binary(max_size=300)))
        case _:
            raw = bytearray(data.draw(st.sampled_from(paths)).read_bytes())
    path.write_bytes(raw)
    count, found, _ = read(cache, ids)
    np.testing.assert_array_equal(found, rows(ids)[:count])


def test_what_is_used_least_goes_first(cache: PromptCache) -> None:
    """The end of a text before its beginning."""
    old, used, new = [1] * 12, [2] * 12, [3] * 12
    small = PromptCache(cache._folder, 7 * FILE_BYTES, KIND, BLOCK_BYTES)
    write(small, old)
    write(small, used)
    assert read(small, old)[0] == 12  # now `used` is the oldest
    write(small, new)
    assert [read(small, text)[0] for text in (old, used, new)] == [12, 4, 12]
    assert len(files(small)) == 7


def test_a_text_larger_than_the_limit_is_kept_in_part(cache: PromptCache) -> None:
    small = PromptCache(cache._folder, 2 * FILE_BYTES + 1, KIND, BLOCK_BYTES)
    write(small, list(range(40)))
    assert read(small, list(range(40)))[0] == 8
    none = PromptCache(cache._folder, FILE_BYTES - 1, KIND, BLOCK_BYTES)
    write(none, list(range(50, 60)))
    assert len(files(cache)) == 2


def test_what_a_killed_process_left_goes_too(cache: PromptCache) -> None:
    small = PromptCache(cache._folder, 2 * FILE_BYTES, KIND, BLOCK_BYTES)
    write(small, [1])
    left = cache._folder / f"{files(small)[0].name}.1-00.part"
    left.write_bytes(bytes(FILE_BYTES))
    os.utime(left, (1, 1))
    write(small, [2])
    assert len(files(small)) == 2 and not left.exists()


def test_a_full_disk_is_not_filled_further(
    cache: PromptCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prompt_cache, "RESERVE_BYTES", 2**62)
    with pytest.raises(OSError, match="free"):
        write(cache, [1] * 9)
    assert files(cache) == []


def test_a_disk_that_ends_leaves_nothing_half(
    cache: PromptCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("edgespec.memory.kv.kv_file.KvHeader.pack", refuse)
    with pytest.raises(OSError, match="No space"):
        write(cache, [1] * 9)
    assert files(cache) == []


def test_without_more_threads_one_does_it_all(
    cache: PromptCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("threading.Thread.start", refuse)
    write(cache, [1] * 9)
    assert read(cache, [1] * 9)[0] == 9


def test_several_write_and_read_at_once(cache: PromptCache) -> None:
    """With a limit that they fight for: what is read is right, and the limit nearly holds."""
    texts = [[number] * 4 + list(range(12)) for number in range(8)]

    def work(text: list[int]) -> None:
        own = PromptCache(cache._folder, 12 * FILE_BYTES, KIND, BLOCK_BYTES)
        for other in (text, *texts):
            try:
                write(own, text)
            except FileNotFoundError:
                continue  # another took its unfinished file for an old one
            count, found, _ = read(own, other)
            np.testing.assert_array_equal(found, rows(other)[:count])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, texts))
    write(PromptCache(cache._folder, 12 * FILE_BYTES, KIND, BLOCK_BYTES), [9] * 4)
    assert len(files(cache)) <= 12


@pytest.mark.skipif(os.name != "posix", reason="file modes are POSIX's")
def test_files_are_the_users_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_cache, "cache_folder", lambda: tmp_path)
    own = prompt_folder()
    assert own is not None
    cache = PromptCache(own, PLENTY, KIND, BLOCK_BYTES)
    write(cache, [1] * 5)
    folder, (path, *_) = cache._folder, files(cache)
    assert folder.stat().st_mode & 0o777 == 0o700 and path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o666)
    assert read(cache, [1] * 5)[0] < 5  # somebody else could have written it
    folder.chmod(0o777)
    assert prompt_folder() is None


@pytest.mark.skipif(os.name != "posix", reason="links need no rights on POSIX")
def test_links_are_not_followed(cache: PromptCache, tmp_path: Path) -> None:
    write(cache, [1] * 4)
    (path,) = files(cache)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert read(cache, [1] * 4)[0] == 0
    assert (tmp_path / "elsewhere").exists()


def test_they_are_counted_and_forgotten(
    cache: PromptCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prompt_cache, "chosen_folder", lambda: tmp_path)
    assert prompt_cache.cached_prompts() == (0, 0)
    write(cache, [1] * 9)
    assert prompt_cache.cached_prompts() == (3, 3 * FILE_BYTES)
    assert prompt_cache.forget_prompts() == 3
    assert prompt_cache.cached_prompts() == (0, 0)
