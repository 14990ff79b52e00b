"""What is left of a tree for a target that scores chains only."""

from __future__ import annotations

import numpy as np
from hypothesis import given

from edgespec.backends.passes import TokenTree
from edgespec.drafting.tree import DraftTree
from tests.support.token_trees import token_trees


@given(tree=token_trees(20))
def test_best_chain_follows_first_children(tree: TokenTree) -> None:
    count = len(tree)
    p_accept = np.linspace(1, 0.1, count).astype(np.float32)
    sources = np.arange(count, dtype=np.uint8)
    chain = DraftTree(tree.tokens, tree.parents, p_accept, sources).best_chain()
    expected, parents = [0], tree.parents.tolist()
    while expected[-1] in parents:
        expected.append(parents.index(expected[-1]))
    assert chain.sources.tolist() == expected
    assert chain.tokens.tolist() == tree.tokens[expected].tolist()
    assert chain.p_accept.tolist() == p_accept[expected].tolist()
    assert chain.parents.tolist() == list(range(-1, len(expected) - 1))
