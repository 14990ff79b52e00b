"""Counter-based noise: the noise of a token at a position depends on the seed and nothing else.

A token is drawn as the argmax of `logits / temperature + gumbel(seed, position, token)`, which has
the softmax's distribution ("The Gumbel-Max Trick", Gumbel 1954; Maddison et al., "A* Sampling").
Because the noise is a function and not a stream, a position's sample is the same however the
position was reached, and that makes sampling verifiable.

The hash is SplitMix64 ("Fast Splittable Pseudorandom Number Generators", Steele, Lea and Flood,
section 5): positions of a seed are one stream, and each position's value keys the stream of its
tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import numpy as np
from numpy.typing import NDArray

from edgespec.system.jit import SOURCE, inner_kernel, kernel

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIX_A = np.uint64(0xBF58476D1CE4E5B9)
_MIX_B = np.uint64(0x94D049BB133111EB)
_ONE = np.uint64(1)
_SHIFT_12 = np.uint64(12)
_SHIFT_27 = np.uint64(27)
_SHIFT_30 = np.uint64(30)
_SHIFT_31 = np.uint64(31)
_TWO_TO_MINUS_52 = 2.0**-52
_NOTHING = nullcontext()


def wrapping() -> AbstractContextManager[object]:
    """A context to call these in: the hash wraps, which NumPy notices with the JIT off."""
    return np.errstate(over="ignore") if SOURCE == "python" else _NOTHING


@inner_kernel
def mix(value: np.uint64) -> np.uint64:
    """SplitMix64's finaliser: every input bit flips about half of the output bits."""
    value = (value ^ (value >> _SHIFT_30)) * _MIX_A
    value = (value ^ (value >> _SHIFT_27)) * _MIX_B
    return value ^ (value >> _SHIFT_31)


@inner_kernel
def position_key(seed: np.uint64, position: int) -> np.uint64:
    """The key of all tokens' noise at one position of the text."""
    return mix(mix(seed + _GAMMA) + (np.uint64(position) + _ONE) * _GAMMA)


@inner_kernel
def token_bits(key: np.uint64, token: int) -> np.uint64:
    """64 random bits of one token."""
    return mix(key + (np.uint64(token) + _ONE) * _GAMMA)


@inner_kernel
def to_uniform(bits: np.uint64) -> float:
    """A number strictly between 0 and 1, from 52 of the bits."""
    # 52 bits and a half: the sum is exact, so neither end of the interval can be reached by
    # rounding.
    return (np.float64(bits >> _SHIFT_12) + 0.5) * _TWO_TO_MINUS_52


@inner_kernel
def uniform(key: np.uint64, token: int) -> float:
    """A token's number strictly between 0 and 1."""
    return to_uniform(token_bits(key, token))


@inner_kernel
def highest_uniform(key: np.uint64, start: int, count: int) -> float:
    """The highest `uniform` of the `count` tokens from `start` on."""
    highest = np.uint64(0)
    for i in range(count):
        bits = token_bits(key, start + i)
        highest = bits if bits > highest else highest
    return to_uniform(highest)


@inner_kernel
def gumbel(key: np.uint64, token: int) -> float:
    """A standard Gumbel variate for one token at the position that `key` stands for."""
    return -math.log(-math.log(uniform(key, token)))


@kernel("uint64", "int64", "int64[:]", "float64[:]")
def _fill_gumbel(
    seed: np.uint64, position: int, tokens: NDArray[np.int64], noise: NDArray[np.float64]
) -> None:
    key = position_key(seed, position)
    for i in range(len(tokens)):
        noise[i] = gumbel(key, tokens[i])


def gumbel_noise(
    seed: int, position: int, tokens: Sequence[int] | NDArray[np.integer]
) -> NDArray[np.float64]:
    """The noise that sampling adds to these tokens' logits at `position`, [len(tokens)] f64.

    A drafter that has probabilities of its own draws with the same noise to agree with the target
    more often.
    """
    ids = np.asarray(tokens, dtype=np.int64)
    noise = np.empty(len(ids), np.float64)
    with wrapping():
        _fill_gumbel(np.uint64(seed), position, ids, noise)
    return noise
