"""The market's compiled calls against the same drafters asked one by one from Python."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgespec.drafting.market.market import Market
from edgespec.drafting.registry import make_drafter
from edgespec.drafting.tree import DraftTree, StepOutcome
from tests.support.draft_trees import TEXTS, VOCABULARY, as_tuple, check_tree, verify

CALLED = ("suffix-automaton", "ngram", "trigram", "copy")
MIXED = ("suffix-automaton", "trigram", "recycling", "jacobi")
"""In the order that they are merged in either way: it decides the order in which nodes are counted.
"""
KIB = 1024
MEMBERS = st.lists(st.sampled_from(CALLED), min_size=1, max_size=4, unique=True)


def both(names: Sequence[str], max_bytes: int = 256 * KIB) -> tuple[Market, Market]:
    made = [
        Market([make_drafter(name, max_bytes) for name in names], compiled=compiled)
        for compiled in (True, False)
    ]
    return made[0], made[1]


def step_both(markets: tuple[Market, Market], text: list[int], room: int) -> None:
    """Both propose the same and learn the same from a made-up target's step."""
    trees = [market.propose(room) for market in markets]
    assert as_tuple(trees[0]) == as_tuple(trees[1])
    check_any_source(trees[0], text[-1], room)
    texts = [list(text), list(text)]
    for market, tree, own in zip(markets, trees, texts, strict=True):
        verify(market, own, tree)
        market.take_seconds()
    assert texts[0] == texts[1]
    text[:] = texts[0]
    one, other = (market.statistics.table for market in markets)
    np.testing.assert_array_equal(one, other)


def check_any_source(tree: DraftTree, root: int, room: int) -> None:
    check_tree(replace(tree, sources=np.minimum(tree.sources, 1)), root, room)


@settings(deadline=None, max_examples=40)
@given(
    names=MEMBERS,
    text=TEXTS,
    more=TEXTS,
    rooms=st.lists(st.integers(0, 20), min_size=1, max_size=12),
)
def test_compiled_calls_propose_the_same(
    names: list[str], text: list[int], more: list[int], rooms: list[int]
) -> None:
    markets = both(names)
    for prompt in (text, more):
        written = list(prompt)
        for market in markets:
            market.reset(prompt)
        for room in rooms:
            step_both(markets, written, room)
        for market in markets:
            market.extend(more)
        written += more
        step_both(markets, written, 8)


@pytest.mark.parametrize("names", [("suffix-automaton", "trigram"), MIXED], ids="+".join)
def test_also_over_long_texts_and_silences(names: tuple[str, ...]) -> None:
    """Stores that are rebuilt when full, tokens that wait to be read, sources that fall silent."""
    markets = both(names, 64 * KIB)
    rng = np.random.default_rng(7)
    text = [1, 2, 3, 1, 2]
    for market in markets:
        market.reset(text)
    few = numba.config.DISABLE_JIT
    for turn in range(20 if few else 400):
        step_both(markets, text, 8)
        new = rng.integers(0, VOCABULARY, int(rng.integers(1, 9))).tolist()
        if turn % 50 == 0:
            new = rng.integers(0, VOCABULARY, 700).tolist()
        for market in markets:
            market.extend(new)
            if turn == 200:
                market.shrink()
        text += new
    ledgers = [market._books.ledger[:, 3:] for market in markets]
    np.testing.assert_array_equal(ledgers[0][:, 1:], ledgers[1][:, 1:])


@settings(deadline=None, max_examples=20)
@given(text=TEXTS, rooms=st.lists(st.integers(0, 12), min_size=1, max_size=12))
def test_also_beside_drafters_that_python_asks(text: list[int], rooms: list[int]) -> None:
    markets = both(MIXED)
    for market in markets:
        market.reset(text)
    for room in rooms:
        step_both(markets, text, room)


def test_a_silent_source_reads_what_it_missed() -> None:
    """And is asked again at every step as soon as it says something of its own."""
    market, _ = both(("suffix-automaton",))
    market.reset([0])
    text, row = [0], market._books.ledger[0]
    rng = np.random.default_rng(5)
    while not row[6]:
        new = rng.integers(0, VOCABULARY, 3).tolist()
        market.propose(2)
        market.observe(outcome_of(new))
        market.extend(new)
        text += new
        assert len(text) < 5000
    for _ in range(100):
        market.propose(8)
        market.observe(outcome_of([7]))
        market.extend([7])
    assert not row[6] and market.propose(8).tokens[1] == 7


def outcome_of(new: list[int]) -> StepOutcome:
    return StepOutcome(DraftTree.root(0), [0], new[-1], new)


WARM = """
import sys
from numba.core.dispatcher import _FunctionCompiler
from edgespec.loading.warm_up import warm_up_drafter

if sys.argv[1] == "warm":
    def refuse(compiler, *_):
        raise AssertionError(f"{compiler.py_func} is compiled again")
    _FunctionCompiler.compile = refuse
for name in ("suffix-automaton", "trigram", "recycling"):
    warm_up_drafter(name)
"""


@pytest.mark.skipif(bool(numba.config.DISABLE_JIT), reason="nothing is compiled")
def test_a_second_start_compiles_nothing() -> None:
    for start in ("cold", "warm"):
        found = subprocess.run(
            [sys.executable, "-c", WARM, start],
            capture_output=True,
            text=True,
            cwd=Path(__file__).parents[2],
            check=False,
        )
        assert found.returncode == 0, found.stderr[-2000:]


def test_new_tokens_of_any_kind_are_read() -> None:
    markets = both(CALLED)
    for market in markets:
        market.reset(np.array([1, 2, 1], np.int32))
        market.extend(np.array([2, 1, 2], np.int32))
        market.extend([np.int64(1)])
    assert as_tuple(markets[0].propose(9)) == as_tuple(markets[1].propose(9))
    assert markets[0].propose(300).tokens[0] == 1
