"""A target that is a function of the whole text, and the decode loop in its shortest form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from edgespec.drafting.tree import DraftTree
from edgespec.verification.match import Verifier
from edgespec.verification.sampling import SamplingParams

Propose = Callable[[list[int]], DraftTree]


class ScriptedTarget:
    """Logits from a hash of the last `memory` tokens: few make a repetitive text."""

    def __init__(self, vocab_size: int, memory: int, spread: float = 3.0) -> None:
        self.vocab_size = vocab_size
        self.memory = memory
        self.spread = spread

    def row(self, text: Sequence[int]) -> NDArray[np.float32]:
        seen = np.array(text[-self.memory :], np.int64).tobytes()
        seed = int.from_bytes(blake2b(seen, digest_size=8).digest(), "little")
        rng = np.random.default_rng(seed)
        return (rng.standard_normal(self.vocab_size) * self.spread).astype(np.float32)

    def forward(self, text: Sequence[int], tree: DraftTree) -> NDArray[np.float32]:
        """Logits [n, vocab] of a tree whose root is the text's last token."""
        contexts: list[list[int]] = [list(text)]
        for node in range(1, len(tree)):
            contexts.append([*contexts[tree.parents[node]], int(tree.tokens[node])])
        return np.stack([self.row(context) for context in contexts])


def decode(
    target: ScriptedTarget,
    prompt: Sequence[int],
    num_tokens: int,
    params: SamplingParams,
    propose: Propose,
) -> tuple[list[int], int]:
    """The reply's tokens and the number of steps they took."""
    text = list(prompt)
    verifier = Verifier(target.vocab_size, params, 64)
    steps = 0
    while len(text) < len(prompt) + num_tokens:
        tree = propose(text)
        logits = target.forward(text, tree)
        path, bonus = verifier.verify(logits, tree.tokens, tree.parents, text, len(text) - 1)
        text += [int(tree.tokens[node]) for node in path[1:]] + [bonus]
        steps += 1
    return text[len(prompt) : len(prompt) + num_tokens], steps


def plain(text: list[int]) -> DraftTree:
    """No draft: plain decoding by the same code."""
    return DraftTree.root(text[-1])
