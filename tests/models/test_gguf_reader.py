from __future__ import annotations

import struct
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgespec.errors import ModelFileError, UnsupportedModelError
from edgespec.models.gguf.file_source import FileSource
from edgespec.models.gguf.header import GgufHeader, read_header
from edgespec.models.gguf.strings import StringArray
from tests.support.raw_gguf import gguf, key, numbers, strings, tensor, text

ARCH = key("general.architecture", 8, text("llama"))
HUGE = 1 << 40


def parse(path: Path, data: bytes) -> GgufHeader:
    path.write_bytes(data)
    with FileSource(path) as source:
        return read_header(source)


@pytest.mark.parametrize("version", [2, 3])
def test_reads_every_kind_of_value(tmp_path: Path, version: int) -> None:
    keys = [
        key("u8", 0, b"\x07"),
        key("i8", 1, b"\xff"),
        key("u16", 2, struct.pack("<H", 65535)),
        key("i16", 3, struct.pack("<h", -2)),
        key("u32", 4, struct.pack("<I", 1 << 31)),
        key("i32", 5, struct.pack("<i", -3)),
        key("f32", 6, struct.pack("<f", 0.5)),
        key("bool", 7, b"\x01"),
        key("text", 8, text("größe")),
        key("u64", 10, struct.pack("<Q", 1 << 63)),
        key("i64", 11, struct.pack("<q", -4)),
        key("f64", 12, struct.pack("<d", 0.1)),
        key("floats", 9, numbers(6, "f", [1.0, 2.5])),
        key("flags", 9, numbers(7, "B", [1, 0])),
        key("none", 9, strings([])),
    ]
    header = parse(tmp_path / "m.gguf", gguf(keys, version=version))
    values: dict[str, Any] = dict(header.metadata)
    assert list(values.pop("floats")) == [1.0, 2.5]
    assert values.pop("flags").tolist() == [True, False]
    assert list(values.pop("none")) == []
    assert values == {
        "u8": 7, "i8": -1, "u16": 65535, "i16": -2, "u32": 1 << 31, "i32": -3, "f32": 0.5,
        "bool": True, "text": "größe", "u64": 1 << 63, "i64": -4, "f64": 0.1,
    }  # fmt: skip
    assert header.version == version


def test_strings_are_read_on_demand(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf([key("words", 9, strings(["a", "", "größe", "z"]))]))
    with FileSource(path) as source:
        words = read_header(source).metadata["words"]
        assert isinstance(words, StringArray)
        assert list(words) == ["a", "", "größe", "z"] == words[:]
        assert (words[-1], words[1:3], len(words)) == ("z", ["", "größe"], 4)
        assert words.all_raw()[2] == "größe".encode()
    with pytest.raises(ModelFileError, match="it was closed"):
        words[0]


def test_tensors_are_placed_behind_the_header(tmp_path: Path) -> None:
    data = np.arange(48, dtype=np.float32).tobytes()
    tensors = [tensor("a", [4, 2]), tensor("b", [8, 5], offset=32)]
    header = parse(tmp_path / "m.gguf", gguf([ARCH], tensors, data=data))
    start = header.tensors["a"].offset
    assert start % 32 == 0
    assert header.tensors["a"].shape == (2, 4)
    assert (header.tensors["b"].offset, header.tensors["b"].size_bytes) == (start + 32, 160)


ONE = [tensor("t", [32])]
DAMAGED = {
    "zip": (b"PK\x03\x04" + b"\0" * 40, "zip archive"),
    "web page": (b"<!DOCTYPE html><html></html>", "a web page"),
    "old ggml": (b"tjgg" + b"\0" * 40, "pre-GGUF"),
    "other magic": (b"what is this, then? no model", "not a GGUF file"),
    "short": (b"GGUF\x03\0\0\0", "too few"),
    "many keys": (gguf([], num_keys=HUGE), "metadata keys are claimed"),
    "many tensors": (gguf([], num_tensors=HUGE), "tensors are claimed"),
    "more keys than bytes": (gguf([], num_keys=60000), "needs 780000 bytes"),
    "more tensors than bytes": (gguf([], num_tensors=60000), "needs 1440000 bytes"),
    "long key": (gguf([struct.pack("<Q", 1 << 60)]), "claims"),
    "key past the end": (gguf([struct.pack("<Q", 60000)]), "60000 bytes and"),
    "key not UTF-8": (gguf([key(b"\xff\xfe", 0, b"\0")]), "not UTF-8"),
    "key twice": (gguf([ARCH, ARCH]), "'general.architecture' appears twice"),
    "long text": (gguf([key("k", 8, struct.pack("<Q", HUGE))]), "claims"),
    "unknown value": (gguf([key("k", 99, b"\0" * 8)]), "unknown value type 99"),
    "bool of two": (gguf([key("k", 7, b"\x02")]), "bool with value 2"),
    "nested array": (gguf([key("k", 9, struct.pack("<IQ", 9, 1))]), "nested arrays"),
    "array of unknown": (gguf([key("k", 9, struct.pack("<IQ", 77, 1))]), "unknown type 77"),
    "huge array": (gguf([key("k", 9, struct.pack("<IQ", 4, HUGE))]), "array elements"),
    "array past the end": (gguf([key("k", 9, struct.pack("<IQ", 4, 1 << 20))]), "are left"),
    "huge strings": (gguf([key("k", 9, struct.pack("<IQ", 8, HUGE))]), "array elements"),
    "strings past the end": (
        gguf([key("k", 9, struct.pack("<IQQ", 8, 2, 1 << 50))]),
        "run past the end",
    ),
    "string length wraps": (
        gguf([key("k", 9, struct.pack("<IQQ", 8, 2, (1 << 64) - 1))]),
        "run past the end",
    ),
    "long tensor name": (gguf([], [tensor("x" * 65, [32])]), "at most 64"),
    "tensor name not UTF-8": (gguf([], [tensor(b"\xff", [32])]), "not UTF-8"),
    "no dimensions": (gguf([], [tensor("t", [])]), "has 0 dimensions"),
    "nine dimensions": (gguf([], [tensor("t", [1] * 9)]), "has 9 dimensions"),
    "zero rows": (gguf([], [tensor("t", [32, 0])]), "impossible dimensions"),
    "overflowing rows": (gguf([], [tensor("t", [32, 1 << 63])]), "impossible dimensions"),
    "overflowing product": (gguf([], [tensor("t", [1 << 40, 1 << 40])]), "past the end"),
    "tensor past the end": (gguf([], [tensor("t", [32, 4096])]), "past the end"),
    "offset past the end": (gguf([], [tensor("t", [32], offset=1 << 62)]), "past the end"),
    "misaligned": (gguf([], [tensor("t", [32], offset=4)]), "not aligned to 32"),
    "half a block": (gguf([], [tensor("t", [33], kind=8)]), "not a multiple of 32"),
    "unknown tensor type": (gguf([], [tensor("t", [32], kind=1234)]), "unknown type number 1234"),
    "tensor twice": (gguf([], ONE + ONE), "'t' appears twice"),
    "overlap": (gguf([], [tensor("a", [32]), tensor("b", [32], offset=96)]), "overlap"),
    "alignment of 48": (
        gguf([key("general.alignment", 4, struct.pack("<I", 48))], ONE),
        "general.alignment is 48",
    ),
    "alignment of 0": (
        gguf([key("general.alignment", 4, struct.pack("<I", 0))], ONE),
        "general.alignment is 0",
    ),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_damage_is_named_without_allocating(tmp_path: Path, case: str) -> None:
    data, message = DAMAGED[case]
    tracemalloc.start()
    try:
        with pytest.raises(ModelFileError, match=message) as caught:
            parse(tmp_path / "m.gguf", data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert not isinstance(caught.value, UnsupportedModelError)
    assert str(tmp_path / "m.gguf") in str(caught.value)
    assert "\n" not in str(caught.value)
    assert peak < 4 << 20


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (gguf(version=1), "GGUF version 1"),
        (gguf(version=4), "GGUF version 4"),
        (gguf(version=3 << 24), "big-endian"),
    ],
    ids=["version 1", "version 4", "big endian"],
)
def test_what_is_sound_but_not_covered(tmp_path: Path, data: bytes, message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        parse(tmp_path / "m.gguf", data)


@pytest.mark.parametrize("seed", range(20))
def test_truncated_at_a_random_place(tmp_path: Path, seed: int) -> None:
    whole = gguf(
        [ARCH, key("words", 9, strings([f"word{i}" for i in range(50)])),
         key("scores", 9, numbers(6, "f", range(50)))],
        [tensor("a", [32, 4]), tensor("b", [32], kind=8, offset=512)],
        data=b"\0" * 546,
    )  # fmt: skip
    parse(tmp_path / "whole.gguf", whole)
    cut = int(np.random.default_rng(seed).integers(1, len(whole)))
    with pytest.raises(ModelFileError, match=r"download it again|not a GGUF file"):
        parse(tmp_path / "cut.gguf", whole[:cut])


def test_a_large_vocabulary_opens_in_a_moment(tmp_path: Path) -> None:
    count = 150_000
    words = [f"word{i}" for i in range(count)]
    keys = [
        ARCH,
        key("tokenizer.ggml.tokens", 9, strings(words)),
        key("tokenizer.ggml.merges", 9, strings([f"wo {word}" for word in words])),
        key("tokenizer.ggml.token_type", 9, numbers(5, "i", [1] * count)),
    ]
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf(keys))
    times = []
    for _ in range(3):
        begin = time.perf_counter()
        with FileSource(path) as source:
            header = read_header(source)
            times.append(time.perf_counter() - begin)
            tokens = header.metadata["tokenizer.ggml.tokens"]
            assert isinstance(tokens, StringArray)
            assert tokens[count - 1] == f"word{count - 1}"
    assert min(times) < 0.5
