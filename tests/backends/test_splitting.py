"""Models in two files, whose first layers are a model of their own on the same pages."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import edgespec
from edgespec.backends.base import Target
from edgespec.backends.reference import ReferenceTarget
from edgespec.errors import ModelFileError, OptionError
from edgespec.models.gguf.file_source import FileSource
from edgespec.models.gguf.header import read_header
from edgespec.models.gguf.splitting import split_model
from edgespec.models.open_model import open_model
from tests.support.command_line import edgespec as run
from tests.support.gguf_models import write_gguf
from tests.support.targets import PLAN, cosines, decode, missing, tokens

WHY = missing("llamacpp")
installed = pytest.mark.skipif(bool(WHY), reason=WHY)
LAYERS, EXIT = 4, 2
FOREIGN = replace(PLAN, backend="llamacpp")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("split") / "whole.gguf"
    return write_gguf(path, layers=LAYERS, type="Q8_0", dim=64, ffn=128, vocab=300)


@pytest.fixture(scope="module")
def parts(whole: Path) -> tuple[Path, Path]:
    return split_model(whole, EXIT, whole.with_name("parts"))


def open_parts(path: Path, layers: int | None = None) -> Target:
    from edgespec.backends.llamacpp.target import LlamaTarget

    with open_model(path, any_engine=True) as file:
        return LlamaTarget(file, FOREIGN, mapped=True, layers=layers)


def test_every_tensor_is_in_one_part(whole: Path, parts: tuple[Path, Path]) -> None:
    found: dict[str, bytes] = {}
    for number, path in enumerate(parts):
        with FileSource(path) as source:
            header = read_header(source)
            assert header.metadata["split.no"] == number
            for name, info in header.tensors.items():
                assert (".2." in name or ".3." in name) == (number == 1)
                assert name not in found
                found[name] = source.read(info.offset, info.size_bytes).tobytes()
    with open_model(whole) as file:
        assert found.keys() == file.tensors.keys()
        for name, info in file.tensors.items():
            assert found[name] == file.rows(name).tobytes(), info
    assert not list(whole.parent.glob("*.part"))


@installed
def test_both_parts_are_the_whole(whole: Path, parts: tuple[Path, Path]) -> None:
    ids = tokens(12)
    with open_parts(whole) as one, open_parts(parts[0]) as both:
        np.testing.assert_array_equal(decode(one, ids), decode(both, ids))
    plans = [edgespec.plan(path, backend="llamacpp", threads=1) for path in (whole, parts[0])]
    assert plans[0].footprint["weights"] == plans[1].footprint["weights"]


@installed
def test_the_first_part_is_a_model_of_the_first_layers(
    whole: Path, parts: tuple[Path, Path]
) -> None:
    ids = tokens(12)
    with open_model(whole) as file:
        file.spec = file.spec.first_layers(EXIT)
        with ReferenceTarget(file, replace(PLAN, backend="reference")) as oracle:
            expected = decode(oracle, ids)
    with open_parts(parts[0], layers=EXIT) as first:
        assert first.spec.num_layers == EXIT
        assert cosines(decode(first, ids), expected).min() > 0.999


@installed
@pytest.mark.skipif(sys.platform != "linux", reason="pages are counted in /proc/self/smaps")
def test_pages_are_the_whole_models_own(tmp_path: Path) -> None:
    large = write_gguf(tmp_path / "large.gguf", layers=2, type="Q8_0", dim=256, ffn=1024)
    first, _ = split_model(large, 1, tmp_path / "large")
    with open_parts(first) as target:
        decode(target, tokens(3))
        assert shared_bytes(first) == 0
        with open_parts(first, layers=1) as drafter:
            decode(drafter, tokens(3))
            with FileSource(first) as source:
                layer = sum(
                    info.size_bytes
                    for name, info in read_header(source).tensors.items()
                    if name.startswith("blk.")
                )
            # Counted in both maps; pages at the ends may hold something else too.
            assert shared_bytes(first) >= 2 * 0.95 * layer > 1 << 20


def shared_bytes(path: Path) -> int:
    """Resident pages of a file that are mapped more than once."""
    total, ours = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, *rest = line.split()
        if not name.endswith(":"):
            ours = rest[-1:] == [str(path)]
        elif ours and name.startswith("Shared_"):
            total += int(rest[0]) * 1024
    return total


@pytest.mark.parametrize("layer", [-1, 0, LAYERS, 99])
def test_layers_that_are_not_there(whole: Path, layer: int, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="has 4 layers; choose 1 to 3"):
        split_model(whole, layer, tmp_path / "x")
    assert not list(tmp_path.iterdir())


def test_parts_are_not_split_again(parts: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="a part of a model already"):
        split_model(parts[0], 1, tmp_path / "x")


def test_a_folder_that_cannot_be_written(whole: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="cannot write .*check folder and disk"):
        split_model(whole, EXIT, tmp_path / "absent" / "x")


def test_a_part_alone_is_refused(parts: tuple[Path, Path], tmp_path: Path) -> None:
    alone = tmp_path / parts[0].name
    alone.write_bytes(parts[0].read_bytes())
    with pytest.raises(ModelFileError, match=f"part 2 of 2 is missing, .*{parts[1].name}"):
        open_model(alone, any_engine=True)
    with open_model(parts[1], any_engine=True) as both:
        assert both.path == parts[0]


def test_the_command(whole: Path, tmp_path: Path) -> None:
    found = run("prepare", str(whole), str(tmp_path / "out"), "--exit-layer", "1")
    assert found.code == 0
    assert found.out.count("-of-00002.gguf") == len(list(tmp_path.iterdir())) == 2
    assert run("prepare", str(whole)).code == 2
