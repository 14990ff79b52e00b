"""Files of draft heads: what is read, and what is refused in a sentence."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgespec.errors import EdgeSpecError, ModelFileError, OptionError, UnsupportedModelError
from edgespec.models.draft_heads import HeadFile, is_head, open_head, own_head
from edgespec.models.open_model import open_model
from edgespec.models.spec import ModelSpec
from tests.support.heads import (
    eagle3_keys,
    eagle3_tensors,
    write_checkpoint,
    write_eagle3,
    write_model,
)
from tests.support.random_models import MODELS, write
from tests.support.random_models.recipe import Breakage

needs_safetensors = pytest.mark.skipif(
    find_spec("safetensors") is None, reason="safetensors is not installed"
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model("llama", tmp_path_factory.mktemp("model") / "model.gguf")


@pytest.fixture(scope="module")
def spec(model: Path) -> ModelSpec:
    with open_model(model) as file:
        return file.spec


def opened(path: Path, spec: ModelSpec) -> HeadFile:
    head = open_head(path, spec)
    head.close()
    return head


@pytest.mark.parametrize("name", ["qwen35", "qwen35moe", "glm4moe"])
def test_a_models_own_head_shares_what_it_lacks(name: str, tmp_path: Path) -> None:
    with open_model(write_model(name, tmp_path / "model.gguf")) as file:
        head = own_head(file)
        assert head is not None
        assert (head.spec.embedding, head.spec.head) == ("", "")
        assert set(head.tensors) <= set(file.spec.unused)
        assert head.spec.head_input is not None
        assert head.spec.head_input.taps == (file.spec.num_layers,)
        assert "--drafters mtp" in file.spec.note


def test_a_model_without_one_has_none(model: Path) -> None:
    with open_model(model) as file:
        assert own_head(file) is None


def test_a_block_that_is_not_whole_is_left_alone(tmp_path: Path) -> None:
    recipe = MODELS["qwen35"]()
    del recipe.tensors["blk.8.nextn.enorm.weight"]
    with open_model(write(recipe, tmp_path / "model.gguf")) as file:
        assert own_head(file) is None
        assert "is not used" in file.spec.note


def test_a_head_is_no_model(model: Path, tmp_path: Path) -> None:
    tensors = eagle3_tensors(model)
    path = write_eagle3(tmp_path / "head.gguf", tensors, eagle3_keys(tensors, layers=4))
    assert is_head(path)
    assert not is_head(model)
    with pytest.raises(UnsupportedModelError, match="--draft-model"):
        open_model(path)


@needs_safetensors
def test_a_published_checkpoint_is_the_same_head(
    model: Path, spec: ModelSpec, tmp_path: Path
) -> None:
    """But for how rotated rows lie, which is undone here."""
    tensors = eagle3_tensors(model)
    keys = eagle3_keys(tensors, layers=4)
    folder = write_checkpoint(tmp_path / "published", tensors, keys)
    assert is_head(folder)
    with (
        open_head(folder, spec) as theirs,
        open_head(write_eagle3(tmp_path / "head.gguf", tensors, keys), spec) as ours,
    ):
        assert theirs.spec.head_input == ours.spec.head_input
        assert set(theirs.tensors) == set(ours.tensors)
        ids = theirs.token_ids(spec.vocab_size), ours.token_ids(spec.vocab_size)
        assert ids[0] is not None
        np.testing.assert_array_equal(*ids)
        for name in set(ours.tensors) - {"d2t"}:
            found = theirs.matrix_f32(name)
            if name in ("blk.0.attn_q.weight", "blk.0.attn_k.weight"):
                halves = found.reshape(-1, 2, 32, found.shape[1])
                found = halves.swapaxes(1, 2).reshape(found.shape)
            np.testing.assert_array_equal(found, ours.matrix_f32(name))


@needs_safetensors
def test_llamas_stretched_rotation_is_read(model: Path, spec: ModelSpec, tmp_path: Path) -> None:
    tensors = eagle3_tensors(model)
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    keys = eagle3_keys(tensors, layers=4)
    folder = write_checkpoint(tmp_path / "head", tensors, keys, rope_scaling=scaling)
    with open_head(folder, spec) as head:
        factors = head.matrix_f32("rope_freqs.weight")
    assert factors.shape == (32,)
    assert (factors[0], factors[-1]) == (1.0, 8.0)
    assert (np.diff(factors) >= 0).all()


WRONG: dict[str, tuple[type[EdgeSpecError], str, dict[str, Any], dict[str, Any]]] = {
    "another width": (OptionError, "streams 64 wide", {"target_hidden_size": 64}, {}),
    "layers there are not": (OptionError, "reads layer 9", {"target_layers": [1, 2, 9]}, {}),
    "two taps": (ModelFileError, "three layers", {"target_layers": [1, 2]}, {}),
    "no taps": (ModelFileError, "target_layers", {"target_layers": None}, {}),
    "two layers": (ModelFileError, "EAGLE-3 has one", {"block_count": 2}, {}),
    "no epsilon": (
        ModelFileError, "epsilon", {"attention.layer_norm_rms_epsilon": None}, {},
    ),
    "a narrow fusion": (
        ModelFileError, "fc.weight", {}, {"fc.weight": np.zeros((256, 512), np.float32)},
    ),
    "no fusion": (ModelFileError, "fc.weight", {}, {"fc.weight": None}),
    "tokens of nobody": (ModelFileError, "output.weight", {}, {"output.weight": None}),
    "more tokens": (OptionError, "lists 9000", {}, {"d2t": np.arange(9000)}),
    "an unnamed half": (OptionError, "without saying which", {}, {"d2t": None}),
    "few tokens known": (
        OptionError, "knows 100 tokens", {},
        {"token_embd.weight": np.zeros((100, 256), np.float32)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_head_that_does_not_fit_is_refused(
    name: str, model: Path, spec: ModelSpec, tmp_path: Path
) -> None:
    error, said, keys, changed = WRONG[name]
    tensors = {k: v for k, v in (eagle3_tensors(model) | changed).items() if v is not None}
    full = eagle3_keys(eagle3_tensors(model), layers=4) | keys
    path = write_eagle3(tmp_path / "head.gguf", tensors, full)
    with pytest.raises(error, match=said):
        opened(path, spec)


@pytest.mark.parametrize("ids", [[5, 5], [-1, 3], [2, 512]])
def test_ids_that_there_cannot_be(
    ids: list[int], model: Path, spec: ModelSpec, tmp_path: Path
) -> None:
    tensors = eagle3_tensors(model, written=2) | {"d2t": np.array(ids, np.int64)}
    path = write_eagle3(tmp_path / "head.gguf", tensors, eagle3_keys(tensors, layers=4))
    with open_head(path, spec) as head, pytest.raises(ModelFileError, match="at most once"):
        head.token_ids(spec.vocab_size)


@needs_safetensors
@pytest.mark.parametrize(
    "damage",
    ["cut", "huge header", "no json", "overlap", "empty", "config", "deep config", "scaling"],
)
def test_a_damaged_checkpoint_is_refused(
    damage: str, model: Path, spec: ModelSpec, tmp_path: Path
) -> None:
    tensors = eagle3_tensors(model)
    folder = write_checkpoint(tmp_path / "head", tensors, eagle3_keys(tensors, layers=4))
    weights, config = folder / "model.safetensors", folder / "config.json"
    raw = weights.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    if damage == "cut":
        weights.write_bytes(raw[: len(raw) // 2])
    elif damage == "huge header":
        weights.write_bytes((1 << 62).to_bytes(8, "little") + raw[8:])
    elif damage == "no json":
        weights.write_bytes(raw[:8] + b"x" * length + raw[8 + length :])
    elif damage == "overlap":
        header["fc.weight"]["data_offsets"] = [0, 4]
        text = json.dumps(header).encode()
        weights.write_bytes(len(text).to_bytes(8, "little") + text + raw[8 + length :])
    elif damage == "empty":
        weights.write_bytes(b"")
    elif damage == "config":
        config.write_text("[]")
    elif damage == "deep config":
        config.write_text("[" * 100_000)
    else:
        said = json.loads(config.read_text()) | {"rope_scaling": {"rope_type": "llama3"}}
        config.write_text(json.dumps(said))
    with pytest.raises(ModelFileError):
        opened(folder, spec)


def test_a_missing_package_is_named(
    model: Path, spec: ModelSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"12345678")
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(UnsupportedModelError, match=r"edgespec\[safetensors\]"):
        opened(tmp_path, spec)


def test_breakages_are_as_they_are_named() -> None:
    """`AGREEING` edits what it means to."""
    from tests.support.heads import AGREEING

    assert isinstance(AGREEING, Breakage)
    names = MODELS["qwen35"]().tensors
    for end in ("nextn.eh_proj.weight", "nextn.enorm.weight", "nextn.shared_head_norm.weight"):
        assert end in AGREEING.edits
        assert any(name.endswith(end) for name in names)
