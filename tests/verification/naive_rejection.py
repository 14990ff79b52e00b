"""Rejection sampling in fractions, and the law of what it emits: the oracle of the kernels."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction

import naive
import numpy as np
from numpy.typing import NDArray

from edgespec.verification.sampling import SamplingParams

Law = Sequence[Fraction]
Rule = Callable[[Law, Law, Sequence[int]], tuple[list[Fraction], Law]]
"""p, q and the siblings -> the probability that each is accepted when it is its turn, and the
residual.
"""


def position_key(seed: int, position: int) -> int:
    """The key of the noise that plain sampling adds to logits."""
    word = naive.mix((int(seed) + naive.GAMMA) & naive.WORD) + (position + 1) * naive.GAMMA
    return naive.mix(word & naive.WORD)


def uniform(key: int, number: int) -> float:
    word = (int(key) + (number + 1) * naive.GAMMA) & naive.WORD
    return ((naive.mix(word) >> 12) + 0.5) * 2.0**-52


def normalised(weights: Law) -> Law:
    total = sum(weights)
    return [weight / total for weight in weights] if total else weights


def recursive(target: Law, draft: Law, siblings: Sequence[int]) -> tuple[list[Fraction], Law]:
    chances = []
    for token in siblings:
        if not draft[token]:
            chances.append(Fraction(0))
            continue
        chances.append(min(Fraction(1), target[token] / draft[token]))
        target = normalised([max(Fraction(0), p - q) for p, q in zip(target, draft, strict=True)])
        draft = normalised([q if other != token else Fraction(0) for other, q in enumerate(draft)])
    return chances, target


def beta(target: Law, draft: Law, rho: Fraction) -> Fraction:
    return sum((min(q, p / rho) for p, q in zip(target, draft, strict=True)), Fraction(0))


def k_seq(rho: Fraction) -> Rule:
    def rule(target: Law, draft: Law, siblings: Sequence[int]) -> tuple[list[Fraction], Law]:
        chances = [
            min(Fraction(1), target[token] / (rho * draft[token])) if draft[token] else Fraction(0)
            for token in siblings
        ]
        one = beta(target, draft, rho)
        num_drawn = sum(draft[token] > 0 for token in siblings)
        some = 1 - (1 - one) ** num_drawn
        scale = some / one if one else Fraction(num_drawn)
        weights = [p - min(q, p / rho) * scale for p, q in zip(target, draft, strict=True)]
        return chances, normalised(weights)

    return rule


def draws(draft: Law, count: int, with_replacement: bool) -> Iterator[tuple[list[int], Fraction]]:
    """Every way to draw `count` siblings, or all that there are, and its probability."""
    if count == 0 or not any(draft):
        yield [], Fraction(1)
        return
    for token, chance in enumerate(draft):
        if chance:
            left = [q if other != token else Fraction(0) for other, q in enumerate(draft)]
            rest = draft if with_replacement else normalised(left)
            for more, probability in draws(rest, count - 1, with_replacement):
                yield [token, *more], chance * probability


def emitted(
    target: Law, draft: Law, count: int, rule: Rule, with_replacement: bool
) -> tuple[Law, Fraction]:
    """The law of the emitted token, and the probability that a sibling is accepted."""
    law, accepted = [Fraction(0)] * len(target), Fraction(0)
    for siblings, probability in draws(draft, count, with_replacement):
        chances, residual = rule(target, draft, siblings)
        for token, chance in zip(siblings, chances, strict=True):
            law[token] += probability * chance
            accepted += probability * chance
            probability *= 1 - chance
        for token, chance in enumerate(residual):
            law[token] += probability * chance
    return law, accepted


def distribution(
    row: NDArray[np.float32], recent: Sequence[int], params: SamplingParams
) -> NDArray[np.float64]:
    """The probability of each token to follow, [vocab]."""
    row = naive.penalised(row, recent, params)
    ids = naive.candidates(row, params)
    if params.greedy:
        return np.eye(len(row))[ids[0]]
    probs = np.zeros(len(row))
    for token in ids:
        probs[token] = math.exp((float(row[token]) - float(row[ids[0]])) / params.temperature)
    return probs / probs.sum()
