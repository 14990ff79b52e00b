"""Models with states on the native backend: the same bits however their positions were computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from edgespec.backends.base import Target
from edgespec.backends.native.target import NativeTarget
from edgespec.backends.passes import TokenTree
from edgespec.backends.reference import ReferenceTarget
from edgespec.backends.sequence import KvSequence
from edgespec.errors import BackendError
from edgespec.memory.plan.state_layout import CHECKPOINT_EVERY
from edgespec.models.open_model import open_model
from tests.support.random_models import MODELS, write
from tests.support.targets import PLAN

HYBRIDS = ("qwen35", "qwen35-wide", "lfm2", "granitehybrid")
CONTEXT, NODES = 1024, 16
Logits = NDArray[np.float32]
_FOLDER = TemporaryDirectory(prefix="edgespec-recurrent-")


@cache
def _path(name: str, kind: str) -> Path:
    return write(MODELS[name](), Path(_FOLDER.name) / f"{name}-{kind}.gguf", type=kind)


def _open(name: str, kind: str = "F32", **changes: Any) -> NativeTarget:
    plan = {"backend": "native", "context_length": CONTEXT, "max_nodes": NODES} | changes
    with open_model(_path(name, kind)) as file:
        return NativeTarget(file, replace(PLAN, **plan))  # type: ignore[arg-type]


@cache
def _shared(name: str, threads: int = 1) -> NativeTarget:
    """One target for many examples; each begins with `truncate(0)`."""
    return _open(name, threads=threads, prefill_chunk=64, sequences=3)


def _tokens(count: int, seed: int = 0) -> NDArray[np.int32]:
    return np.random.default_rng(seed).integers(3, 500, count).astype(np.int32)


def _forward(sequence: KvSequence, tree: TokenTree) -> Logits:
    return sequence.forward(tree).logits.copy()


def _next(sequence: KvSequence, token: int = 5) -> Logits:
    """What a sequence says after one more token, which is not committed."""
    return _forward(sequence, TokenTree.chain([token]))[0]


def _decoded(target: Target, tokens: Sequence[int] | NDArray[np.int32]) -> Logits:
    """Logits of a text, token by token from its beginning."""
    target.own.truncate(0)
    rows = []
    for token in tokens:
        rows.append(_forward(target.own, TokenTree.chain([token]))[0])
        target.own.commit([0])
    return np.array(rows)


def _same(ours: Logits, theirs: Logits) -> None:
    np.testing.assert_array_equal(ours.view(np.uint32), theirs.view(np.uint32))


@pytest.mark.parametrize("kind", ["F32", "F16"])
@pytest.mark.parametrize("name", HYBRIDS)
def test_logits_are_the_references(name: str, kind: str) -> None:
    tokens, last = _tokens(48), slice(48 - NODES, 48)
    plan = replace(PLAN, backend="reference", context_length=CONTEXT)
    with open_model(_path(name, kind)) as file, ReferenceTarget(file, plan) as oracle:
        oracle.own.prefill(tokens[: 48 - NODES])
        expected = _forward(oracle.own, TokenTree.chain(tokens[last]))
    with _open(name, kind) as target:
        target.own.prefill(tokens[: 48 - NODES])
        found = _forward(target.own, TokenTree.chain(tokens[last]))
    for row, other in zip(found, expected, strict=True):
        assert row @ other / (np.linalg.norm(row) * np.linalg.norm(other)) > 0.9999


@pytest.mark.parametrize("kind", ["F32", "Q8_0"])
@pytest.mark.parametrize("name", HYBRIDS)
def test_chunks_and_threads_do_not_change_the_bits(name: str, kind: str) -> None:
    tokens = _tokens(50)
    with _open(name, kind) as target:
        expected = _decoded(target, tokens)
    with _open(name, kind, threads=2, prefill_chunk=64) as target:
        for chunk in (1, 5, 64):
            target.own.truncate(0)
            target.own.prefill(tokens[:-3], chunk=chunk)
            _same(_forward(target.own, TokenTree.chain(tokens[-3:])), expected[-3:])


@st.composite
def _trees(draw: st.DrawFn, most: int = NODES) -> tuple[TokenTree, list[int]]:
    """A tree, and a path of it to be committed."""
    num_nodes = draw(st.integers(1, most))
    parents = [-1, *(draw(st.integers(0, node - 1)) for node in range(1, num_nodes))]
    tokens = draw(st.lists(st.integers(3, 500), min_size=num_nodes, max_size=num_nodes))
    node, path = draw(st.integers(0, num_nodes - 1)), list[int]()
    while node >= 0:
        path.insert(0, node)
        node = parents[node]
    path = path[: draw(st.integers(0, len(path)))]
    return TokenTree(np.array(tokens, np.int32), np.array(parents, np.int16)), path


def _expected(target: Target, text: list[int], tree: TokenTree) -> Logits:
    """Every node's logits, each by its own path, token by token."""
    rows, paths = [], list[list[int]]()
    for token, parent in zip(tree.tokens.tolist(), tree.parents.tolist(), strict=True):
        paths.append([*(paths[parent] if parent >= 0 else text), token])
        rows.append(_decoded(target, paths[-1])[-1])
    return np.array(rows)


@pytest.mark.parametrize("name", HYBRIDS)
@settings(max_examples=8, deadline=None)
@given(steps=st.lists(_trees(), min_size=1, max_size=4), data=st.data())
def test_trees(name: str, steps: list[tuple[TokenTree, list[int]]], data: st.DataObject) -> None:
    """Every node of every step, whichever path was committed before, as if decoded alone."""
    oracle, target = _shared(name), _shared(name, data.draw(st.sampled_from([1, 2])))
    target.own.truncate(0)
    fork = target.own.fork()
    text = _tokens(9).tolist()
    fork.prefill(text)
    try:
        for tree, path in steps:
            found = _forward(fork, tree)
            _same(found, _expected(oracle, text, tree))
            fork.commit(path)
            text += tree.tokens[path].tolist()
        _same(_next(fork), _decoded(oracle, [*text, 5])[-1])
    finally:
        fork.close()


@st.composite
def _changes(draw: st.DrawFn) -> tuple[str, int, int]:
    """Something that happens to a sequence, how much of it, and a seed."""
    kind = draw(st.sampled_from(["prefill", "steps", "truncate", "fork", "snapshot", "restore"]))
    return kind, draw(st.integers(1, 300)), draw(st.integers(0, 99))


def _step(sequence: KvSequence, seed: int) -> list[int]:
    """A pass over a random tree and the commit of a random path, whose tokens are returned."""
    rng = np.random.default_rng(seed)
    parents = [-1, *(int(rng.integers(0, node)) for node in range(1, int(rng.integers(1, NODES))))]
    tree = TokenTree(_tokens(len(parents), seed=seed), np.array(parents, np.int16))
    node, path = len(parents) - 1, list[int]()
    while node >= 0:
        path.insert(0, node)
        node = parents[node]
    sequence.forward(tree)
    sequence.commit(path)
    tokens: list[int] = tree.tokens[path].tolist()
    return tokens


@pytest.mark.parametrize("name", ["lfm2", "granitehybrid"])
@settings(max_examples=10, deadline=None)
@given(changes=st.lists(_changes(), min_size=2, max_size=8))
def test_any_history(name: str, changes: list[tuple[str, int, int]]) -> None:
    """Whatever happened to a sequence, it goes on as if its text had just been read."""
    target = _shared(name)
    sequence, text = target.open_sequence(), list[int]()
    kept = sequence.snapshot(), text
    try:
        for kind, count, seed in changes:
            if kind == "prefill" and len(text) + count < 700:
                new = _tokens(count, seed=seed).tolist()
                sequence.prefill(new, chunk=8 + seed)
                text = text + new
            elif kind == "steps" and len(text) < 700:
                for turn in range(1 + count % 5):
                    text = text + _step(sequence, seed + turn)
            elif kind == "truncate":
                text = text[: sequence.truncate(max(0, len(text) - count))]
            elif kind == "fork":
                other = sequence.fork(sequence.rewindable(len(text) - min(count % 9, len(text))))
                text = text[: other.length]
                sequence.close()
                sequence = other
            elif kind == "snapshot":
                kept = sequence.snapshot(), text
            elif kind == "restore":
                sequence.restore(kept[0])
                text = kept[1]
            assert sequence.length == len(text)
        target.own.truncate(0)
        target.own.prefill(text)
        _same(_next(sequence), _next(target.own))
    finally:
        sequence.close()


def test_a_text_that_ends_at_a_checkpoint_is_restored() -> None:
    """Its state is a copy of the checkpoint, at the same position."""
    target = _shared("granitehybrid")
    target.own.truncate(0)
    target.own.prefill(_tokens(CHECKPOINT_EVERY + 1))
    assert target.own.truncate(CHECKPOINT_EVERY) == CHECKPOINT_EVERY
    expected, snapshot = _next(target.own), target.own.snapshot()
    target.own.truncate(0)
    target.own.restore(snapshot)
    _same(_next(target.own), expected)


@pytest.mark.parametrize("name", HYBRIDS)
def test_sequences_together(name: str) -> None:
    """Several in a pass, at different lengths, with what was pending of each."""
    target = _shared(name, 2)
    target.own.truncate(0)
    texts = [_tokens(count, seed=count).tolist() for count in (3, 7, 12)]
    opened = [target.open_sequence(), target.open_sequence()]
    sequences = [target.own, *opened]
    for sequence, text in zip(sequences, texts, strict=True):
        sequence.prefill(text)
    parents = np.array([-1, 0, 0, 1, 2], np.int16)
    for step in range(3):
        tree = TokenTree(_tokens(5, seed=step), parents)
        chosen = sequences if step != 1 else sequences[1:]
        found = target.forward([(sequence, tree) for sequence in chosen]).logits.copy()
        for place, sequence in enumerate(chosen):
            path = [[0, 1, 3], [0], [0, 2, 4]][sequences.index(sequence)]
            text = texts[sequences.index(sequence)]
            other = _shared(name)
            _same(found[5 * place : 5 * place + 5], _expected(other, text, tree))
            sequence.commit(path)
            text += tree.tokens[path].tolist()
    for sequence in opened:
        sequence.close()


@pytest.mark.parametrize("name", HYBRIDS)
def test_snapshots_and_forks(name: str) -> None:
    target = _shared(name)
    target.own.truncate(0)
    target.own.prefill(_tokens(20))
    tree = TokenTree(_tokens(4, seed=1), np.array([-1, 0, 1, 0], np.int16))
    target.own.forward(tree)
    target.own.commit([0, 1, 2])  # pending when copied
    expected = _next(target.own)
    snapshot = target.own.snapshot()
    with_fork = target.own.fork()
    target.own.prefill(_tokens(5, seed=2))
    later = _next(target.own)
    _same(_next(with_fork), expected)
    with_fork.prefill(_tokens(5, seed=2))
    _same(_next(with_fork), later)
    with_fork.restore(snapshot)
    _same(_next(with_fork), expected)
    _same(_next(target.own), later)
    with_fork.close()


@pytest.mark.parametrize("name", HYBRIDS)
def test_the_last_step_can_be_taken_back(name: str) -> None:
    """To any of its nodes: states have not taken them yet."""
    target, tokens = _shared(name), _tokens(14)
    target.own.truncate(0)
    target.own.prefill(tokens[:10])
    target.own.forward(TokenTree.chain(tokens[10:]))
    target.own.commit(range(4))
    assert target.own.rewindable(12) == 12
    target.own.truncate(12)
    found = _next(target.own)
    _same(found, _decoded(target, [*tokens[:12], 5])[-1])


@pytest.mark.parametrize("name", HYBRIDS)
def test_checkpoints(name: str) -> None:
    """A sequence returns to the nearest state set aside, wherever prefill or steps crossed one."""
    with _open(name, prefill_chunk=64) as target:
        tokens = _tokens(700)
        target.own.prefill(tokens[:500])
        for start in range(500, 700, 10):
            target.own.forward(TokenTree.chain(tokens[start : start + 10]))
            target.own.commit(range(10))
        _next(target.own)
        assert target.own.rewindable(699) < 699
        for length in (600, 300, 100):
            nearest = length // CHECKPOINT_EVERY * CHECKPOINT_EVERY
            assert target.own.rewindable(length) == nearest
            with pytest.raises(BackendError, match="cannot fork"):
                target.own.fork(length)
            assert target.own.truncate(length) == nearest
            target.own.prefill(tokens[nearest:length])
            found = _next(target.own)
            with _open(name, prefill_chunk=64) as other:
                other.own.prefill(tokens[:length])
                _same(found, _next(other.own))


def test_a_prompt_can_be_left_where_it_ended() -> None:
    """What is asked again, or goes on otherwise, need not be read again."""
    target, tokens = _shared("lfm2"), _tokens(90)
    target.own.truncate(0)
    target.own.prefill(tokens[:60])
    expected = _next(target.own)
    for token in tokens[60:]:
        target.own.forward(TokenTree.chain([token]))
        target.own.commit([0])
    _next(target.own)
    assert target.own.rewindable(59) == 0
    assert target.own.truncate(70) == 60
    _same(_next(target.own), expected)


def test_nodes_without_room_are_one_sentence() -> None:
    """What passes keep of nodes until one of their paths is committed is counted, and limited."""
    target = _shared("lfm2")
    target.own.truncate(0)
    others = [target.open_sequence(), target.open_sequence()]
    tree = TokenTree.chain(_tokens(NODES))
    expected = _forward(target.own, tree)
    others[0].forward(tree)
    with pytest.raises(BackendError, match="commit or drop the last passes' nodes first"):
        others[1].forward(tree)
    target.own.commit([])
    _same(_forward(others[1], tree), expected)
    for sequence in others:
        sequence.close()


def test_passes_are_not_interrupted() -> None:
    """Early exits, and what fits adapters for them, are refused."""
    target, streams = _shared("lfm2"), np.zeros((3, 4, 256), np.float32)
    target.own.truncate(0)
    with pytest.raises(BackendError, match="cannot leave a pass of this model early"):
        target.own.forward_until(2, [5], [-1])
    with pytest.raises(BackendError, match="cannot be interrupted there"):
        target.own.trace(_tokens(4), (1, 2), streams)
