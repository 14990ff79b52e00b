"""Passes that stop early: what they say, and that going on from them is one pass, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgespec.backends.base import Target
from edgespec.backends.passes import TokenTree
from edgespec.errors import BackendError, ContextOverflowError
from tests.support.gguf_models import write_gguf
from tests.support.targets import (
    FEW_MODELS,
    PLAN,
    assert_same,
    cosines,
    model_path,
    open_target,
    shared_target,
    tokens,
)
from tests.support.token_trees import path_to, token_trees

EXITING = ("native", "native-int8", "native-q4")
EVERY = [(backend, model) for backend in EXITING for model in FEW_MODELS]
IDS = [f"{backend}-{model}" for backend, model in EVERY]


def go_early(target: Target, tree: TokenTree, nodes: set[int], at_once: int, layer: int = 1) -> int:
    """Let these nodes and their ancestors leave a pass early, so many in each; returns how many."""
    wanted = sorted({above for node in nodes for above in path_to(tree, node)})
    numbers = {-1: -1} | {node: number for number, node in enumerate(wanted)}
    for first in range(0, len(wanted), at_once):
        part = wanted[first : first + at_once]
        target.own.forward_until(
            layer,
            tree.tokens[part].tolist(),
            [numbers[int(tree.parents[node])] for node in part],
        )
    return len(wanted)


@st.composite
def part_of(draw: st.DrawFn, tree: TokenTree) -> set[int]:
    """Some of a tree's nodes."""
    return draw(st.sets(st.integers(0, len(tree) - 1), min_size=1))


@pytest.mark.parametrize(("backend", "model"), EVERY, ids=IDS)
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_a_pass_goes_on_from_early_nodes(backend: str, model: str, data: st.DataObject) -> None:
    """Some nodes of the tree left early, with others that it has not got; a path is committed, and
    what follows it is computed. All as if nothing had left early.
    """
    target = shared_target(backend, model)
    tree = data.draw(token_trees(9))
    drafted = data.draw(token_trees(9))
    drafted.tokens[0] = tree.tokens[0]
    prefix = tokens(data.draw(st.integers(0, 40)), 1)
    last = data.draw(st.integers(0, len(tree) - 1))
    after = TokenTree.chain(tokens(3, 9))
    results = []
    for early in (False, True):
        target.own.truncate(0)
        target.own.prefill(prefix)
        if early:
            both = TokenTree(
                np.concatenate([tree.tokens, drafted.tokens[1:]]),
                np.concatenate([tree.parents, _grafted(drafted, len(tree))]),
            )
            go_early(target, both, data.draw(part_of(both)), data.draw(st.integers(1, 4)))
        whole = target.own.forward(tree)
        assert whole.maxima is not None
        logits, maxima = whole.logits.copy(), whole.maxima.copy()
        target.own.commit(path_to(tree, last))
        results.append((logits, maxima, target.own.forward(after).logits.copy()))
    for whole, continued in zip(*results, strict=True):
        assert_same(target, continued, whole)


def _grafted(tree: TokenTree, base: int) -> np.ndarray:
    """Parents of a tree's nodes but the root when they are put behind `base` others, whose root is
    theirs, too.
    """
    above = tree.parents[1:]
    return np.where(above == 0, 0, above + base - 1).astype(np.int16)


@pytest.mark.parametrize("kv_type", EXITING)
@pytest.mark.parametrize("threads", [1, 2])
@settings(max_examples=6, deadline=None)
@given(data=st.data())
def test_several_texts_go_on_in_one_pass(
    kv_type: str, threads: int, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Across blocks and spans, of a model with four layers; one text leaves at another layer."""
    path = tmp_path_factory.mktemp("models") / "m.gguf"
    write_gguf(path, type="Q8_0", vocab=300, layers=4)
    lengths = data.draw(st.lists(st.integers(490, 520), min_size=3, max_size=3))
    trees = [data.draw(token_trees(6)) for _ in lengths]
    layers = data.draw(st.lists(st.integers(0, 3), min_size=3, max_size=3))
    plan = {"context_length": 600, "prefill_chunk": 250, "max_nodes": 40, "threads": threads}
    results = []
    for early in (False, True):
        with open_target(kv_type, path, sequences=3, **plan) as target:
            texts = [target.own, target.open_sequence(), target.open_sequence()]
            for seed, (text, length) in enumerate(zip(texts, lengths, strict=True)):
                text.prefill(tokens(length, seed))
            for text, tree, layer in zip(texts, trees, layers, strict=True):
                if early and layer:
                    text.forward_until(layer, tree.tokens[:1].tolist(), [-1])
            found = target.forward(list(zip(texts, trees, strict=True))).logits.copy()
            for text, tree in zip(texts, trees, strict=True):
                text.commit(path_to(tree, len(tree) - 1))
            after = [(text, TokenTree.chain(tokens(2, 8))) for text in texts]
            results.append((found, target.forward(after).logits.copy()))
            assert target.early_room == 40  # all states were given back
    for whole, continued in zip(*results, strict=True):
        np.testing.assert_array_equal(continued.view(np.uint32), whole.view(np.uint32))


@pytest.mark.parametrize("model", ["llama-F32", "qwen2-F16", "qwen3-F32"])
def test_exit_logits_are_those_of_the_first_layers(model: str) -> None:
    """What a model that ends after the exit would say; here the reference's."""
    ids = tokens(6, 4)
    with open_target("native", model) as target, open_target("reference", model) as short:
        short.spec = short.spec.first_layers(1)
        target.own.prefill(tokens(5))
        short.own.prefill(tokens(5))
        expected = short.own.forward(TokenTree.chain(ids)).logits
        parents = list(range(-1, 5))
        whole = target.own.forward_until(1, ids[:4].tolist(), parents[:4], rows="all").logits.copy()
        rest = [target.own.forward_until(1, [ids[n]], [parents[n]]).logits.copy() for n in (4, 5)]
        found = np.concatenate([whole, *rest])
        assert cosines(found, expected).min() > 0.9999
        assert cosines(found, target.own.forward(TokenTree.chain(ids)).logits).max() < 0.999


def test_the_first_tokens_logits_alone() -> None:
    with open_target("native", "llama-Q8_0") as target:
        root = ([5], [-1])
        whole = target.own.forward_until(1, *root).logits.copy()
        target.own.truncate(0)
        found = target.own.forward_until(1, *root, vocab=50)
        part = found.logits
        assert found.maxima is not None
        assert part.shape == (1, 64)  # whole tiles
        np.testing.assert_array_equal(part, whole[:, :64])
        np.testing.assert_array_equal(found.maxima[0], part.reshape(4, 16).max(axis=1))
        assert target.own.forward(TokenTree.chain([5])).logits.shape == (1, 300)


def test_an_early_node_counts_once_a_commit() -> None:
    with open_target("native", "llama-Q8_0") as target:
        assert target.early_room == PLAN.max_nodes
        target.own.forward_until(1, [5, 6], [-1, 0])
        assert target.early_room == PLAN.max_nodes - 2
        target.own.forward(TokenTree.chain([5]))
        target.own.commit([0])
        assert target.early_room == PLAN.max_nodes


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((2, [5], [-1]), "can be 1 to 1"),
        ((0, [5], [-1]), "can be 1 to 1"),
        ((1, [5], [0]), "only node 0 is a root"),
        ((1, [5, 6], [-1, -1]), "only node 0 is a root"),
        ((1, [5, 6], [-1, 1]), "come before their children"),
        ((1, [300], [-1]), "token ids must lie in"),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused(
    arguments: tuple[int, list[int], list[int]], sentence: str
) -> None:
    with open_target("native", "llama-Q8_0") as target, pytest.raises(BackendError, match=sentence):
        target.own.forward_until(*arguments)


def test_there_is_room_for_as_many_as_planned() -> None:
    with open_target("native", "llama-Q8_0", context_length=24) as target:
        target.own.prefill(tokens(20))
        with pytest.raises(ContextOverflowError, match="room for 4"):
            target.own.forward_until(1, [1] * 5, [-1, 0, 1, 2, 3])
        target.own.forward_until(1, [1] * 4, [-1, 0, 1, 2])
        expected = target.own.forward(
            TokenTree.chain([1, 2, 3])
        ).logits.copy()  # forgets them: no room
        target.own.truncate(20)
        np.testing.assert_array_equal(
            target.own.forward(TokenTree.chain([1, 2, 3])).logits, expected
        )


def test_a_backend_without_says_so() -> None:
    with open_target("reference", "llama-F32") as target:
        assert not target.capabilities.early_exit
        with pytest.raises(BackendError, match="cannot leave a pass of this model early"):
            target.own.forward_until(1, [5], [-1])


def test_models_of_one_layer_have_no_exit() -> None:
    path = model_path("llama-Q8_0").with_name("shallow.gguf")
    write_gguf(path, type="Q8_0", vocab=300, layers=1)
    with open_target("native", path) as target, pytest.raises(BackendError, match="1 layers"):
        target.own.forward_until(1, [5], [-1])


@settings(max_examples=8, deadline=None)
@given(tree=token_trees(6), layers=st.lists(st.integers(1, 3), min_size=2, unique=True))
def test_going_from_exit_to_exit(tree: TokenTree, layers: list[int]) -> None:
    """Logits at a deeper exit are those of leaving there at once, and a pass goes on from it."""
    path, layers = model_path("llama-Q8_0").with_name("four.gguf"), sorted(layers)
    if not path.exists():
        write_gguf(path, type="Q8_0", vocab=300, layers=4)
    everything = (tree.tokens.tolist(), tree.parents.tolist())
    with open_target("native", path) as target:
        target.own.prefill(tokens(5))
        expected = target.own.forward_until(layers[-1], *everything, rows="all").logits.copy()
        target.own.truncate(5)
        whole = target.own.forward(tree).logits.copy()
        target.own.forward_until(layers[0], *everything)
        for layer in layers[1:]:
            found = target.own.deepen(layer, rows="all").logits.copy()
        assert_same(target, found, expected)
        assert_same(target, target.own.deepen(layers[-1], rows="all").logits.copy(), expected)
        assert_same(target, target.own.forward(tree).logits.copy(), whole)
        with pytest.raises(BackendError, match="from theirs to the last"):
            target.own.deepen(layers[0])
