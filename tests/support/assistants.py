"""Random assistants of Gemma 4, as llama.cpp's converter writes them, and the models they read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tests.support.heads import FAINT
from tests.support.random_models import MODELS, Breakage, Recipe, parts, write
from tests.support.random_models.gemma import sandwich
from tests.support.random_models.recipe import VOCABULARY_SIZE, Array

MODEL_WIDTH = 256
NARROW = 224
"""Width of the assistants' own streams."""
WINDOW = 32


def _faint(values: Array) -> Array:
    return values * np.float32(FAINT / 4)


def _ones(values: Array) -> Array:
    return np.ones_like(values)


def _first_half(values: Array) -> Array:
    """[identity, 0]: of an embedding the numbers that fit."""
    return np.eye(*values.shape, dtype=np.float32)


_FAINT_LAYERS = {
    "post_attention_norm.weight": _faint,
    "post_ffw_norm.weight": _faint,
    "post_norm.weight": _faint,
    "layer_output_scale.weight": _ones,
    "output_norm.weight": _ones,
}
AGREEING = Breakage(
    "assistant and model agree", edits=_FAINT_LAYERS | {"nextn.pre_projection.weight": _first_half}
)
"""A token's embedding decides what comes next, of a model as of its assistant."""


def assistant_recipe(
    kv_heads: list[int] | None = None, *, windowed: tuple[bool, ...] = (True, True, False)
) -> Recipe:
    """Of Gemma 4's assistants: four layers, 256 to 1024 wide, half as wide as the model or less;
    the last layer sees all. Here three, for the random models.
    """
    layers = len(windowed)
    recipe = Recipe("gemma4-assistant", layers, 4, kv_heads or 1, 128, 256, NARROW)
    recipe.rope_base, recipe.vocabulary = 1000000.0, "llama"
    recipe.keys = {
        "embedding_length_out": MODEL_WIDTH,
        "nextn_predict_layers": layers,
        "attention.sliding_window": WINDOW,
        "attention.sliding_window_pattern": list(windowed),
        "attention.shared_kv_layers": layers,
        "attention.key_length_swa": 64,
        "attention.value_length_swa": 64,
        "rope.dimension_count_swa": 64,
        "rope.freq_base_swa": 10000.0,
        "embedding_length_per_layer_input": 0,
    }
    recipe.given("rope_freqs.weight", [1.0] * 16 + [1e30] * 48)
    recipe.matrix("nextn.pre_projection", NARROW, 2 * MODEL_WIDTH)
    recipe.matrix("nextn.post_projection", MODEL_WIDTH, NARROW)
    for layer, block in enumerate(recipe.blocks()):
        width = 64 if windowed[layer] else 128
        recipe.matrix(f"{block}attn_q", recipe.heads * width, NARROW)
        recipe.norm(f"{block}attn_q_norm", width, mean=(1.3 / width**0.5) ** 0.5)
        recipe.matrix(f"{block}attn_output", NARROW, recipe.heads * width)
        sandwich(recipe, block, 256)
        recipe.given(f"{block}layer_output_scale.weight", [0.8 + 0.05 * layer])
    parts.ends(recipe, tied=0.3)
    return recipe


def write_assistant(
    path: Path, recipe: Recipe | None = None, *, agreeing_with: Recipe | None = None, **more: Any
) -> Path:
    """One, that agrees with a model where that is given."""
    recipe = recipe or assistant_recipe()
    if agreeing_with is not None:
        written = dict(agreeing_with.arrays(breakage=AGREEING))["output.weight"]
        del recipe.tensors["token_embd.weight"]
        recipe.given("token_embd.weight", written[:, :NARROW])
        more["breakage"] = AGREEING
    return write(recipe, path, **more)


def agreeing_model(name: str = "gemma4") -> Recipe:
    """A model with an output head of its own, or the likeliest next token were the last again; to
    be written with `AGREEING`.
    """
    recipe = MODELS[name]()
    recipe.matrix("output", VOCABULARY_SIZE, recipe.dim, gain=3.0)
    return recipe
