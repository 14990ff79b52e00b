"""Every architecture on the native backend: the reference's logits, and the same bits whatever else
is in a pass.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from edgespec.backends.native.target import NativeTarget
from edgespec.backends.passes import TokenTree
from edgespec.backends.reference import ReferenceTarget
from edgespec.memory.plan.plan import Plan
from edgespec.models.open_model import open_model
from tests.support.random_models import MODELS, write
from tests.support.targets import PLAN

PARTS = list(MODELS)
LENGTH = 150
"""Tokens: more than any window here."""


@pytest.fixture(scope="module", params=PARTS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("architectures")
    path = folder / f"{request.param}.gguf"
    write(MODELS[request.param](), path)
    return path


def plan(**changes: object) -> Plan:
    settings = {"backend": "native", "context_length": 512, "max_nodes": 16} | changes
    return replace(PLAN, **settings)  # type: ignore[arg-type]


def ids(count: int, seed: int = 0) -> NDArray[np.int32]:
    return np.random.default_rng(seed).integers(3, 400, count).astype(np.int32)


def native_logits(path: Path, tokens: NDArray[np.int32], chunk: int) -> NDArray[np.float32]:
    found = []
    with open_model(path) as file, NativeTarget(file, plan()) as target:
        for start in range(0, len(tokens), chunk):
            part = tokens[start : start + chunk]
            found.append(target.own.forward(TokenTree.chain(part)).logits.copy())
            target.own.commit(range(len(part)))
    return np.concatenate(found)


def test_logits_are_the_references(model: Path) -> None:
    tokens = ids(LENGTH)
    with open_model(model) as file, ReferenceTarget(file, plan(backend="reference")) as oracle:
        oracle.own.prefill(tokens[: LENGTH - 16])
        expected = oracle.own.forward(TokenTree.chain(tokens[LENGTH - 16 :])).logits
    found = native_logits(model, tokens, 16)
    for row, other in zip(found[-16:], expected, strict=True):
        cosine = row @ other / (np.linalg.norm(row) * np.linalg.norm(other))
        assert cosine > 0.9999


def test_chunks_do_not_change_the_bits(model: Path) -> None:
    tokens = ids(70)
    whole = native_logits(model, tokens, 16)
    for chunk in (1, 5):
        other = native_logits(model, tokens, chunk)
        np.testing.assert_array_equal(other.view(np.uint32), whole.view(np.uint32))


@pytest.mark.parametrize("name", ["deepseek2", "deepseek2-joined", "deepseek2-ranked", "gemma3n"])
def test_trees_and_batches(name: str, tmp_path: Path) -> None:
    """Every node of two texts' trees as if decoded alone, before and after paths that leave gaps;
    and so is what a snapshot brings back.
    """
    path = write(MODELS[name](), tmp_path / "model.gguf", type="Q8_0")
    parents = np.array([-1, 0, 0, 1, 2, 2, 5], np.int16)
    texts, committed = [ids(37, 1).tolist(), ids(5, 2).tolist()], [[0, 2, 5], [0, 1, 3]]
    with open_model(path) as file:
        one = NativeTarget(file, plan(sequences=2, threads=2, prefill_chunk=64))
        oracle = NativeTarget(file, plan())
    with one, oracle:
        both = [one.own, one.open_sequence()]
        for sequence, text in zip(both, texts, strict=True):
            sequence.prefill(text)
        for step in range(3):
            trees = [TokenTree(ids(7, 10 * step + which), parents) for which in range(2)]
            found = one.forward(list(zip(both, trees, strict=True))).logits.copy()
            for which, (sequence, tree, text) in enumerate(zip(both, trees, texts, strict=True)):
                expected = alone(oracle, text, tree)
                rows = found[7 * which : 7 * which + 7]
                np.testing.assert_array_equal(rows.view(np.uint32), expected.view(np.uint32))
                sequence.commit(committed[which])
                text += tree.tokens[committed[which]].tolist()
        kept = both[0].snapshot()
        both[0].truncate(0)
        both[0].restore(kept)
        again = both[0].forward(trees[0]).logits
        expected = alone(oracle, texts[0], trees[0])
        np.testing.assert_array_equal(again.view(np.uint32), expected.view(np.uint32))
        both[1].close()


def alone(target: NativeTarget, text: list[int], tree: TokenTree) -> NDArray[np.float32]:
    """Every node's logits behind its own path, token by token."""
    rows, paths = [], list[list[int]]()
    for token, parent in zip(tree.tokens.tolist(), tree.parents.tolist(), strict=True):
        paths.append([*(paths[parent] if parent >= 0 else []), token])
        target.own.truncate(0)
        target.own.prefill(text)
        for each in paths[-1]:
            row = target.own.forward(TokenTree.chain([each])).logits[0].copy()
            target.own.commit([0])
        rows.append(row)
    return np.array(rows)
