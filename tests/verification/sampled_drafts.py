"""A target and a drafter whose next token depends on the last, and many texts drawn with both."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from naive_rejection import distribution
from numpy.typing import NDArray

from edgespec.verification.noise import gumbel_noise
from edgespec.verification.rejection.rejection_verifier import RejectionVerifier
from edgespec.verification.sampling import SamplingParams

ROOT = 0
PLAIN = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=5)
TARGET = np.array(
    [[0.5, 0.4, 0.0, 0.1], [0.1, 0.1, 0.2, 0.6], [0.0, 0.5, 0.5, 0.0], [0.7, 0.2, 0.1, 0.0]]
)
DRAFT = np.array(
    [[0.1, 0.4, 0.5, 0.0], [0.6, 0.2, 0.1, 0.1], [0.8, 0.1, 0.05, 0.05], [0.05, 0.05, 0.1, 0.8]]
)
with np.errstate(divide="ignore"):
    LOGITS = np.log(TARGET).astype(np.float32)
Probs = NDArray[np.float64]
Draw = Callable[[Probs, int, int], Sequence[int]]
"""The drafter's probabilities [vocab], how many siblings, the position -> siblings in order."""


def without_replacement(probs: Probs, count: int, position: int) -> Sequence[int]:
    """Gumbel-top-k, with the noise that plain sampling would use; padded with what has no chance"""
    noise = gumbel_noise(PLAIN.seed, position, np.arange(len(probs)))
    with np.errstate(divide="ignore"):
        order: list[int] = np.argsort(-(np.log(probs) + noise), kind="stable").tolist()
    return order[:count]


def with_replacement(probs: Probs, count: int, position: int) -> Sequence[int]:
    noise = gumbel_noise(PLAIN.seed, position, np.arange(count * len(probs)))
    with np.errstate(divide="ignore"):
        tokens: list[int] = (np.log(probs) + noise.reshape(count, -1)).argmax(1).tolist()
    return tokens


def tree_of(
    draft: Probs, root: int, position: int, shape: Sequence[int], draw: Draw
) -> tuple[NDArray[np.int32], NDArray[np.int16]]:
    """Tokens and parents of a tree with `shape[depth]` children below every node of a depth."""
    tokens, parents, first = [root], [-1], 0
    for depth, count in enumerate(shape):
        last = len(tokens)
        for node in range(first, last):
            children = draw(draft[tokens[node]], count, position + depth + 1)
            tokens += children
            parents += [node] * len(children)
        first = last
    return np.array(tokens, np.int32), np.array(parents, np.int16)


def texts(
    logits: NDArray[np.float32],
    draft: Probs,
    shape: Sequence[int],
    num_texts: int,
    *,
    replacement: bool = False,
    draw: Draw | None = None,
    params: SamplingParams = PLAIN,
) -> tuple[NDArray[np.int64], float]:
    """How often each pair of first tokens came, [vocab, vocab], in texts drawn from logits [vocab,
    vocab] and draft [vocab, vocab]; and how often the first of them was a draft.
    """
    verifier = RejectionVerifier(len(draft), params, with_replacement=replacement)
    draw = draw or (with_replacement if replacement else without_replacement)
    counts = np.zeros(draft.shape, np.int64)
    num_accepted = 0
    for number in range(num_texts):
        start, text = 3 * number, [ROOT]
        while len(text) < 3:
            position = start + len(text) - 1
            tokens, parents = tree_of(draft, text[-1], position, shape, draw)
            verdict = verifier.verify(
                logits[tokens], tokens, parents, draft[tokens], text, position
            )
            num_accepted += len(text) == 1 and len(verdict.path) > 1
            text += [*tokens[verdict.path[1:]].tolist(), verdict.bonus]
        counts[text[1], text[2]] += 1
    return counts, num_accepted / num_texts


def exact_pairs(logits: NDArray[np.float32], params: SamplingParams = PLAIN) -> Probs:
    """The probability of each pair of first tokens, [vocab, vocab]."""
    first = distribution(logits[ROOT], [ROOT], params)
    second = [distribution(row, [ROOT, token], params) for token, row in enumerate(logits)]
    return first[:, None] * np.array(second)


def distance(counts: NDArray[np.int64], exact: Probs) -> float:
    """Half the sum of differences: the total variation."""
    return float(abs(counts / counts.sum() - exact).sum() / 2)


def bound(num_samples: int, exact: Probs, chance: float = 1e-6) -> float:
    """What the distance of that many samples from their own distribution exceeds with `chance`.

    Its mean is at most half the sum of the frequencies' standard deviations, and as one sample
    moves it by 1 / n, it is t above its mean with probability exp(-2 n t**2) (McDiarmid).
    """
    mean = np.sqrt(exact * (1 - exact) / num_samples).sum() / 2
    return float(mean + math.sqrt(-math.log(chance) / (2 * num_samples)))
