"""A model's first layers as a small model: its keys, shapes and types, most numbers left out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edgespec.models.gguf import few_layers
from edgespec.models.gguf.few_layers import write_first_layers
from edgespec.models.layers import Moe
from edgespec.models.open_model import open_model
from tests.support.gguf_models import write_gguf
from tests.support.random_models import MODELS, write

WHOLE = [name for name in MODELS if name not in ("gemma3n", "gemma4")]
"""Those whose layers share no embedding that is as wide as they are many."""


@pytest.mark.parametrize("name", WHOLE)
def test_it_is_the_model_with_fewer_layers(name: str, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write(MODELS[name](), path)
    with open_model(path) as file:
        count = file.spec.num_layers - 1
        write_first_layers(path, file.spec, count, tmp_path / "few.gguf")
        with open_model(tmp_path / "few.gguf") as few:
            assert few.spec.layers == file.spec.layers[:count]
            of_file = {"layers": few.spec.layers, "num_parameters": few.spec.num_parameters}
            of_file |= {"unused": few.spec.unused, "draft_head": None, "note": few.spec.note}
            assert few.spec == replace(file.spec, **of_file)
            kept = {name: (each.shape, each.type) for name, each in few.tensors.items()}
            assert (
                kept.items()
                <= {name: (each.shape, each.type) for name, each in file.tensors.items()}.items()
            )


def test_first_bytes_and_routers_are_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(few_layers, "_FIRST_BYTES", 512)
    path, out = tmp_path / "m.gguf", tmp_path / "few.gguf"
    write(MODELS["qwen3moe"](), path)
    with open_model(path) as file:
        write_first_layers(path, file.spec, 1, out)
        with open_model(out) as few:
            ffn = few.spec.layers[0].ffn
            assert isinstance(ffn, Moe)
            for name in few.tensors:
                found, whole = few.rows(name).ravel(), file.rows(name).ravel()
                copied = len(whole) if name == ffn.router.tensor else 512
                assert np.array_equal(found[:copied], whole[:copied])
                assert not found[copied:].any()


def test_a_model_in_several_files_becomes_one(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", layers=3, part_tensors=7)
    assert path.name != "m.gguf"
    with open_model(path) as file:
        write_first_layers(path, file.spec, 2, tmp_path / "few.gguf")
        with open_model(tmp_path / "few.gguf") as few:
            assert few.spec.layers == file.spec.layers[:2]
            name = "blk.1.ffn_up.weight"
            assert np.array_equal(few.rows(name), file.rows(name))
