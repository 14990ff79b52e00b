"""Small probability laws in fractions that look for trouble: zeros, equal ones, disjoint ones."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from hypothesis import strategies as st
from naive_rejection import Law
from numpy.typing import NDArray


def of(weights: Sequence[int]) -> Law:
    return [Fraction(weight, sum(weights)) for weight in weights]


laws = st.lists(st.integers(0, 5), min_size=4, max_size=4).filter(any).map(of)
pairs_of_laws = st.one_of(
    st.tuples(laws, laws),
    laws.map(lambda law: (law, law)),
    st.tuples(st.integers(0, 5), st.integers(1, 5)).map(
        lambda ab: (of([*ab, 0, 0]), of([0, 0, *ab]))
    ),
)


def floats(law: Law) -> NDArray[np.float64]:
    return np.array([float(weight) for weight in law])
