"""Several texts in one pass: rows as if each were alone, shared beginnings, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgespec.backends.base import Target
from edgespec.backends.passes import TokenTree
from edgespec.backends.reference import ReferenceTarget
from edgespec.backends.sequence import KvSequence
from edgespec.errors import BackendError, ContextOverflowError
from edgespec.memory.plan.kv_sizes import KV_BLOCK
from edgespec.models.open_model import open_model
from tests.support.gguf_models import write_gguf
from tests.support.targets import (
    BATCHING,
    BATCHING_MODELS,
    PLAN,
    VOCAB,
    assert_same,
    decode,
    model_path,
    open_target,
    score,
    shared_target,
    tokens,
)
from tests.support.token_trees import path_to, token_trees

_FOLDER = TemporaryDirectory(prefix="edgespec-sequences-")
MOST = 4
"""Texts at once, the target's own included."""


def _open(backend: str, model: str) -> Target:
    """A target for many examples; the largest pass takes a tree of 20 nodes from each text."""
    key = (backend, model)
    if key not in _OPENED:
        _OPENED[key] = open_target(backend, model, sequences=MOST, max_nodes=80)
    return _OPENED[key]


_OPENED: dict[tuple[str, str], Target] = {}


@cache
def shaped_model(heads: int, kv_heads: int) -> Path:
    """A tiny model with these heads."""
    path = Path(_FOLDER.name) / f"{heads}-{kv_heads}.gguf"
    return write_gguf(path, type="Q8_0", vocab=VOCAB, heads=heads, kv_heads=kv_heads)


@pytest.mark.parametrize(("backend", "model"), BATCHING_MODELS)
@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_a_text_in_a_batch_is_as_if_alone(backend: str, model: str, data: st.DataObject) -> None:
    """Ragged lengths, a tree each, a path of each committed, and what follows it."""
    target, alone = _open(backend, model), shared_target(backend, model)
    count = data.draw(st.integers(1, MOST), label="texts")
    prefixes = data.draw(st.lists(st.integers(0, 40), min_size=count, max_size=count))
    trees = [data.draw(token_trees(8)) for _ in range(count)]
    paths = [path_to(tree, data.draw(st.integers(0, len(tree) - 1))) for tree in trees]
    texts = [target.own, *(target.open_sequence() for _ in range(count - 1))]
    target.own.truncate(0)
    for seed, (text, prefix) in enumerate(zip(texts, prefixes, strict=True)):
        text.prefill(tokens(prefix, seed))
    logits = target.forward(list(zip(texts, trees, strict=True))).logits.copy()
    for text, path in zip(texts, paths, strict=True):
        text.commit(path)
    after = TokenTree.chain(tokens(3, 9))
    behind = target.forward([(text, after) for text in texts]).logits.copy()
    for text in texts[1:]:
        text.close()
    first = 0
    for seed, (prefix, tree, path) in enumerate(zip(prefixes, trees, paths, strict=True)):
        alone.own.truncate(0)
        alone.own.prefill(tokens(prefix, seed))
        assert_same(
            target, logits[first : first + len(tree)], alone.own.forward(tree).logits.copy()
        )
        alone.own.commit(path)
        assert_same(target, behind[3 * seed : 3 * seed + 3], alone.own.forward(after).logits.copy())
        first += len(tree)


@pytest.mark.parametrize("group", ["one head", "pairs", "eight"])
@pytest.mark.parametrize("kv_type", ["native", "native-int8", "native-q4"])
@settings(max_examples=6, deadline=None)
@given(data=st.data())
def test_long_texts_of_any_shape(kv_type: str, group: str, data: st.DataObject) -> None:
    """Across blocks and spans, with few nodes and with many, by one thread and by three."""
    heads = {"one head": (1, 1), "pairs": (4, 2), "eight": (8, 1)}[group]
    lengths = data.draw(st.lists(st.integers(480, 540), min_size=3, max_size=3))
    trees = [data.draw(token_trees(data.draw(st.sampled_from([2, 12])))) for _ in lengths]
    threads = data.draw(st.sampled_from([1, 3]))
    changes = {"context_length": 600, "prefill_chunk": 250}
    path = shaped_model(*heads)
    with open_target(kv_type, path, max_nodes=40, sequences=3, threads=threads, **changes) as many:
        texts = [many.own, many.open_sequence(), many.open_sequence()]
        for seed, (text, length) in enumerate(zip(texts, lengths, strict=True)):
            text.prefill(tokens(length, seed))
        logits = many.forward(list(zip(texts, trees, strict=True))).logits.copy()
    first = 0
    with open_target(kv_type, path, **changes) as one:
        for seed, (length, tree) in enumerate(zip(lengths, trees, strict=True)):
            one.own.truncate(0)
            one.own.prefill(tokens(length, seed))
            assert_same(one, logits[first : first + len(tree)], one.own.forward(tree).logits.copy())
            first += len(tree)


@pytest.mark.parametrize(("backend", "model"), BATCHING_MODELS)
def test_forks_go_their_own_ways(backend: str, model: str) -> None:
    """A fork in the middle of a block, at its end, of a fork, and of what was cut since."""
    target, prompt = _open(backend, model), tokens(270)
    own = target.own
    target.own.truncate(0)
    own.prefill(prompt)
    half, whole = own.fork(100), own.fork()
    own.truncate(260)
    third = half.fork(99)
    ends = {200: own, 201: half, 202: whole, 203: third}
    lengths = {200: 260, 201: 100, 202: 270, 203: 99}
    for _ in range(2):  # everyone writes where others read
        for seed, text in ends.items():
            text.truncate(min(lengths[seed], text.length))
            text.prefill(tokens(9, seed))
    after = TokenTree.chain(tokens(2, 7))
    logits = target.forward([(text, after) for text in ends.values()]).logits.copy()
    for text in (half, whole, third):
        text.close()
    for place, seed in enumerate(ends):
        target.own.truncate(0)
        target.own.prefill(np.concatenate([prompt[: lengths[seed]], tokens(9, seed)]))
        assert_same(
            target, logits[2 * place : 2 * place + 2], target.own.forward(after).logits.copy()
        )


@pytest.mark.parametrize("kv_type", ["native", "native-int8", "native-q4"])
def test_forks_share_what_they_have_in_common(kv_type: str) -> None:
    settings = {"context_length": 1000, "prefill_chunk": 250, "sequences": 3}
    with open_target(kv_type, "llama-F32", **settings) as target:
        target.own.prefill(tokens(2 * KV_BLOCK + 5))
        blocks = target.store.only
        forks = [target.own.fork(), target.own.fork()]
        assert blocks.num_blocks == 3
        for count, fork in enumerate(forks, 4):  # the block that is partly filled is copied
            fork.prefill(tokens(4))
            assert blocks.num_blocks == count
        target.own.prefill(tokens(4))
        assert blocks.num_blocks == 5  # the last owner keeps it
        for count, fork in zip((4, 3), forks, strict=True):
            fork.close()
            assert blocks.num_blocks == count
        target.own.truncate(0)
        assert blocks.num_blocks == 0


@pytest.mark.parametrize("backend", BATCHING)
def test_a_text_is_not_spoiled_by_others_passes(backend: str) -> None:
    """A tree waits for its commit while others are computed, and a fork is taken meanwhile."""
    target = _open(backend, "llama-Q8_0")
    tree = TokenTree(tokens(4, 1), np.array([-1, 0, 0, 2], np.int16))
    target.own.truncate(0)
    target.own.prefill(tokens(20))
    expected = decode(target, np.concatenate([tree.tokens[[0, 2, 3]], tokens(3, 5)]))[3:]
    target.own.truncate(20)
    target.own.forward(tree)
    other = target.own.fork(20)
    other.prefill(tokens(5, 3))
    target.forward([(other, TokenTree.chain(tokens(7, 4)))])
    target.own.commit([0, 2, 3])
    assert_same(target, score(target, tokens(3, 5)), expected)
    other.commit([0, 1])
    assert (target.own.length, other.length) == (23, 27)
    other.close()


@pytest.mark.parametrize("backend", ["native", "native-int8"])
def test_texts_are_set_aside_and_come_back(backend: str) -> None:
    """Besides those that count, and untouched by what is computed meanwhile."""
    target = _open(backend, "llama-Q8_0")
    idle = [target.idle_sequence() for _ in range(2 * MOST)]
    for seed, other in enumerate(idle):
        target.own.truncate(0)
        target.own.prefill(tokens(20, seed))
        target.own.swap(other)
        assert (target.own.length, other.length) == (0, 20)
    after = TokenTree.chain(tokens(3, 9))
    for seed, other in enumerate(idle):
        target.own.swap(other)
        found = target.own.forward(after).logits.copy()
        target.own.truncate(0)
        target.own.prefill(tokens(20, seed))
        assert_same(target, found, target.own.forward(after).logits.copy())
    with pytest.raises(BackendError, match="set aside"):
        target.forward([(idle[0], after)])
    for other in idle:
        other.close()
    target.open_sequence().close()
    with pytest.raises(BackendError, match="sets no texts aside"):
        _open("reference", "llama-Q8_0").idle_sequence()


WRONG_USE: dict[str, Callable[[Target, KvSequence], object]] = {
    "no parts": lambda t, s: t.forward([]),
    "an empty tree": lambda t, s: t.forward([(s, TokenTree.chain([]))]),
    "an empty tree beside another": lambda t, s: t.forward(
        [(t.own, TokenTree.chain([1])), (s, TokenTree.chain([]))]
    ),
    "the same text twice": lambda t, s: t.forward(
        [(s, TokenTree.chain([1])), (s, TokenTree.chain([1]))]
    ),
    "too many nodes together": lambda t, s: t.forward(
        [(t.own, TokenTree.chain(tokens(50))), (s, TokenTree.chain(tokens(31)))]
    ),
    "a closed text": lambda t, s: (s.close(), t.forward([(s, TokenTree.chain([1]))])),
    "a prompt for a closed text": lambda t, s: (s.close(), s.prefill([1])),
    "another target's text": lambda t, s: t.forward(
        [(shared_target("reference", "llama-Q8_0").own, TokenTree.chain([1]))]
    ),
    "a fork past the end": lambda t, s: s.fork(4),
    "a fork below zero": lambda t, s: s.fork(-1),
    "more texts than planned": lambda t, s: [t.open_sequence() for _ in range(MOST)],
    "more forks than planned": lambda t, s: [s.fork() for _ in range(MOST)],
    "commit twice": lambda t, s: (
        t.forward([(s, TokenTree.chain([1]))]),
        s.commit([0]),
        s.commit([0]),
    ),
}


@pytest.mark.parametrize("backend", BATCHING)
@pytest.mark.parametrize("use", WRONG_USE.values(), ids=WRONG_USE.keys())
def test_wrong_use(backend: str, use: Callable[[Target, KvSequence], object]) -> None:
    with open_target(backend, "llama-F32", sequences=MOST, max_nodes=80) as target:
        text = target.open_sequence()
        text.prefill(tokens(3))
        with pytest.raises(BackendError):
            use(target, text)
        target.own.truncate(0)  # and the target still works
        assert score(target, tokens(3)).shape[0] == 3


@pytest.mark.parametrize("backend", BATCHING)
def test_each_text_has_its_own_context(backend: str) -> None:
    with open_target(backend, "llama-F32", context_length=24, sequences=2) as target:
        other = target.open_sequence()
        for text in (target.own, other):
            text.prefill(tokens(22))
        parts = [(target.own, TokenTree.chain([1])), (other, TokenTree.chain([1, 2, 3]))]
        with pytest.raises(ContextOverflowError, match="22 committed and 3 new"):
            target.forward(parts)
        with pytest.raises(ContextOverflowError, match="25 tokens.*holds 24"):
            other.prefill(tokens(3))
        assert (target.own.length, other.length) == (22, 22)


@pytest.mark.parametrize("backend", BATCHING)
def test_closing_makes_room(backend: str) -> None:
    with open_target(backend, "llama-F32", sequences=2) as target:
        for _ in range(5):
            text = target.open_sequence()
            text.prefill(tokens(9))
            text.close()
            text.close()  # twice is once


@pytest.mark.parametrize("count", [16, 20])
@pytest.mark.parametrize("group", [1, 8])
def test_as_many_texts_as_nodes(count: int, group: int) -> None:
    """Every text's rows begin a block of rows: there is room for that many blocks, and no more."""
    path, starts = shaped_model(8, 8 // group), TokenTree.chain([1])
    changes = {"context_length": 600, "prefill_chunk": 250, "threads": 2}
    with open_target("native", path, max_nodes=count, sequences=count, **changes) as many:
        scratch = many._scratch  # type: ignore[attr-defined]
        rows = {1: 8 * 16 * 12, 8: 300}[group]  # of 16 texts; 128 + 15 * 11 rows in blocks
        assert len(scratch.mixed) == len(scratch.facts) == rows
        many.own.prefill(tokens(515))
        texts = [many.own.fork(515 - text) for text in range(1, count)]
        logits = many.forward([(text, starts) for text in (many.own, *texts)]).logits.copy()
    with open_target("native", path, **changes) as one:
        one.own.prefill(tokens(515))
        for text in range(count):
            one.own.truncate(515 - text)
            assert_same(one, logits[text : text + 1], one.own.forward(starts).logits.copy())


class OneText(ReferenceTarget):
    """A backend that cannot compute several."""

    capabilities = replace(ReferenceTarget.capabilities, name="lonely", sequences=False)


def test_a_backend_for_one_text_says_so_before_it_loads() -> None:
    with open_model(model_path("llama-F32")) as file:
        plan = replace(PLAN, backend="lonely")
        with OneText(file, plan) as target:
            assert score(target, tokens(3)).shape[0] == 3
            with pytest.raises(BackendError, match="sequences=2"):
                target.own.fork()
        with pytest.raises(BackendError, match="the lonely backend computes one"):
            OneText(file, replace(plan, sequences=2))
