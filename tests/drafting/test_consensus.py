from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgespec.drafting.rates import RATE
from edgespec.drafting.tables.consensus import ConsensusDrafter, ConsensusPool, ConsensusPools
from edgespec.errors import OptionError
from tests.support.draft_trees import children

PROMPT = [40, 41, 42]
REPLIES = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=12), min_size=1, max_size=5)


def naive_children(
    replies: Sequence[Sequence[int]], text: list[int], rates: Sequence[float]
) -> dict[int, float]:
    """Votes of whole replies by brute force; few enough tokens that none is crowded out."""
    found: dict[int, float] = {}
    left = 1.0
    for order in range(min(4, len(text)), 0, -1):
        votes: dict[int, set[int]] = {}
        for voter, reply in enumerate(replies):
            whole = [*PROMPT, *reply]
            for end in range(len(PROMPT), len(whole)):
                if end >= order and whole[end - order : end] == text[-order:]:
                    votes.setdefault(whole[end], set()).add(voter)
        total = sum(map(len, votes.values()))
        new = {
            token: rates[(order - 1) * 3 + (0 if len(who) <= 1 else 1 if len(who) <= 3 else 2)]
            * left
            * len(who)
            / total
            for token, who in votes.items()
            if token not in found
        }
        found |= new
        left -= sum(new.values())
    return found


@settings(max_examples=60, deadline=None)
@given(replies=REPLIES, side_by_side=st.booleans())
def test_votes_are_counted_by_reply(replies: list[list[int]], side_by_side: bool) -> None:
    """Replies one after the other, or in turns, token by token, over a shared pool."""
    if side_by_side:
        pools = ConsensusPools()
        drafters = [ConsensusDrafter(pools=pools) for _ in replies]
        for drafter in drafters:
            drafter.reset(PROMPT)
        for place in range(12):
            for drafter, reply in zip(drafters, replies, strict=True):
                drafter.extend(reply[place : place + 1])
                drafter.propose(2)
        drafter = drafters[-1]
    else:
        drafter = ConsensusDrafter()
        for reply in replies:
            drafter.reset(PROMPT)
            drafter.extend(reply)
    text = [*PROMPT, *replies[-1]]
    expected = naive_children(replies, text, drafter._rates[:, RATE].tolist())
    tree = drafter.propose(200)
    found = {
        int(tree.tokens[c]): float(tree.p_accept[c])
        for c in range(1, len(tree))
        if tree.parents[c] == 0
    }
    least, most = ({token for token, p in expected.items() if p > 0.01 * x} for x in (1.001, 0.999))
    assert least <= set(found) <= most
    for token, p_accept in found.items():
        assert p_accept == pytest.approx(expected[token], rel=1e-5)


def test_a_second_reply_to_a_prompt_is_drafted_from_the_first() -> None:
    drafter = ConsensusDrafter()
    drafter.reset(PROMPT)
    drafter.extend([1, 2, 3, 4])
    drafter.reset(PROMPT)
    assert drafter.propose(4).tokens.tolist() == [42, 1, 2, 3, 4]
    drafter.reset([*PROMPT[:-1], 9, 42])
    assert len(drafter.propose(4)) == 1


def test_what_more_replies_say_comes_first() -> None:
    drafter = ConsensusDrafter()
    drafter.reset(PROMPT)
    for reply in ([5, 1], [6, 2], [6, 3], [5, 5, 5, 5]):
        drafter.hear_sibling(PROMPT, reply)
    drafter.hear_sibling(PROMPT, [6, 1])
    assert children(drafter.propose(8), 0)[:2] == [6, 5]


def test_more_replies_than_votes_have_bits() -> None:
    drafter = ConsensusDrafter(64 * 1024)
    for reply in range(70):
        drafter.reset(PROMPT)
        drafter.extend([reply % 3, 7])
        drafter.propose(4)
    drafter.reset(PROMPT)
    assert sorted(children(drafter.propose(8), 0)) == [0, 1, 2]


def test_a_pool_without_room_is_refused() -> None:
    with pytest.raises(OptionError, match="holds nothing"):
        ConsensusPool(100)
