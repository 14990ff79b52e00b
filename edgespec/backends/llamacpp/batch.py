"""The tokens of one pass in the form llama.cpp takes them."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgespec.backends.base import TokenTree


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

    def fill_chain(self, tokens: NDArray[np.int32], start: int) -> None:
        """Tokens [n] one after the other from position `start` on, in sequence 0."""
        count = len(tokens)
        self._struct.n_tokens = count
        if count == 1:  # plain decoding, every step
            self._tokens[0], self._positions[0], self._counts[0] = tokens[0], start, 1
            self._members[0, 0] = self._wanted[0] = 0
            return
        self._tokens[:count] = tokens
        self._positions[:count] = np.arange(start, start + count)
        self._counts[:count] = 1
        self._members[:count, 0] = 0
        self._wanted[:count] = 0

    def fill_tree(self, tree: TokenTree, start: int) -> list[int]:
        """A tree whose root stands at position `start`; returns the leaf of each sequence."""
        self.fill_chain(tree.tokens, start)
        if len(tree) == 1:
            return [0]
        parents = tree.parents.tolist()
        inner = set(parents)
        leaves = [node for node in range(len(parents)) if node not in inner]
        if len(leaves) == 1:
            return leaves
        for node, parent in enumerate(parents):
            self._positions[node] = start if parent < 0 else self._positions[parent] + 1
        self._counts[: len(parents)] = 0
        for sequence, leaf in enumerate(leaves):
            node = leaf
            while node >= 0:
                self._members[node, self._counts[node]] = sequence
                self._counts[node] += 1
                node = parents[node]
        return leaves

    def want(self, rows: slice) -> None:
        """Ask for the logits of these nodes."""
        self._wanted[rows] = 1

    def run(self, context: Any) -> int:
        """Compute the pass; 0 when it went well."""
        return int(self._api.llama_decode(context, self._struct))


def _pointer(array: NDArray[Any], kind: Any) -> Any:
    return ctypes.cast(array.ctypes.data, ctypes.POINTER(kind))
