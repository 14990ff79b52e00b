"""What a plan counts for recurrent layers is what the native backend allocates."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edgespec.backends.native.target import NativeTarget
from edgespec.backends.passes import TokenTree
from edgespec.memory.plan.budget import Budget
from edgespec.memory.plan.calibration import PART_KERNELS_BYTES, Runtime
from edgespec.memory.plan.plan import Plan
from edgespec.memory.plan.planner import make_plan
from edgespec.memory.plan.sizing import Sizing
from edgespec.memory.plan.state_layout import STATES_ITEM
from edgespec.models.open_model import open_model
from tests.support.machines import LAPTOP, READY, cores
from tests.support.random_models import MODELS, write


@pytest.mark.parametrize("sequences", [1, 3])
@pytest.mark.parametrize("nodes", [4, 20])
@pytest.mark.parametrize("name", ["qwen35", "lfm2", "granitehybrid"])
def test_exact_items(name: str, nodes: int, sequences: int, tmp_path: Path) -> None:
    """With as many states in use as were planned."""
    with open_model(write(MODELS[name](), tmp_path / "model.gguf")) as file:
        sizing = Sizing(file.spec, tuple(file.tensors.values()), READY)
        budget = Budget.parse("1GiB", LAPTOP)
        plan = make_plan(
            sizing, budget, cores(2), context=1024, max_nodes=nodes, sequences=sequences
        )
        assert plan.max_nodes == nodes
        with NativeTarget(file, plan) as target:
            others = [target.open_sequence() for _ in range(sequences - 1)]
            tokens = np.arange(1, 1024, dtype=np.int32) % 500
            for sequence in (target.own, *others):
                sequence.prefill(tokens[:-3])
                sequence.forward(TokenTree.chain(tokens[-3:]))
                sequence.commit([0, 1])
                sequence.forward(TokenTree.chain(tokens[-1:]))
            planned, held = plan.footprint.exact, target.allocated_bytes()
            assert held[STATES_ITEM] == planned[STATES_ITEM]
            assert held == planned


def test_few_states_are_kept_where_memory_is_short(tmp_path: Path) -> None:
    """As many as fit, no more than are planned in use, and the plan says what that costs."""
    recipe = MODELS["granitehybrid"]()
    recipe.context = 4096
    with open_model(write(recipe, tmp_path / "model.gguf")) as file:
        sizing = Sizing(file.spec, tuple(file.tensors.values()), READY)

        def planned(size: int) -> Plan:
            return make_plan(sizing, Budget.parse(size, LAPTOP), cores(2), context=4096)

        whole = planned(1 << 30)
        assert whole.checkpoints == 16
        assert any("at most 256 tokens are read again" in reason for reason in whole.reasons)
        states = whole.footprint[STATES_ITEM] // 17
        sizes = range(whole.planned_bytes, 0, -states)
        short = next(plan for size in sizes if (plan := planned(size)).checkpoints <= 12)
        assert short.checkpoints >= 8 and short.max_nodes == whole.max_nodes
        assert short.context_length == whole.context_length
        assert any("more than 256 tokens may be read again" in reason for reason in short.reasons)
        tokens = np.arange(1, 4090, dtype=np.int32) % 500
        with NativeTarget(file, short) as target:
            target.own.prefill(tokens)
            target.own.forward(TokenTree.chain(tokens[:1]))
            assert target.allocated_bytes()[STATES_ITEM] == short.footprint[STATES_ITEM]
            for length in (4080, 4000, 3900):
                assert length - target.own.rewindable(length) <= 256
            far = [target.own.rewindable(length) for length in range(300, 4000, 300)]
            assert len(set(far)) > 4 and far[0] in (0, 256)


@pytest.mark.parametrize(
    ("name", "parts"), [("llama", 0), ("qwen3moe", 1), ("lfm2", 1), ("qwen35moe", 2)]
)
def test_kernels_of_experts_and_states_are_counted(name: str, parts: int, tmp_path: Path) -> None:
    """Beside those that every model has."""
    runtime = Runtime(resident_bytes=24 << 20, kernels="cached")
    with open_model(write(MODELS[name](), tmp_path / "model.gguf")) as file:
        sizing = Sizing(file.spec, tuple(file.tensors.values()), runtime)
        plan = make_plan(sizing, Budget.parse("1GiB", LAPTOP), cores(2), context=256)
    assert plan.footprint["compiled kernels"] == (
        runtime.kernels_bytes() + parts * PART_KERNELS_BYTES
    )
