"""What plans of random models count exactly, beside what the native backend allocates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from edgespec.backends.native.target import NativeTarget
from edgespec.backends.passes import TokenTree
from edgespec.memory.plan.budget import Budget
from edgespec.memory.plan.planner import make_plan
from edgespec.memory.plan.sizing import Sizing
from edgespec.models.open_model import open_model
from tests.support.machines import LAPTOP, READY, cores
from tests.support.random_models.recipe import VOCABULARY_SIZE

NODES, CONTEXT = 20, 1024


def exact_items(path: Path, sequences: int) -> dict[str, Any]:
    """Bytes of each exact item as planned, and the most that was allocated in a pass.

    Sequences are filled one after the other; windows hold most while their prompt is read.
    """
    with open_model(path) as file:
        sizing = Sizing(file.spec, tuple(file.tensors.values()), READY)
        budget = Budget.parse("4GiB", LAPTOP)
        plan = make_plan(
            sizing, budget, cores(2), context=CONTEXT, max_nodes=NODES, sequences=sequences
        )
        most: dict[str, int] = {}
        with NativeTarget(file, plan) as target:
            forward = target._forward

            def watched(*arguments: Any, **options: Any) -> Any:
                found = forward(*arguments, **options)
                for name, size in target.allocated_bytes().items():
                    most[name] = max(size, most.get(name, 0))
                return found

            target._forward = watched  # type: ignore[method-assign]
            others = [target.open_sequence() for _ in range(sequences - 1)]
            tokens = np.arange(plan.context_length, dtype=np.int32) % VOCABULARY_SIZE
            for sequence in (target.own, *others):
                sequence.prefill(tokens[:-3])
                sequence.forward(TokenTree.chain(tokens[-3:]))
                sequence.commit([0, 1])
                sequence.forward(TokenTree.chain(tokens[-1:]))
        return {"planned": plan.footprint.exact, "allocated": most}
