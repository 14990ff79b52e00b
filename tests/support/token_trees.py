"""Random token trees."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from edgespec.backends.passes import TokenTree
from tests.support.targets import VOCAB


@st.composite
def parents(draw: st.DrawFn, max_nodes: int) -> list[int]:
    """Parents of a tree: chains, bushes and stars alike, because recent nodes are likelier."""
    count = draw(st.integers(1, max_nodes))
    result = [-1]
    for node in range(1, count):
        back = draw(st.one_of(st.just(1), st.integers(1, node)))
        result.append(node - back)
    return result


@st.composite
def token_trees(draw: st.DrawFn, max_nodes: int) -> TokenTree:
    """A tree of up to `max_nodes` nodes with any tokens."""
    shape = draw(parents(max_nodes))
    ids = draw(st.lists(st.integers(0, VOCAB - 1), min_size=len(shape), max_size=len(shape)))
    return TokenTree(np.array(ids, np.int32), np.array(shape, np.int16))


def path_to(tree: TokenTree, node: int) -> list[int]:
    """Nodes from the root down to this one."""
    path = [node]
    while tree.parents[path[0]] >= 0:
        path.insert(0, int(tree.parents[path[0]]))
    return path
