"""The tokens of one pass in the form llama.cpp takes them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgespec.backends.passes import TokenTree


class Batch:
    """Arrays of one `llama_batch`, allocated once and filled anew for every pass.

    A tree is told by sequences: each leaf is one, and a node belongs to those of all leaves below.
    """

    def __init__(self, api: Any, *, rows: int, nodes: int) -> None:
        self._api = api
        self._tokens = np.zeros(rows, np.int32)
        self._positions = np.zeros(rows, np.int32)
        self._counts = np.ones(rows, np.int32)
        self._members = np.zeros((rows, nodes), np.int32)
        self._addresses = (
            self._members.ctypes.data + self._members.strides[0] * np.arange(rows)
        ).astype(np.uintp)
        self._wanted = np.zeros(rows, np.int8)
        self._struct = api.llama_batch(
            n_tokens=0,
            token=_pointer(self._tokens, ctypes.c_int32),
            embd=None,
            pos=_pointer(self._positions, ctypes.c_int32),
            n_seq_id=_pointer(self._counts, ctypes.c_int32),
            seq_id=_pointer(self._addresses, ctypes.POINTER(ctypes.c_int32)),
            logits=_pointer(self._wanted, ctypes.c_int8),
        )

    @property
    def size_bytes(self) -> int:
        return self._members.nbytes + 8 * self._addresses.size + 13 * self._tokens.size

    def fill_chain(self, tokens: NDArray[np.int32], start: int, sequence: int = 0) -> None:
        """Tokens [n] one after the other from position `start` on, in one sequence."""
        self._put_chain(tokens, start, sequence, 0)
        self._struct.n_tokens = len(tokens)

    def fill_one(self, token: np.int32, position: int, sequence: int) -> None:
        """One token, whose logits are wanted."""
        self._tokens[0], self._positions[0], self._counts[0] = token, position, 1
        self._members[0, 0], self._wanted[0] = sequence, 1
        self._struct.n_tokens = 1

    def fill_tree(
        self, tree: TokenTree, start: int, leaves: Sequence[int], sequences: Sequence[int], row: int
    ) -> None:
        """A tree whose root stands at position `start`, each leaf with its sequence, from a row of
        the batch on; what is filled last ends the batch.
        """
        self._put_chain(tree.tokens, start, sequences[0], row)
        self._struct.n_tokens = row + len(tree)
        if len(leaves) == 1:
            return
        parents = tree.parents.tolist()
        for node, parent in enumerate(parents):
            above = start if parent < 0 else self._positions[row + parent] + 1
            self._positions[row + node] = above
        self._counts[row : row + len(parents)] = 0
        for sequence, leaf in zip(sequences, leaves, strict=True):
            node = leaf
            while node >= 0:
                self._members[row + node, self._counts[row + node]] = sequence
                self._counts[row + node] += 1
                node = parents[node]

    def _put_chain(self, tokens: NDArray[np.int32], start: int, sequence: int, row: int) -> None:
        count = len(tokens)
        if count == 1:  # plain decoding, every step
            self._tokens[row], self._positions[row], self._counts[row] = tokens[0], start, 1
            self._members[row, 0], self._wanted[row] = sequence, 0
            return
        rows = slice(row, row + count)
        self._tokens[rows] = tokens
        self._positions[rows] = np.arange(start, start + count)
        self._counts[rows] = 1
        self._members[rows, 0] = sequence
        self._wanted[rows] = 0

    def want(self, rows: slice) -> None:
        """Ask for the logits of these nodes."""
        self._wanted[rows] = 1

    def run(self, context: Any) -> int:
        """Compute the pass; 0 when it went well."""
        return int(self._api.llama_decode(context, self._struct))


def leaves(tree: TokenTree) -> list[int]:
    """Nodes without children, in order."""
    if len(tree) == 1:
        return [0]
    inner = set(tree.parents.tolist())
    return [node for node in range(len(tree)) if node not in inner]


def _pointer(array: NDArray[Any], kind: Any) -> Any:
    return ctypes.cast(array.ctypes.data, ctypes.POINTER(kind))
