"""Attention over prefix and ancestors: the description of trees, and results against the reference.

Kernels read addresses the target prepares, so attention is driven through whole one-layer models.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgespec.backends.base import Target, TokenTree
from edgespec.backends.native.kernels.attention import describe_tree
from edgespec.models import open_model
from tests.conformance.targets import cosines, open_target, tokens
from tests.conformance.trees import parents, path_to, token_trees
from tests.models.build import write_gguf


@given(shape=parents(40))
@settings(deadline=None)
def test_describe_tree(shape: list[int]) -> None:
    """Depth, and the ancestors as a leading run and a list, in order of position."""
    count = len(shape)
    tree = TokenTree(np.zeros(count, np.int32), np.array(shape, np.int16))
    depth, run = np.full((2, count), -1, np.int32)
    extra_start, extra = np.full(count + 1, -1, np.int32), np.full(count * count, -1, np.int32)
    describe_tree(tree.parents, depth, run, extra_start, extra)
    for node in range(count):
        path = path_to(tree, node)
        assert depth[node] == len(path) - 1
        others = extra[extra_start[node] : extra_start[node + 1]].tolist()
        assert [*range(run[node]), *others] == path
        assert others == [] or others[0] > run[node]  # what stands in a row is in the run


@pytest.mark.parametrize("shape", [[-1], [-1, 0, 1, 2], [-1, 0, 0, 0], [-1, 0, 1, 0, 3]], ids=str)
def test_describe_chains_without_lists(shape: list[int]) -> None:
    """Nodes of the first chain need no list, however long a prompt is."""
    count = len(shape)
    depth, run = np.zeros((2, count), np.int32)
    extra_start, extra = np.zeros(count + 1, np.int32), np.zeros(count * count, np.int32)
    describe_tree(np.array(shape, np.int16), depth, run, extra_start, extra)
    chain = next((node for node in range(count) if shape[node] != node - 1), count)
    assert run[:chain].tolist() == list(range(1, chain + 1))
    assert extra_start[chain] == 0


HEADS: dict[str, dict[str, Any]] = {
    "one head": {"heads": 1, "kv_heads": 1},
    "each its own keys": {"heads": 4, "kv_heads": 4},
    "all share keys": {"heads": 8, "kv_heads": 1},
    "groups of three": {"heads": 6, "kv_heads": 2, "head_dim": 16},
    "groups of 32": {"heads": 32, "kv_heads": 1, "head_dim": 16},
    "heads of 8": {"heads": 8, "kv_heads": 4},
    "heads of 24": {"heads": 4, "kv_heads": 2, "head_dim": 24},
    "heads of 128": {"heads": 2, "kv_heads": 1, "head_dim": 128},
}
_FOLDER = TemporaryDirectory(prefix="edgespec-attention-")


@cache
def _target(backend: str, heads: str) -> Target:
    path = Path(_FOLDER.name) / f"{heads}.gguf"
    if not path.exists():
        write_gguf(path, layers=1, **HEADS[heads])
    return open_target(backend, path)


@pytest.mark.parametrize("heads", HEADS)
@settings(max_examples=12, deadline=None)
@given(tree=token_trees(20), prefix=st.integers(0, 70))
def test_against_the_reference(heads: str, tree: TokenTree, prefix: int) -> None:
    logits = []
    for backend in ("native", "reference"):
        target = _target(backend, heads)
        target.truncate(0)
        target.prefill(tokens(prefix))
        logits.append(target.forward(tree).copy())
    assert cosines(*logits).min() >= 0.99999
    np.testing.assert_allclose(*logits, atol=2e-3)


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_sharp_scores(threads: int, tmp_path: Path) -> None:
    """Queries and keys ten times the usual size: nearly all weight on one position."""
    path = write_gguf(tmp_path / "sharp.gguf", arch="qwen2", head_dim=32, rope_base=1e6)
    _enlarge(path, "attn_norm.weight", 10.0)
    tree, logits = TokenTree.chain(tokens(12, 1)), []
    for backend in ("native", "reference"):
        with open_target(backend, path, threads=threads) as target:
            target.prefill(tokens(50))
            logits.append(target.forward(tree).copy())
    assert np.all(np.isfinite(logits[0]))
    assert cosines(*logits).min() >= 0.9999


def _enlarge(path: Path, name: str, factor: float) -> None:
    """Multiply the f32 tensors of this name in the file."""
    with open_model(path) as file:
        places = [info for info in file.tensors.values() if info.name.endswith(name)]
    assert places
    for info in places:
        values = np.memmap(path, np.float32, "r+", info.offset, info.shape)
        values *= np.float32(factor)
        values.flush()
