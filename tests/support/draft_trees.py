"""What every proposal must be, texts that are hard on drafters, and steps of a made-up target."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st

from edgespec.drafting.base import Drafter
from edgespec.drafting.tree import DraftTree, StepOutcome, TopTokens

VOCABULARY = 50
TEXTS = st.one_of(
    st.lists(st.integers(0, 1), min_size=1, max_size=40),
    st.lists(st.integers(0, 4), min_size=1, max_size=80),
    st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=40),
    st.builds(
        lambda unit, times: unit * times,
        st.lists(st.integers(0, 9), min_size=1, max_size=7),
        st.integers(1, 9),
    ),
)


def check_tree(tree: DraftTree, root: int, max_nodes: int, source: int = 1) -> None:
    """Parents before children, no siblings alike, tokens and probabilities that exist."""
    assert 1 <= len(tree) <= max_nodes + 1
    assert tree.tokens.dtype == np.int32 and tree.parents.dtype == np.int16
    assert tree.p_accept.dtype == np.float32 and tree.sources.dtype == np.uint8
    assert len(tree.parents) == len(tree.p_accept) == len(tree.sources) == len(tree)
    assert tree.tokens[0] == root and tree.parents[0] == -1
    assert tree.p_accept[0] == 1.0 and tree.sources[0] == 0
    assert all(0 <= tree.parents[node] < node for node in range(1, len(tree)))
    assert np.all((tree.tokens >= 0) & (tree.tokens < VOCABULARY))
    assert np.all((tree.p_accept > 0.0) & (tree.p_accept <= 1.0))
    assert np.all(tree.sources[1:] == source)
    edges = {(int(p), int(t)) for p, t in zip(tree.parents, tree.tokens, strict=True)}
    assert len(edges) == len(tree)


def paths(tree: DraftTree) -> list[float]:
    """The probability of each node's whole path."""
    found = [1.0]
    for node in range(1, len(tree)):
        found.append(found[tree.parents[node]] * float(tree.p_accept[node]))
    return found


def as_tuple(tree: DraftTree) -> tuple[object, ...]:
    parts = (tree.tokens, tree.parents, tree.p_accept, tree.sources)
    return tuple(tuple(part.tolist()) for part in parts)


def children(tree: DraftTree, node: int) -> list[int]:
    """The tokens right below a node, likeliest first."""
    return [int(tree.tokens[c]) for c in range(node + 1, len(tree)) if tree.parents[c] == node]


def top_of(context: Sequence[int], k: int) -> list[int]:
    """What a made-up target thinks likeliest after a context: a function of its last two tokens."""
    last, before = context[-1], context[-2] if len(context) > 1 else 0
    start = (last * 7 + before * 3 + 1) % VOCABULARY
    return [(start + 11 * rank) % VOCABULARY for rank in range(k)]


def step(drafter: Drafter, text: list[int], max_nodes: int) -> StepOutcome:
    """Draft, verify with the made-up target's greedy choice, observe, extend; `text` grows."""
    return verify(drafter, text, drafter.propose(max_nodes))


def verify(drafter: Drafter, text: list[int], tree: DraftTree) -> StepOutcome:
    """The rest of `step`, with any tree below the text's end."""
    contexts = [list(text)]
    for node in range(1, len(tree)):
        contexts.append([*contexts[tree.parents[node]], int(tree.tokens[node])])
    tops = np.array([top_of(context, 8) for context in contexts], np.int32)
    logits = np.tile(np.arange(8, 0, -1, dtype=np.float32), (len(tree), 1))
    path, node, new = [0], 0, []
    while True:
        token = int(tops[node, 0])
        new.append(token)
        below = [c for c in range(node + 1, len(tree)) if tree.parents[c] == node]
        right = [child for child in below if tree.tokens[child] == token]
        if not right:
            break
        node = right[0]
        path.append(node)
    k = drafter.wants_top
    top = TopTokens(tops[:, :k].copy(), logits[:, :k].copy()) if k else None
    outcome = StepOutcome(tree, path, new[-1], new, top)
    drafter.observe(outcome)
    drafter.extend(new)
    text += new
    return outcome
