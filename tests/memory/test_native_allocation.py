"""The exact items of a footprint are what the native backend really allocates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from edgespec.errors import OptionError
from edgespec.memory.plan.budget import Budget
from edgespec.memory.plan.planner import make_plan
from edgespec.memory.plan.settings import KV_TYPES
from edgespec.memory.plan.sizing import Sizing
from edgespec.models.open_model import open_model
from tests.support import random_models
from tests.support.gguf_models import write_gguf
from tests.support.machines import LAPTOP, READY, cores

MODELS: dict[str, dict[str, Any]] = {
    "llama f32": {},
    "tied q8_0, odd rows": {"type": "Q8_0", "tied": True, "vocab": 307, "ffn": 160},
    "qwen2 q4_0 with biases": {"arch": "qwen2", "type": "Q4_0", "ffn": 128},
    "qwen3 with head norms": {"arch": "qwen3", "type": "F16", "head_dim": 32},
    "narrow heads, rope factors": {"heads": 8, "kv_heads": 4, "rope_factors": True},
    "five bits, mixed": {"type": "Q5_0", "types": {"ffn_down.weight": "Q5_1"}},
    "four bits, mixed": {"type": "IQ4_NL", "types": {"ffn_down.weight": "Q4_1"}},
    "q5_k": {"type": "Q5_K", "dim": 256, "ffn": 256},
    "k-quants": {"type": "Q4_K", "dim": 256, "ffn": 256, "types": {"ffn_down.weight": "Q6_K"}},
    "few bits": {"type": "Q3_K", "dim": 256, "ffn": 256, "types": {"ffn_down.weight": "IQ2_XXS"}},
}


@pytest.mark.parametrize("changes", MODELS.values(), ids=MODELS.keys())
@pytest.mark.parametrize("nodes", [1, 5, 20])
@pytest.mark.parametrize("kv_type", KV_TYPES)
@pytest.mark.parametrize("sequences", [1, 4, 18])
def test_exact_items(
    changes: dict[str, Any], nodes: int, kv_type: str, sequences: int, tmp_path: Path
) -> None:
    if nodes < sequences:
        pytest.skip("every text needs a node")
    native = pytest.importorskip("edgespec.backends.native.target")
    path = write_gguf(tmp_path / "model.gguf", **({"context": 300} | changes))
    with open_model(path) as file:
        budget = Budget.parse("1GiB", LAPTOP)
        plan = make_plan(
            Sizing(file.spec, tuple(file.tensors.values()), READY),
            budget,
            cores(2),
            max_nodes=nodes,
            kv_type=kv_type,
            sequences=sequences,
        )
        with native.NativeTarget(file, plan) as target:
            for text in (target.own, *(target.open_sequence() for _ in range(sequences - 1))):
                text.state.reserve(0, plan.context_length)
            assert target.allocated_bytes() == plan.footprint.exact


EXACT = (
    "qwen3moe", "gpt-oss", "gemma3", "gemma4", "gemma4-moe", "granite", "phi3", "smollm3",
    "mistral3", "gemma2", "olmo2", "llama4", "glm4moe", "qwen2moe", "gemma3n", "deepseek2",
    "deepseek2-joined", "deepseek2-ranked",
)  # fmt: skip


@pytest.mark.parametrize("nodes", [1, 20])
@pytest.mark.parametrize("name", EXACT)
def test_exact_items_of_architectures(name: str, nodes: int, tmp_path: Path) -> None:
    native = pytest.importorskip("edgespec.backends.native.target")
    path = random_models.write(random_models.MODELS[name](), tmp_path / "model.gguf", type="Q8_0")
    with open_model(path) as file:
        sizing = Sizing(file.spec, tuple(file.tensors.values()), READY)
        plan = make_plan(sizing, Budget.parse("1GiB", LAPTOP), cores(2), max_nodes=nodes)
        with native.NativeTarget(file, plan) as target:
            target.own.state.reserve(0, plan.context_length)
            assert target.allocated_bytes() == plan.footprint.exact


def test_latent_rows_are_counted_once_and_stay_f16(tmp_path: Path) -> None:
    """A row of a latent vector and a rotated key for each position and layer."""
    recipe = random_models.MODELS["deepseek2"]()
    with open_model(random_models.write(recipe, tmp_path / "model.gguf")) as file:
        sizing = Sizing(file.spec, tuple(file.tensors.values()), READY)
        budget, width = Budget.parse("1GiB", LAPTOP), 128 + 32
        plan = make_plan(sizing, budget, cores(2), context=512)
        assert plan.footprint["KV cache"] == 2 * (recipe.layers * 256 * width * 2 + 64)
        assert plan.kv_type == "f16"
        with pytest.raises(OptionError, match="f16 only; use --kv-type f16"):
            make_plan(sizing, budget, cores(2), context=512, kv_type="int8")
