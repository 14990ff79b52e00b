"""What holds for every drafter, whatever it is fed."""

from __future__ import annotations

import os
import subprocess
import sys
import tracemalloc
from importlib import import_module
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgespec.drafting.base import Drafter
from edgespec.drafting.registry import DRAFTERS
from edgespec.errors import OptionError
from tests.support.draft_trees import TEXTS, VOCABULARY, as_tuple, check_tree, paths, step

SMALLEST = 64 * 1024


def make(name: str, max_bytes: int = 2**18) -> Drafter:
    module, kind = DRAFTERS[name]
    made: Drafter = getattr(import_module(f"edgespec.drafting.{module}"), kind)(max_bytes)
    return made


@pytest.fixture(scope="module", params=list(DRAFTERS))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_names_are_the_drafters_own(name: str) -> None:
    assert make(name).name == name


@settings(max_examples=25, deadline=None)
@given(text=TEXTS, rooms=st.lists(st.integers(0, 20), min_size=1, max_size=8))
def test_proposals_are_trees_best_path_first(name: str, text: list[int], rooms: list[int]) -> None:
    drafter = make(name)
    drafter.reset(text)
    for room in rooms:
        tree = drafter.propose(room)
        check_tree(tree, text[-1], room)
        order = paths(tree)
        assert all(a >= b * (1 - 1e-5) for a, b in zip(order, order[1:], strict=False))
        smaller = drafter.propose(room // 2)
        assert as_tuple(tree.take(len(smaller))) == as_tuple(smaller)
        step(drafter, text, room)
        assert drafter.size_bytes <= 2**18


@settings(max_examples=20, deadline=None)
@given(text=TEXTS, more=TEXTS, asked=st.lists(st.integers(0, 12), max_size=4))
def test_proposing_changes_nothing(
    name: str, text: list[int], more: list[int], asked: list[int]
) -> None:
    one, other = make(name), make(name)
    for drafter in (one, other):
        drafter.reset(text)
    for room in asked:
        one.propose(room)
    for drafter in (one, other):
        drafter.extend(more)
    assert as_tuple(one.propose(12)) == as_tuple(other.propose(12))


@settings(max_examples=20, deadline=None)
@given(text=TEXTS, cuts=st.lists(st.integers(0, 80), max_size=5))
def test_extending_in_pieces_is_extending_at_once(
    name: str, text: list[int], cuts: list[int]
) -> None:
    whole, parts = make(name), make(name)
    whole.reset(text[:1])
    parts.reset(text[:1])
    whole.extend(text[1:])
    places = sorted({1, len(text), *(min(max(cut, 1), len(text)) for cut in cuts)})
    for begin, end in zip(places, places[1:], strict=False):
        parts.extend(text[begin:end])
        parts.propose(4)
    assert as_tuple(whole.propose(12)) == as_tuple(parts.propose(12))


@settings(max_examples=20, deadline=None)
@given(first=TEXTS, text=TEXTS)
def test_a_text_is_forgotten_by_reset(name: str, first: list[int], text: list[int]) -> None:
    """What the target taught may stay, and how often proposals were right; what was read not."""
    used, new = make(name), make(name)
    used.reset([VOCABULARY - 1, *first])
    used.propose(8)
    if name != "trigram":  # what follows a prompt is the target's, and its matrix describes that
        used.extend(first)
    used.reset(text)
    new.reset(text)
    assert as_tuple(used.propose(12)) == as_tuple(new.propose(12))


def test_two_of_a_kind_propose_the_same(name: str) -> None:
    found = []
    for _ in range(2):
        drafter, text = make(name), [1, 2, 3, 1, 2]
        drafter.reset(text)
        found.append([as_tuple(step(drafter, text, 8).tree) for _ in range(60)])
    assert found[0] == found[1]


def test_a_store_that_shrank_holds_less_and_works_on(name: str) -> None:
    drafter, text = make(name, 2**20), [1, 2, 3, 1, 2]
    drafter.reset(text)
    for _ in range(100):
        step(drafter, text, 8)
    for _ in range(8):
        before = drafter.size_bytes
        given = drafter.shrink()
        assert drafter.size_bytes == before - given
        check_tree(drafter.propose(8), text[-1], 8)
        step(drafter, text, 8)
    assert drafter.size_bytes <= 2**20
    drafter.reset(text)
    step(drafter, text, 8)


STREAMS: dict[str, Any] = {
    "identical": lambda n, rng: np.full(n, 7),
    "alternating": lambda n, rng: np.arange(n) % 2,
    "random": lambda n, rng: rng.integers(0, 50_000, n),
    "rising": lambda n, rng: np.arange(n) % 200_000,
    "skewed": lambda n, rng: rng.zipf(1.3, n).clip(0, 50_000),
}


def hold_the_cap(name: str, stream: str, num_tokens: int) -> None:
    """Feed a stream and look at what the drafter says it holds and at what is allocated."""
    text = STREAMS[stream](num_tokens, np.random.default_rng(1)).astype(np.int32)
    warm = make(name, SMALLEST)
    warm.reset([1, 2])
    warm.propose(8)
    warm.extend([1, 2])
    warm.propose(8)  # all is compiled before anything is counted
    del warm
    cap = 300_000
    tracemalloc.start()
    drafter = make(name, cap)
    drafter.reset(text[: num_tokens // 2])
    largest = drafter.size_bytes
    for begin in range(num_tokens // 2, num_tokens, 701):
        drafter.extend(text[begin : begin + 701].tolist())
        largest = max(largest, drafter.size_bytes)
        if begin % 7 == 0:
            tree = drafter.propose(8)
            assert tree.tokens[0] == text[min(begin + 701, num_tokens) - 1]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert largest <= cap
    assert peak <= cap + 60_000  # Python's own objects, the trees, the piece that is being fed


@pytest.mark.parametrize("stream", STREAMS)
def test_the_cap_holds(name: str, stream: str) -> None:
    hold_the_cap(name, stream, 3_000 if numba.config.DISABLE_JIT else 40_000)


@pytest.mark.slow
@pytest.mark.skipif(bool(numba.config.DISABLE_JIT), reason="takes hours uncompiled")
@pytest.mark.parametrize("stream", STREAMS)
def test_the_cap_holds_for_a_million_tokens(name: str, stream: str) -> None:
    hold_the_cap(name, stream, 1_000_000)


def test_a_prompt_longer_than_the_smallest_store(name: str) -> None:
    drafter = make(name, SMALLEST)
    drafter.reset(np.arange(10_000, dtype=np.int32) % VOCABULARY)
    assert drafter.size_bytes <= SMALLEST
    check_tree(drafter.propose(8), 9_999 % VOCABULARY, 8)


def test_misuse_is_explained(name: str) -> None:
    with pytest.raises(OptionError, match="give it 65536 or"):
        make(name, 1000)
    with pytest.raises(OptionError, match="call reset"):
        make(name).propose(3)


@pytest.mark.skipif(bool(numba.config.DISABLE_JIT), reason="is what this test starts")
def test_the_same_with_the_jit_off() -> None:
    """Kernels are ordinary Python too, and say the same; what many tokens take is left out."""
    folder = Path(__file__).parent
    short = "not cap and not resident and not bounded and not drawn_as"
    found = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", short, str(folder)],
        capture_output=True,
        text=True,
        cwd=folder.parents[1],
        env=os.environ | {"NUMBA_DISABLE_JIT": "1"},
        check=False,
    )
    assert found.returncode == 0, found.stdout[-3000:] + found.stderr[-1000:]
