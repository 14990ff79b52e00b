"""Mixtures of experts on the native backend: types, and the same bits in any company."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from edgespec.backends.native.target import NativeTarget
from edgespec.backends.passes import TokenTree
from edgespec.models.layers import Moe
from tests.support.random_models import MODELS, write
from tests.support.targets import open_target
from tests.support.token_trees import path_to, token_trees

MIXTURES = ("qwen3moe", "gpt-oss", "gemma4-moe", "llama4", "glm4moe", "qwen2moe")
TYPES = ("F16", "Q8_0", "Q4_K", "MXFP4")
SEQUENCES = 3
_FOLDER = TemporaryDirectory(prefix="edgespec-mixtures-")


@cache
def path(model: str, kind: str) -> Path:
    file = Path(_FOLDER.name) / f"{model}-{kind}.gguf"
    experts = {"_exps.weight": kind, "_shexp.weight": kind}
    return write(MODELS[model](), file, type="Q8_0", types=experts)


@cache
def target(model: str, kind: str, threads: int = 1) -> NativeTarget:
    """One for many examples; each begins with empty sequences."""
    changes: dict[str, Any] = {"threads": threads, "sequences": SEQUENCES, "max_nodes": 60}
    found = open_target("native", path(model, kind), **changes)
    assert isinstance(found, NativeTarget)
    return found


def one_by_one(own: NativeTarget, tokens: list[int]) -> NDArray[np.float32]:
    """Logits of the last token, each in a pass of its own."""
    own.own.truncate(0)
    for token in tokens:
        logits = own.own.forward(TokenTree.chain([token])).logits
        own.own.commit([0])
    return logits[-1].copy()


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("model", MIXTURES)
@settings(max_examples=5)
@given(st.data())
def test_rows_are_those_of_plain_decoding(model: str, kind: str, data: st.DataObject) -> None:
    """Of trees of several sequences in one pass, computed by two threads."""
    trees = [data.draw(token_trees(18)) for _ in range(SEQUENCES)]
    together, alone = target(model, kind, 2), target(model, kind)
    sequences = [together.own, *(together.open_sequence() for _ in trees[1:])]
    together.own.truncate(0)
    logits = together.forward(list(zip(sequences, trees, strict=True))).logits.copy()
    for other in sequences[1:]:
        other.close()
    first = 0
    for tree in trees:
        for node in {0, len(tree) - 1, data.draw(st.integers(0, len(tree) - 1))}:
            tokens = [int(tree.tokens[place]) for place in path_to(tree, node)]
            np.testing.assert_array_equal(one_by_one(alone, tokens), logits[first + node])
        first += len(tree)


@pytest.mark.parametrize("model", MIXTURES)
def test_a_prompt_is_read_alike_in_one_piece(model: str) -> None:
    """More rows than a tile function takes go to one expert."""
    tokens = np.random.default_rng(0).integers(3, 400, 250).astype(np.int32)
    found = []
    for changes in ({"prefill_chunk": 250, "threads": 2}, {"prefill_chunk": 20}):
        with open_target("native", path(model, "Q8_0"), **changes) as own:
            own.own.prefill(tokens)
            found.append(own.own.forward(TokenTree.chain([5])).logits.copy())
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("model", MIXTURES)
def test_experts_that_a_pass_read(model: str) -> None:
    own = target(model, "Q8_0")
    parts = [layer.ffn for layer in own.spec.layers]
    one_by_one(own, [7])
    assert own.experts_read.tolist() == [getattr(part, "active", 0) for part in parts]
    own.own.truncate(0)
    own.own.forward(TokenTree.chain(list(range(3, 40))))
    for read, part in zip(own.experts_read, parts, strict=True):
        if isinstance(part, Moe):
            assert part.active < read <= part.experts
