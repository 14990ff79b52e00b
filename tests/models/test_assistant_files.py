"""Files of Gemma 4's assistants: what is read of them, and what is refused in a sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from edgespec.errors import EdgeSpecError, ModelFileError, OptionError, UnsupportedModelError
from edgespec.models.architectures.gemma4_assistant import describe_assistant
from edgespec.models.architectures.reader import Reader
from edgespec.models.draft_heads import is_head, open_head
from edgespec.models.open_model import open_model
from edgespec.models.spec import ModelSpec
from tests.support.assistants import assistant_recipe, write_assistant
from tests.support.heads import write_model
from tests.support.random_models import MODELS
from tests.support.recipe_files import ABSURD, header, spec_of


def described(model: ModelSpec, **changes: Any) -> ModelSpec:
    """What the header of an assistant becomes, with some keys or shapes of tensors replaced."""
    read = Reader(Path("random.gguf"), header(assistant_recipe(), **changes), is_head=True)
    return describe_assistant(read, model)


@pytest.fixture(scope="module")
def gemma() -> ModelSpec:
    return spec_of(MODELS["gemma4"]())


def test_it_reads_the_models_last_layers_of_either_kind(tmp_path: Path) -> None:
    path = write_assistant(tmp_path / "assistant.gguf")
    assert is_head(path)
    model = write_model("gemma4", tmp_path / "model.gguf")
    with open_model(model) as file, open_head(path, file.spec) as head:
        shared = [layer.mixer.shares for layer in head.spec.layers]  # type: ignore[union-attr]
        assert shared == [4, 4, 5]  # whose keys the last three layers share
        assert head.spec.borrows_keys
        assert head.spec.head_input is not None
        assert head.spec.head_input.taps == (file.spec.num_layers,)
    with pytest.raises(UnsupportedModelError, match="--draft-model"):
        open_model(path)


MISFITS: dict[str, tuple[type[EdgeSpecError], str, dict[str, Any], dict[str, Any]]] = {
    "another width": (OptionError, "states 512 wide", {"embedding_length_out": 512}, {}),
    "more heads of keys": (OptionError, "reads 2 heads", {"attention.head_count_kv": 2}, {}),
    "wider keys": (
        OptionError, "128 wide",
        {"attention.key_length_swa": 128, "attention.value_length_swa": 128}, {},
    ),
    "a longer window": (OptionError, "sees 64 positions", {"attention.sliding_window": 64}, {}),
    "a window of one": (OptionError, "sees 1 positions", {"attention.sliding_window": 1}, {}),
    "another vocabulary": (OptionError, "knows 100 tokens", {}, {"token_embd.weight": (100, 224)}),
    "no vocabulary": (ModelFileError, "token_embd.weight", {}, {"token_embd.weight": None}),
    "a flat vocabulary": (ModelFileError, "token_embd.weight", {}, {"token_embd.weight": (512,)}),
    "two scales": (ModelFileError, "output_scale", {}, {"blk.0.layer_output_scale.weight": (2,)}),
}  # fmt: skip


@pytest.mark.parametrize("name", MISFITS)
def test_what_does_not_fit_is_refused(name: str, gemma: ModelSpec) -> None:
    error, said, keys, shapes = MISFITS[name]
    with pytest.raises(error, match=said):
        described(gemma, keys=keys, shapes=shapes)


@pytest.mark.parametrize("name", ["llama", "llama4", "qwen35"])
def test_a_model_without_such_layers_lends_nothing(name: str) -> None:
    with pytest.raises(OptionError, match="cannot draft for"):
        described(spec_of(MODELS[name]()))


def test_damaged_headers_are_refused_in_a_sentence(gemma: ModelSpec) -> None:
    """Every tensor missing, or of another shape."""
    plain, own = described(gemma), assistant_recipe()
    for name, tensor in own.tensors.items():
        with pytest.raises((ModelFileError, OptionError)) as caught:
            described(gemma, shapes={name: (*tensor.shape[:-1], tensor.shape[-1] + 2)})
        assert_a_sentence(str(caught.value))
        try:
            assert described(gemma, shapes={name: None}) != plain, name
        except ModelFileError as error:
            assert_a_sentence(str(error))


def test_absurd_keys_are_refused_in_a_sentence(gemma: ModelSpec) -> None:
    """Whatever a key says, opening ends in a description or in one of three errors."""
    keys = [
        key.removeprefix("gemma4-assistant.")
        for key in header(assistant_recipe()).metadata
        if key.startswith("gemma4-assistant.")
    ]
    for key in keys:
        for value in ABSURD:
            try:
                described(gemma, keys={key: value})
            except (ModelFileError, UnsupportedModelError, OptionError) as error:
                assert_a_sentence(str(error))


def assert_a_sentence(message: str) -> None:
    assert "random.gguf" in message
    assert "\n" not in message
    assert len(message) < 500
