"""ONNX graphs made to take memory or time, or to read what lies elsewhere: refused soon."""

from __future__ import annotations

import json
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from edgespec.errors import ModelFileError
from edgespec.models.onnx.folder import open_onnx
from edgespec.models.onnx.graph_file import read_graph
from edgespec.models.onnx.protobuf import field, varint

MOST_TAKEN = 128 << 20
NODE = field(1, field(4, b"Add"))


def _shape(*dims: int | str) -> bytes:
    return b"".join(
        field(1, field(1, dim) if isinstance(dim, int) else field(2, dim.encode())) for dim in dims
    )


def _port(number: int, name: str, *dims: int | str) -> bytes:
    tensor = field(1, 1) + field(2, _shape(*dims))
    return field(number, field(1, name.encode()) + field(2, field(1, tensor)))


def _tensor(dims: bytes, *more: bytes, kind: int = 1) -> bytes:
    return field(5, field(1, dims) + field(2, kind) + field(8, b"weight") + b"".join(more))


def _external(location: str, offset: str = "0", length: str = "4") -> bytes:
    facts = {"location": location, "offset": offset, "length": length}
    entries = (field(1, key.encode()) + field(2, text.encode()) for key, text in facts.items())
    return b"".join(field(13, entry) for entry in entries) + field(14, 1)


DECODER = (
    NODE
    + _port(11, "input_ids", "batch", "tokens")
    + _port(11, "past_key_values.0.key", "batch", 2, "past", 8)
    + _port(12, "logits", "batch", "tokens", 4)
)
WEIGHT = _tensor(varint(4) + varint(4), field(9, bytes(64)))


def _write(folder: Path, graph: bytes) -> Path:
    path = folder / "model.onnx"
    path.write_bytes(field(7, graph))
    vocab = {letter: place for place, letter in enumerate("abcd")}
    tokenizer = {"model": {"type": "BPE", "vocab": vocab, "merges": []}}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return path


HOSTILE: dict[str, Callable[[], bytes]] = {
    "300,000 dimensions": lambda: DECODER + _tensor((b"\xff" * 8 + b"\x7f") * 300_000),
    "a size of thousands of digits": lambda: DECODER + _tensor((b"\xff" * 8 + b"\x7f") * 30),
    "a size of 2^90": lambda: DECODER + _tensor((b"\xff" * 4 + b"\x0f") * 3),
    "an input of 300,000 dimensions": lambda: DECODER + _port(11, "x", *([2] * 300_000)),
    "a million nodes": lambda: DECODER + NODE * 1_000_000,
    "a node of a million inputs": lambda: DECODER + field(1, field(1, b"x") * 1_000_000),
    "a million tensors": lambda: DECODER + _tensor(b"\x01") * 1_000_000,
    "a million properties": lambda: DECODER,
    "a name of 8 MB": lambda: DECODER + field(5, field(8, b"n" * (8 << 20))),
    "an offset of thousands of digits": lambda: (
        DECODER + _tensor(b"\x01", _external("w", "9" * 5000))
    ),
    "a length of 4000 digits": lambda: DECODER + _tensor(b"\x01", _external("w", "0", "9" * 4000)),
    "a negative offset": lambda: DECODER + _tensor(b"\x01", _external("w", "-8")),
    "branches in branches": lambda: _branches(40),
}


def _branches(depth: int) -> bytes:
    graph = NODE
    for _ in range(depth):
        graph = field(1, field(4, b"If") + field(5, field(1, b"b") + field(6, graph)))
    return DECODER + graph


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_graph_is_refused_soon(case: str, tmp_path: Path) -> None:
    path = _write(tmp_path, HOSTILE[case]())
    (tmp_path / "w").write_bytes(bytes(64))
    if case == "a million properties":
        entry = field(14, field(1, b"k") + field(2, b"v"))
        path.write_bytes(entry * 1_000_000 + path.read_bytes())
    begin = time.monotonic()
    tracemalloc.start()
    try:
        with pytest.raises(ModelFileError) as caught:
            read_graph(path)
        assert tracemalloc.get_traced_memory()[1] < MOST_TAKEN
    finally:
        tracemalloc.stop()
    assert time.monotonic() - begin < 20
    assert len(str(caught.value)) < 1000


def test_a_graph_without_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="no weights"):
        open_onnx(_write(tmp_path, DECODER))


@pytest.mark.parametrize("rows", [-1, 0, 1 << 40])
def test_a_vocabulary_of_an_impossible_size_is_refused(rows: int, tmp_path: Path) -> None:
    graph = DECODER.replace(_port(12, "logits", "batch", "tokens", 4), b"")
    graph += _port(12, "logits", "batch", "tokens", rows % (1 << 64)) + WEIGHT
    with pytest.raises(ModelFileError):
        open_onnx(_write(tmp_path, graph))


def test_the_same_graph_with_weights_is_read(tmp_path: Path) -> None:
    file = open_onnx(_write(tmp_path, DECODER + WEIGHT))
    try:
        assert (file.spec.vocab_size, len(file.spec.layers)) == (4, 1)
    finally:
        file.close()


PLACES = [
    "../secret",
    "/etc/passwd",
    "a/../../secret",
    "..\\secret",
    "C:\\secret",
    "link",
    "deep/w",
]


@pytest.mark.parametrize("location", ["w\0.bin", "w" * 5000])
def test_weights_in_a_file_that_cannot_be_are_refused(location: str, tmp_path: Path) -> None:
    path = _write(tmp_path, DECODER + _tensor(b"\x01", _external(location)))
    with pytest.raises(ModelFileError, match="no name of a file"):
        read_graph(path)


@pytest.mark.parametrize("location", PLACES)
def test_weights_outside_the_folder_are_not_read(location: str, tmp_path: Path) -> None:
    """Named so, or by a link to a file or a folder."""
    (tmp_path / "secret").write_bytes(bytes(64))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "w").write_bytes(bytes(64))
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "link").symlink_to(tmp_path / "secret")
    (folder / "deep").symlink_to(tmp_path / "elsewhere")
    path = _write(folder, DECODER + _tensor(b"\x01", _external(location)))
    with pytest.raises(ModelFileError, match="outside"):
        read_graph(path)


def test_a_hubs_cache_of_links_is_read(tmp_path: Path) -> None:
    """There the graph and its data are links into one folder of contents."""
    contents, snapshot = tmp_path / "blobs", tmp_path / "snapshots"
    contents.mkdir()
    snapshot.mkdir()
    (contents / "w").write_bytes(bytes(64))
    _write(contents, DECODER + _tensor(b"\x01", _external("model.onnx_data")))
    (snapshot / "model.onnx").symlink_to(contents / "model.onnx")
    (snapshot / "model.onnx_data").symlink_to(contents / "w")
    assert read_graph(snapshot / "model.onnx").external
