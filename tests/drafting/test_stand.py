from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgespec.drafting.tables.stand import StandDrafter
from edgespec.drafting.tree import StepOutcome, TopTokens
from edgespec.verification.match import verify
from edgespec.verification.noise import gumbel_noise
from edgespec.verification.sampling import SamplingParams
from edgespec.verification.top import top_tokens
from tests.support.draft_trees import TEXTS, children, step

VOCABULARY = 40


@settings(max_examples=40, deadline=None)
@given(text=TEXTS, rooms=st.lists(st.integers(0, 12), min_size=1, max_size=10))
def test_the_longest_known_context_speaks_first(text: list[int], rooms: list[int]) -> None:
    """Against a plain dictionary, greedy: the best child is the best token of the best context."""
    drafter = StandDrafter()
    drafter.reset(text)
    known: dict[tuple[int, ...], list[int]] = {}
    for room in rooms:
        found = children(drafter.propose(12), 0)
        contexts = [tuple(text[-n:]) for n in (3, 2, 1) if n <= len(text)]
        tops = [known[context] for context in contexts if context in known]
        assert found[:1] == ([tops[0][0]] if tops else [])
        assert set(found) <= {token for top in tops for token in top}
        before = list(text)
        outcome = step(drafter, text, room)
        tree, top = outcome.tree, outcome.top
        assert top is not None
        lines = [before]
        for node in range(1, len(tree)):
            lines.append([*lines[tree.parents[node]], int(tree.tokens[node])])
        for node in reversed(range(len(tree))):
            for n in range(1, min(3, len(lines[node])) + 1):
                known[tuple(lines[node][-n:])] = top.tokens[node].tolist()


def logits_after(token: int) -> np.ndarray:
    return np.random.default_rng(token).normal(0.0, 2.0, VOCABULARY).astype(np.float32)


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.2])
@pytest.mark.parametrize("cuts", [(0, 1.0, 0.0), (5, 1.0, 0.0), (0, 0.8, 0.0), (0, 1.0, 0.3)])
def test_drafts_are_what_the_target_draws(
    temperature: float, cuts: tuple[int, float, float]
) -> None:
    """A target that looks at one token is known after it has said each once: nearly every draft
    among the likeliest is then its own sample, at any temperature and seed.
    """
    top_k, top_p, min_p = cuts
    drafter = StandDrafter()
    for token in range(VOCABULARY):
        tops = TopTokens(*top_tokens(logits_after(token)[None], drafter.wants_top))
        drafter.reset([token])
        drafter.observe(StepOutcome(drafter.propose(0), [0], 0, [0], tops))
    right = asked = 0
    for seed in range(40):
        params = SamplingParams(temperature, top_k, top_p, min_p, seed=seed)
        drafter.begin(params)
        text = [seed % VOCABULARY]
        drafter.reset(text)
        for _ in range(8):
            tree = drafter.propose(1)
            row = logits_after(text[-1])
            chosen = verify(
                row[None], np.array(text[-1:], np.int32), np.array([-1], np.int16), text, params,
                len(text) - 1,
            ).bonus  # fmt: skip
            if chosen in np.argsort(-row)[: drafter.wants_top]:
                asked += 1
                right += children(tree, 0) == [chosen]
            text.append(chosen)
            drafter.extend([chosen])
    assert asked > 100
    # Eight logits tell what top-p leaves of a row only roughly.
    assert right >= (0.8 if temperature > 0.0 and top_p < 1.0 else 0.99) * asked


def test_the_second_token_gets_the_noise_of_its_own_position() -> None:
    drafter = StandDrafter()
    params = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=11)
    for token in (1, 2):
        drafter.reset([token])
        tops = TopTokens(np.array([[1, 2, 3]], np.int32), np.array([[0.0, 0.0, -60.0]], np.float32))
        drafter.observe(StepOutcome(drafter.propose(0), [0], 1, [1], tops))
    drafter.begin(params)
    drafter.reset([5, 5, 1])
    tree = drafter.propose(2)
    for depth in (1, 2):
        noise = gumbel_noise(11, 2 + depth, [1, 2])
        assert tree.tokens[depth] == 1 + int(np.argmax(noise))


def test_logits_that_are_no_numbers_do_no_harm() -> None:
    drafter = StandDrafter()
    drafter.reset([1])
    tops = TopTokens(
        np.array([[3, 4, 5]], np.int32), np.array([[np.nan, 1.0, -np.inf]], np.float32)
    )
    drafter.observe(StepOutcome(drafter.propose(0), [0], 3, [3], tops))
    drafter.reset([1])
    tree = drafter.propose(8)
    assert np.all(np.isfinite(tree.p_accept))
