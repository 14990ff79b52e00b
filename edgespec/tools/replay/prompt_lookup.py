"""Prompt lookup as others ship it, to be compared with.

"Prompt Lookup Decoding" (Saxena), with the settings it was published with and as Hugging Face
Transformers documents it (`prompt_lookup_num_tokens`, `max_matching_ngram_size`): the text's last
three tokens, or else two, or one, are looked for in the text from its beginning, and the ten tokens
after the first place that has any are the draft.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgespec.drafting.base import Drafter
from edgespec.drafting.tree import DraftTree
from edgespec.errors import OptionError
from edgespec.system.jit import kernel

NUM_TOKENS = 10
LONGEST_MATCH = 3


@kernel("int32[:]", "int64", "int64", result="int64")
def first_match(text: NDArray[np.int32], length: int, longest: int) -> int:
    """Where the tokens after the first earlier copy of the text's end begin; -1 if nowhere."""
    for size in range(min(longest, length - 1), 0, -1):
        for start in range(length - size):
            same = 0
            while same < size and text[start + same] == text[length - size + same]:
                same += 1
            if same == size:
                return start + size
    return -1


class PromptLookupDrafter(Drafter):
    """Proposes one chain: what followed the first copy of the text's last tokens.

    It asks for its own ten tokens, whatever the budget of nodes. Its text grows without a cap: it
    is here to be compared with, not to be used.
    """

    name = "prompt-lookup"

    def __init__(self) -> None:
        self._text = np.zeros(1024, np.int32)
        self._length = 0

    def reset(self, tokens: Sequence[int] | NDArray[np.int32]) -> None:
        self._length = 0
        self.extend(tokens)

    def extend(self, tokens: Sequence[int] | NDArray[np.int32]) -> None:
        end = self._length + len(tokens)
        if end > len(self._text):
            grown = np.zeros(2 * end, np.int32)
            grown[: self._length] = self._text[: self._length]
            self._text = grown
        self._text[self._length : end] = tokens
        self._length = end

    def propose(self, max_nodes: int) -> DraftTree:
        if not self._length:
            raise OptionError("a drafter has no text to continue; call reset() first")
        root = int(self._text[self._length - 1])
        start = first_match(self._text, self._length, LONGEST_MATCH)
        if start < 0:
            return DraftTree.root(root)
        tokens = self._text[start : min(start + min(NUM_TOKENS, max_nodes), self._length)].tolist()
        return DraftTree.chain(root, tokens, [1.0] * len(tokens), 1)

    @property
    def size_bytes(self) -> int:
        return self._text.nbytes
