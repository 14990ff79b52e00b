"""In which order a head's states are made and read in a pass over a tree, once for all heads.

A node's state is made only if it has children, from its parent's, in the sweep that reads it for
the first of them. The child whose own branches take the most buffers goes last and is made in place
of its parent, so that a tree of n nodes takes log2(n) buffers at most.
"""

from __future__ import annotations

from edgespec.backends.native.kernels.recurrent.words import (
    ALL_PENDING,
    APPLIED,
    COMMITTED,
    KEPT,
    NOTHING,
    PARENT,
    PART,
    READER,
    SOURCE,
    TARGET,
)
from edgespec.memory.plan.state_layout import WALK_WORDS
from edgespec.system.jit import inner_kernel, kernel

# Of each node: children, the two largest numbers of buffers that they take, and what it takes.
CHILDREN, BEST, SECOND, NEED = range(4)
# The stack: a node whose state is to be made, from which buffer, into which, and the next free one.
NODE, FROM, TO, FREE = range(4, 8)
SCRATCH_ROWS = WALK_WORDS


@inner_kernel
def _emit(out, place, applied, source, target, reader):
    out[place, APPLIED], out[place, SOURCE] = applied, source
    out[place, TARGET], out[place, READER] = target, reader
    return place + 1


@inner_kernel
def _count_buffers(parents, scratch):
    """How many buffers each node's branch takes, its own included; 0 for a leaf."""
    children, best, second, need = (
        scratch[CHILDREN],
        scratch[BEST],
        scratch[SECOND],
        scratch[NEED],
    )
    for node in range(len(parents)):
        children[node] = best[node] = second[node] = 0
    for node in range(len(parents) - 1, -1, -1):
        own = max(best[node], 1) if children[node] > 0 else 0
        if second[node] > 0:
            own = max(own, second[node] + 1)
        need[node], parent = own, parents[node]
        if parent < 0:
            continue
        children[parent] += 1
        if own > best[parent]:
            best[parent], second[parent] = own, best[parent]
        elif own > second[parent]:
            second[parent] = own


@kernel("int16[:]", "int64", "int64", "int64[:,:]", "int64", "int64[:,:]", result="int64")
def plan_tree(parents, first, num_pending, out, place, scratch):
    """Instructions for a tree whose node 0 is row `first`; returns where the next go."""
    applied = ALL_PENDING if num_pending > 0 else NOTHING
    place = _emit(out, place, applied, COMMITTED, COMMITTED, first)
    _count_buffers(parents, scratch)
    need, stack = scratch[NEED], scratch[NODE:]
    height = 0
    if need[0] > 0:
        stack[0, 0], stack[1, 0], stack[2, 0], stack[3, 0] = 0, COMMITTED, 0, 1
        height = 1
    while height > 0:
        height -= 1
        node, source, target, free = (
            stack[0, height],
            stack[1, height],
            stack[2, height],
            stack[3, height],
        )
        applied, last = first + node, NOTHING
        for child in range(node + 1, len(parents)):
            if parents[child] != node:
                continue
            place = _emit(out, place, applied, source, target, first + child)
            applied, source = NOTHING, target
            if need[child] > 0 and (last == NOTHING or need[child] > need[last]):
                last = child
        if last == NOTHING:
            continue
        stack[0, height], stack[1, height] = last, target
        stack[2, height], stack[3, height] = target, free
        height += 1
        for child in range(node + 1, len(parents)):
            if parents[child] == node and need[child] > 0 and child != last:
                stack[0, height], stack[1, height] = child, target
                stack[2, height], stack[3, height] = free, free + 1
                height += 1
    return place


@kernel("int64", "int64", "int64", "int64[:,:]", "int64", result="int64")
def plan_chain(num_rows, first, num_pending, out, place):
    """Instructions that take all rows of a chain, from `first` on, into the state; returns where
    the next go.
    """
    if num_pending > 0:
        reader = first if num_rows > 0 else NOTHING
        place = _emit(out, place, ALL_PENDING, COMMITTED, COMMITTED, reader)
    elif num_rows > 0:
        place = _emit(out, place, NOTHING, COMMITTED, COMMITTED, first)
    for row in range(first, first + num_rows):
        reader = row + 1 if row + 1 < first + num_rows else NOTHING
        place = _emit(out, place, row, COMMITTED, COMMITTED, reader)
    return place


@kernel("int16[:]", "int64", "int64", "int64[:]", "int64", "int64", "int64[:,:]")
def describe_rows(parents, first, part, slots, kept, kept_bytes, out):
    """Words of a tree's nodes, rows from `first` on: `slots` [n] of what is kept of them, -1 for
    nothing, in rows of so many bytes from the address `kept` on.
    """
    for node in range(len(parents)):
        out[first + node, PARENT] = first + parents[node] if parents[node] >= 0 else NOTHING
        out[first + node, PART] = part
        out[first + node, KEPT] = kept + slots[node] * kept_bytes if slots[node] >= 0 else 0
