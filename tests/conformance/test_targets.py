"""What every backend promises: the same logits however a position was reached."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgespec.backends.base import Target
from edgespec.backends.native.kernels.codegen import isa
from edgespec.backends.native.kernels.matmul.tile import FORMATS
from edgespec.backends.passes import TILE, TokenTree
from edgespec.models.spec import TensorType
from tests.support.gguf_models import write_gguf
from tests.support.targets import (
    EVERY,
    FEW_MODELS,
    FLOAT_TYPES,
    MAIN_TYPES,
    MAX_NODES,
    MODELS,
    OPENERS,
    VOCAB,
    assert_same,
    cosines,
    decode,
    fitting,
    missing,
    open_target,
    score,
    shared_target,
    tokens,
)
from tests.support.token_trees import path_to, token_trees


@pytest.fixture(params=EVERY)
def target(request: pytest.FixtureRequest) -> Target:
    """One target of every backend and type, empty."""
    opened = shared_target(*request.param)
    opened.own.truncate(0)
    return opened


@pytest.mark.parametrize("model", MODELS)
def test_backends_agree(model: str) -> None:
    """Float types to rounding; quantised types also to what int8 activations cost."""
    prompt, tree = tokens(40), TokenTree(tokens(6, 1), np.array([-1, 0, 0, 1, 2, 3], np.int16))
    logits, chains = {}, {}
    for backend in filter(lambda name: not missing(name), OPENERS):
        opened = shared_target(backend, model)
        opened.own.truncate(0)
        opened.own.prefill(prompt)
        if opened.capabilities.trees:
            logits[backend] = opened.own.forward(tree).logits.copy()
            opened.own.truncate(len(prompt))
        chains[backend] = score(opened, tree.tokens)
    least = 0.99999 if model.split("-")[1] in FLOAT_TYPES else 0.999
    assert cosines(logits["native"], logits["reference"]).min() >= least
    assert cosines(logits["native-int8"], logits["reference"]).min() >= 0.999
    assert cosines(logits["native-q4"], logits["reference"]).min() >= 0.9
    if "llamacpp" in logits:
        # It rounds what it multiplies BF16 weights with to BF16 as well.
        least = 0.9999 if model.endswith("BF16") else least
        assert cosines(logits["llamacpp"], logits["reference"]).min() >= least
    for backend in filter(lambda name: name.startswith("onnx"), chains):
        least = 0.99999 if model.split("-")[1] in FLOAT_TYPES else 0.999
        found = logits if backend in logits else chains
        assert cosines(found[backend], found["reference"]).min() >= least


def test_batch_equals_single_rows(target: Target) -> None:
    ids = tokens(17)
    single = decode(target, ids)
    target.own.truncate(0)
    for count in range(1, len(ids) + 1):
        assert_same(target, score(target, ids[:count]), single[:count])


@pytest.mark.parametrize("kind", MAIN_TYPES)
@pytest.mark.parametrize("used", isa.available())
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_rows_of_any_shape_equal_single_rows(kind: str, used: str, data: st.DataObject) -> None:
    """Random widths and vocabularies, 1 to 33 rows, 1 to 4 threads, every instruction set."""
    count = data.draw(st.integers(1, 33), label="rows")
    threads = data.draw(st.integers(1, 4), label="threads")
    shape = data.draw(model_shapes(kind), label="shape")
    ids = tokens(count, data.draw(st.integers(0, 99), label="tokens"))
    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory() as folder:
        patch.setenv("EDGESPEC_ISA", used)
        path = write_gguf(Path(folder) / "m.gguf", type=kind, layers=1, **shape)
        with open_target("native", path, max_nodes=33, threads=threads) as many:
            batch = score(many, ids)
        with open_target("native", path) as one:
            assert_same(one, batch, decode(one, ids))


@st.composite
def model_shapes(draw: st.DrawFn, kind: str) -> dict[str, int]:
    """Widths that a type can have: whole blocks, or any even number for floats."""
    form = FORMATS[TensorType[kind]]
    unit = form.group if form.group < 256 else 256
    heads = draw(st.sampled_from([1, 2, 4]))
    most = 2 if unit == 256 else 4
    head_dim = draw(st.integers(1, most)) * unit * (8 if form.is_float else 1) // heads
    return {
        "dim": draw(st.integers(1, most)) * max(unit, 16),
        "heads": heads,
        "kv_heads": draw(st.sampled_from([count for count in (1, 2) if count <= heads])),
        "head_dim": head_dim,
        "ffn": draw(st.integers(1, most * 16 if form.is_float else most)) * unit,
        "vocab": draw(st.integers(VOCAB, VOCAB + 40)),
    }


@pytest.mark.parametrize("pair", EVERY)
@settings(max_examples=8, deadline=None)
@given(tree=token_trees(MAX_NODES), prefix=st.integers(0, 40))
def test_tree_equals_chains(pair: tuple[str, str], tree: TokenTree, prefix: int) -> None:
    target = shared_target(*pair)
    target.own.truncate(0)
    target.own.prefill(tokens(prefix))
    tree = fitting(target, tree)
    logits = target.own.forward(tree).logits.copy()
    parents = set(tree.parents.tolist())
    for leaf in (node for node in range(len(tree)) if node not in parents):
        path = path_to(tree, leaf)
        target.own.truncate(prefix)
        assert_same(target, logits[path], decode(target, tree.tokens[path]))


@pytest.mark.parametrize("pair", EVERY)
@settings(max_examples=8, deadline=None)
@given(tree=token_trees(MAX_NODES), prefix=st.integers(0, 40), data=st.data())
def test_commit_keeps_a_path(
    pair: tuple[str, str], tree: TokenTree, prefix: int, data: st.DataObject
) -> None:
    target = shared_target(*pair)
    tree = fitting(target, tree)
    path = path_to(tree, data.draw(st.integers(0, len(tree) - 1), label="last node"))
    after = tokens(3, 9)
    target.own.truncate(0)
    target.own.prefill(tokens(prefix))
    target.own.forward(tree)
    target.own.commit(path)
    assert target.own.length == prefix + len(path)
    committed = score(target, after)
    target.own.truncate(0)
    target.own.prefill(np.concatenate([tokens(prefix), tree.tokens[path]]))
    assert_same(target, committed, score(target, after))


@pytest.mark.parametrize("chunk", [1, 3, 16, 19])
def test_chunked_prefill_equals_whole(target: Target, chunk: int) -> None:
    prompt, after = tokens(20), tokens(3, 1)
    target.own.prefill(prompt)
    whole = score(target, after)
    target.own.truncate(0)
    target.own.prefill(prompt, chunk=chunk)
    assert target.own.length == len(prompt)
    assert_same(target, score(target, after), whole)


@pytest.mark.parametrize("model", FEW_MODELS)
def test_prefill_in_one_pass_equals_decoding(model: str) -> None:
    """A pass of 300 tokens crosses a block of the KV arena and all tile sizes."""
    prompt, after = tokens(300), tokens(5, 1)
    with open_target("native", model, prefill_chunk=300) as whole:
        whole.own.prefill(prompt)
        expected = score(whole, after)
    target = shared_target("native", model)
    target.own.truncate(0)
    for token in prompt:
        target.own.prefill([token])
    assert_same(target, score(target, after), expected)


@pytest.mark.parametrize("rows", ["last", "none"])
def test_rows_asked_for(target: Target, rows: Any) -> None:
    tree = fitting(target, TokenTree(tokens(7), np.array([-1, 0, 1, 0, 3, 3, 2], np.int16)))
    target.own.prefill(tokens(5))
    logits = score(target, tree.tokens[:1])
    assert logits.shape == (1, target.spec.vocab_size)
    assert logits.dtype == np.float32
    expected = target.own.forward(tree).logits.copy()
    some = target.own.forward(tree, rows=rows).logits.copy()
    assert_same(target, some, expected[-1:] if rows == "last" else expected[:0])


@pytest.mark.parametrize("pair", EVERY)
@pytest.mark.parametrize("threads", [2, 3])
def test_threads_change_nothing(pair: tuple[str, str], threads: int) -> None:
    prompt = tokens(30)
    tree = TokenTree(tokens(9, 1), np.array([-1, 0, 1, 0, 3, 3, 5, 2, 0], np.int16))
    expected = []
    single = shared_target(*pair)
    single.own.truncate(0)
    tree = fitting(single, tree)
    with open_target(*pair, threads=threads) as many:
        for target in (single, many):
            target.own.prefill(prompt)
            expected.append(target.own.forward(tree).logits.copy())
    assert_same(single, expected[1], expected[0])


@pytest.mark.parametrize("model", FEW_MODELS)
@pytest.mark.parametrize("used", isa.available())
def test_instruction_sets_change_nothing(
    model: str, used: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = shared_target("native", model)
    usual.own.truncate(0)
    usual.own.prefill(tokens(20))
    expected = score(usual, tokens(9, 1))
    monkeypatch.setenv("EDGESPEC_ISA", used)
    with open_target("native", model) as target:
        target.own.prefill(tokens(20))
        assert_same(target, score(target, tokens(9, 1)), expected)


def test_truncate_forgets(target: Target) -> None:
    prompt, after = tokens(12), tokens(3, 1)
    target.own.prefill(prompt)
    expected = score(target, after)
    target.own.prefill(tokens(9, 2))
    target.own.truncate(12)
    assert target.own.length == 12
    assert_same(target, score(target, after), expected)


def test_snapshot_and_restore(target: Target) -> None:
    prompt, after = tokens(12), tokens(3, 1)
    target.own.prefill(prompt)
    kept = target.own.snapshot()
    expected = score(target, after)
    target.own.truncate(4)
    target.own.prefill(tokens(20, 2))
    for _ in range(2):  # a snapshot can be used again
        target.own.restore(kept)
        assert target.own.length == 12
        assert_same(target, score(target, after), expected)
        target.own.commit([0, 1, 2])


def test_abandoned_pass_leaves_no_trace(target: Target) -> None:
    target.own.prefill(tokens(6))
    expected = score(target, tokens(3, 1))
    score(target, tokens(17, 2))
    assert target.own.length == 6
    assert_same(target, score(target, tokens(3, 1)), expected)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("vocab", [16, 289, 4_993])
def test_maxima_are_those_of_the_logits(vocab: int, threads: int, tmp_path: Path) -> None:
    """Of the rows that were asked for, in every thread's share, and without padding: that is 0,
    and the last tile's only logit is often below it.
    """
    path = write_gguf(tmp_path / "model.gguf", vocab=vocab, type="Q8_0", ffn=128)
    with open_target("native", path, threads=threads) as target:
        tree = TokenTree.chain(np.arange(7, dtype=np.int32))
        for rows, count in (("all", 7), ("last", 1), ("none", 0)):
            found = target.own.forward(tree, rows=rows)  # type: ignore[arg-type]
            logits, maxima = found.logits, found.maxima
            assert maxima is not None
            assert maxima.shape == (count, -(-vocab // TILE))
            for start in range(0, vocab, TILE):
                largest = logits[:, start : start + TILE].max(axis=1)
                np.testing.assert_array_equal(maxima[:, start // TILE], largest)
