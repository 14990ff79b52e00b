"""The tree of what may come: what it holds, what is looked behind next, what a verdict leaves."""

from __future__ import annotations

import random

from edgespec.drafting.model.guesses import LEAST, MOST, Guesses, _num_nodes
from edgespec.drafting.model.model_drafter import NOBODY, Draw
from edgespec.drafting.model.small_model import branches


def grown(seed: int, steps: int, root: int = 9) -> Guesses:
    """A tree of random answers."""
    rng, guesses = random.Random(seed), Guesses(root)
    for _ in range(steps):
        for node in guesses.next(rng.randrange(8)):
            node.asked = True
            first, second = rng.sample(range(50), 2)
            chance = rng.uniform(0.3, 0.95)
            guesses.grow(node, Draw(first, second, 0), chance, (1 - chance) * rng.random())
    return guesses


def test_likeliest_paths_come_first_and_parents_before_children() -> None:
    for seed in range(20):
        guesses = grown(seed, 12)
        tree = guesses.tree(10, source=3)
        assert tree.tokens[0] == 9 and tree.parents[0] == -1 and tree.sources[0] == 0
        chances = [1.0]
        for node in range(1, len(tree)):
            assert tree.parents[node] < node
            chances.append(chances[tree.parents[node]] * float(tree.p_accept[node]))
        assert chances == sorted(chances, reverse=True)
        whole = guesses.tree(MOST, source=3)
        assert len(whole) - 1 == guesses.size
        assert tree.tokens.tolist() == whole.tokens[:11].tolist()


def test_the_next_are_the_likeliest_that_were_not_asked() -> None:
    for seed in range(20):
        guesses = grown(seed, 4)
        waiting = {node: chance for node, chance in guesses._nodes() if not node.asked}
        first, *others = guesses.next(7)
        assert waiting[first] == max(waiting.values()) > LEAST
        assert _num_nodes([guesses.path(node) for node in (first, *others)]) <= 7
        assert guesses.next(0) == [first]
        assert guesses.next(7, least=1.0) == []


def test_a_verdict_keeps_what_is_still_possible() -> None:
    for seed in range(20):
        rng, guesses = random.Random(seed), grown(seed, 12)
        leaf = rng.choice([node for node, _ in guesses._nodes()])
        elsewhere = [node for node, _ in guesses._nodes()]
        path = guesses.path(leaf)
        told = guesses.advance(path)
        assert [token for _, token in told] == path
        assert guesses.root is leaf
        kept = {id(node) for node, _ in guesses._nodes()}
        for node in elsewhere:
            assert guesses.holds(node) == (id(node) in kept)
            assert (guesses.chance(node) > 0.0) == (id(node) in kept)
        guesses.advance([1000])
        assert guesses.size == 0 and guesses.root.token == 1000


def test_a_runner_up_that_is_nobody_is_left_out() -> None:
    guesses = Guesses(1)
    guesses.grow(guesses.root, Draw(5, NOBODY, 0), 0.9, 0.0)
    assert guesses.tree(4, 1).tokens.tolist() == [1, 5]


def test_paths_become_one_tree() -> None:
    assert branches([[1, 2], [1, 3], [4]]) == ([1, 2, 3, 4], [-1, 0, 0, -1], [1, 2, 3])
    assert branches([[]]) == ([], [], [-1])
    assert _num_nodes([[1, 2], [1, 3], [1, 2, 4]]) == 3
