"""Models in several files: read as one, or refused in a sentence that names the file."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import edgespec
from edgespec.errors import ModelFileError
from edgespec.models.gguf.parts import open_gguf
from edgespec.models.open_model import open_model
from tests.support.gguf_models import CHATML, write_gguf

OPTIONS: dict[str, Any] = {"layers": 2, "template": CHATML}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: Any) -> Path:
    return write_gguf(tmp_path_factory.mktemp("whole") / "m.gguf", **OPTIONS)


@pytest.fixture
def parts(tmp_path: Path) -> list[Path]:
    first = write_gguf(tmp_path / "m.gguf", part_tensors=8, **OPTIONS)
    found = sorted(first.parent.glob("m-*.gguf"))
    assert [path.name for path in found] == [f"m-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    return found


def test_any_part_stands_for_all(whole: Path, parts: list[Path]) -> None:
    with open_model(whole) as one:
        for path in parts:
            with open_model(path) as all_parts:
                assert all_parts.path == parts[0]
                assert all_parts.tensors.keys() == one.tensors.keys()
                for name in one.tensors:
                    np.testing.assert_array_equal(all_parts.rows(name), one.rows(name))
                assert all_parts.size_bytes == sum(part.stat().st_size for part in parts)
                assert all_parts.spec == one.spec
                assert all_parts.tokenizer.encode("the cat") == one.tokenizer.encode("the cat")
                assert all_parts.spec.refusal == ""


def test_the_text_is_that_of_the_whole(whole: Path, parts: list[Path]) -> None:
    options = {"max_tokens": 12, "seed": 3, "ignore_eos": True}
    replies = []
    for path in (whole, parts[1]):
        with edgespec.load(path, threads=1, backend="native") as engine:
            replies.append(engine.generate("hello", **options).token_ids)
    assert replies[0] == replies[1]


def test_every_part_counts_in_the_fingerprint(parts: list[Path]) -> None:
    def fingerprint() -> bytes:
        with open_model(parts[0]) as model:
            return model.content_fingerprint()

    before = fingerprint()
    assert fingerprint() == before
    for path in parts:
        data = bytearray(path.read_bytes())
        data[-5] ^= 1  # in the last row of the last tensor
        path.write_bytes(data)
        assert fingerprint() != before
        before = fingerprint()


def refused(path: Path) -> str:
    with pytest.raises(ModelFileError) as caught:
        open_model(path)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_parts_that_are_missing(parts: list[Path]) -> None:
    for path in (parts[1], parts[2]):
        kept = path.read_bytes()
        path.unlink()
        assert f"is missing, {path}; download it" in refused(parts[0])
        path.write_bytes(kept)
    parts[0].unlink()
    assert f"part 1 of 3 is missing, {parts[0]}" in refused(parts[2])


@pytest.mark.parametrize("name", ["other.gguf", "m-00002-of-00003.gguf", "m-00001-of-00004.gguf"])
def test_names_that_say_something_else(parts: list[Path], tmp_path: Path, name: str) -> None:
    folder = tmp_path / "renamed"
    folder.mkdir()
    shutil.copy(parts[0], folder / name)
    message = refused(folder / name)
    assert "part 1 of 3, and is not called ...-00001-of-00003.gguf" in message


def test_parts_of_other_models(parts: list[Path], tmp_path: Path) -> None:
    kept = parts[1].read_bytes()
    shutil.copy(parts[2], parts[1])
    assert "m-00002-of-00003.gguf says that it is part 3 of 3" in refused(parts[0])
    larger = write_gguf(tmp_path / "larger.gguf", part_tensors=12, **(OPTIONS | {"layers": 3}))
    shutil.copy(larger.with_name("larger-00002-of-00003.gguf"), parts[1])
    assert "of a model of 30 tensors, and it should be part 2 of 3 of 21" in refused(parts[0])
    parts[1].write_bytes(kept.replace(b"blk.", b"blx."))
    assert "is missing" in refused(parts[0])  # a tensor of the model's


def test_a_tensor_that_is_there_twice(parts: list[Path]) -> None:
    with open_model(parts[0]) as model:
        names = list(model.tensors)
    one, other = next((a, b) for a in names[:8] for b in names[8:16] if len(a) == len(b))
    parts[1].write_bytes(parts[1].read_bytes().replace(other.encode(), one.encode()))
    assert f"tensor {one!r} is in two parts, the second m-00002" in refused(parts[0])


def test_too_many_parts(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m-00001-of-60000.gguf", metadata={"split.count": 60000})
    assert "split.count is 60000 (at most 1024" in refused(path)
    path = write_gguf(tmp_path / "n.gguf", metadata={"split.count": "three"})
    assert "split.count is 'three'" in refused(path)


def test_a_single_part_is_a_file(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", metadata={"split.count": 1, "split.no": 0})
    with open_model(path) as model:
        assert model.path == path


def test_closing_closes_every_part(parts: list[Path]) -> None:
    source, header = open_gguf(parts[0])
    last = max(header.tensors.values(), key=lambda info: info.offset)
    assert len(source.read(last.offset, 4)) == 4
    source.close()
    with pytest.raises(ModelFileError, match="00003.gguf: it was closed"):
        source.read(last.offset, 4)


@settings(
    max_examples=60, deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)  # fmt: skip
@given(
    flips=st.lists(
        st.tuples(st.integers(1, 2), st.floats(0, 1, exclude_max=True), st.integers(1, 255)),
        min_size=1,
        max_size=4,
    ),
    cut=st.one_of(st.none(), st.floats(0, 1, exclude_max=True)),
)
def test_damaged_parts_are_refused_or_read(
    parts: list[Path], flips: list[tuple[int, float, int]], cut: float | None
) -> None:
    kept = [path.read_bytes() for path in parts]
    damaged = [bytearray(data) for data in kept]
    for number, place, mask in flips:
        damaged[number][int(place * 800)] ^= mask  # the header
    if cut is not None:
        del damaged[1][int(cut * len(damaged[1])) :]
    try:
        for path, data in zip(parts, damaged, strict=True):
            path.write_bytes(data)
        try:
            with open_model(parts[0]) as model:
                for name in model.tensors:
                    model.rows(name)
        except ModelFileError as error:
            assert "\n" not in str(error)
        else:
            assert cut is None
    finally:
        for path, data in zip(parts, kept, strict=True):
            path.write_bytes(data)
