"""Small random models of every architecture, their hyper-parameters scaled down from real ones.

`MODELS` names them; `write` writes one. Every model comes with breakages: changes of the file that
do what a wrong engine would do, each of which changes llama.cpp's logits by far more than rounding
does (`tests/parity/test_peer_random_models.py`).
"""

from __future__ import annotations

from collections.abc import Callable

from tests.support.random_models import (
    deepseek2,
    dense,
    gemma,
    gemma3n,
    hybrid,
    moe,
)
from tests.support.random_models.edits import all_breakages
from tests.support.random_models.recipe import Breakage, Recipe, text, write

__all__ = ["MODELS", "Breakage", "Recipe", "all_breakages", "text", "write"]

MODELS: dict[str, Callable[[], Recipe]] = {
    "llama": dense.llama,
    "qwen2": dense.qwen2,
    "qwen3": dense.qwen3,
    "qwen3moe": moe.qwen3moe,
    "gpt-oss": moe.gpt_oss,
    "gemma3": gemma.gemma3,
    "qwen35": hybrid.qwen35,
    "qwen35-wide": hybrid.qwen35_wide,
    "qwen35moe": hybrid.qwen35moe,
    "gemma4": gemma.gemma4,
    "gemma4-moe": gemma.gemma4_moe,
    "lfm2": hybrid.lfm2,
    "lfm2moe": hybrid.lfm2moe,
    "granite": dense.granite,
    "granitehybrid": hybrid.granitehybrid,
    "granitehybrid-moe": hybrid.granitehybrid_moe,
    "phi3": dense.phi3,
    "smollm3": dense.smollm3,
    "mistral3": dense.mistral3,
    "ministral3": dense.ministral3,
    "gemma2": gemma.gemma2,
    "gemma3n": gemma3n.gemma3n,
    "olmo2": dense.olmo2,
    "llama4": moe.llama4,
    "glm4moe": moe.glm4moe,
    "qwen2moe": moe.qwen2moe,
    "deepseek2": deepseek2.deepseek2,
    "deepseek2-joined": deepseek2.deepseek2_joined,
    "deepseek2-ranked": deepseek2.deepseek2_ranked,
}
"""Recipes by name, in the order of how many people run them."""
