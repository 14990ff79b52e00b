"""Which nodes of a tree were computed before."""

from __future__ import annotations

from edgespec.system.jit import kernel


@kernel("int32[:]", "int16[:]", "int32[:,:]", "int64", "int32[:]", "int32[:]", result="int64")
def match_nodes(tokens, parents, early, count, slots, new):
    """Fill slots int32 [n] of a tree's nodes: the numbers of those that are among `count` early
    ones, int32 [2+, most] of tokens and parents, and the next numbers for the others, whose places
    in the tree go to `new` [n]; returns how many those are.
    """
    num_new = 0
    for node in range(tokens.shape[0]):
        above = slots[parents[node]] if parents[node] >= 0 else -1
        slot = count + num_new
        for number in range(above + 1, count):
            if early[0, number] == tokens[node] and early[1, number] == above:
                slot = number
                break
        if slot >= count:
            new[num_new] = node
            num_new += 1
        slots[node] = slot
    return num_new
