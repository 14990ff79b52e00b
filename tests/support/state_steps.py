"""Random steps of a state, and their words."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgespec.backends.native.kernels.recurrent import state
from edgespec.memory.plan.state_layout import STEP_WORDS

Floats = NDArray[np.float32]


@dataclass(slots=True)
class Step:
    """What a head does at one position."""

    key: Floats
    value: Floats
    query: Floats
    decay: Floats
    beta: Floats
    skip: Floats
    delta: Floats
    output: Floats
    words: list[int]

    @classmethod
    def random(cls, key_dim: int, value_dim: int, seed: int) -> Step:
        """Of keys and queries that are about one long, as norms leave them."""
        rng = np.random.default_rng(seed)
        key, query = rng.standard_normal((2, key_dim)) / np.sqrt(key_dim)
        value, skip = rng.standard_normal(value_dim), rng.standard_normal(1)
        decay, beta = rng.uniform(0.5, 1, 1), rng.uniform(0, 1, 1)
        floats = [each.astype(np.float32) for each in (key, value, query, decay, beta, skip)]
        delta, output = np.full((2, value_dim), np.nan, np.float32)
        step = cls(*floats, delta, output, [])
        step.words = [array.ctypes.data for array in step.arrays]
        return step

    @property
    def arrays(self) -> list[Floats]:
        """In the order of a step's words."""
        places = {
            state.KEY: self.key,
            state.DELTA: self.delta,
            state.DECAY: self.decay,
            state.QUERY: self.query,
            state.VALUE: self.value,
            state.BETA: self.beta,
            state.SKIP: self.skip,
            state.OUTPUT: self.output,
        }
        return [places[word] for word in range(STEP_WORDS)]

    def wide(self) -> tuple[NDArray[np.float64], ...]:
        """Key, value, query, decay and beta as the naive steps take them."""
        arrays = (self.key, self.value, self.query, self.decay[0], self.beta[0])
        return tuple(np.asarray(each, np.float64) for each in arrays)
