"""Drawing until a grammar allows it: the law, and the very token, of a mask; with fewer masks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from edgespec.models.grammars import grammar_of
from edgespec.models.open_model import open_model
from edgespec.models.tokenizers.tokenizer import Tokenizer
from edgespec.verification.constraint import Constraint
from edgespec.verification.sampling import SamplingParams
from edgespec.verification.shaped_verifier import ShapedVerifier
from edgespec.verification.shaping import Shaping

LETTERS = "abcdefgh"
GRAMMAR = grammar_of(None, "[a-h]", None)
NUM_DRAWS = 3000


@pytest.fixture(scope="module")
def tokenizer(bundled_model: Path) -> Tokenizer:
    return open_model(bundled_model).tokenizer


def drawn(
    tokenizer: Tokenizer, row: NDArray[np.float32], params: SamplingParams, place: int
) -> int:
    assert GRAMMAR is not None
    constraint = Constraint(tokenizer, GRAMMAR)
    verifier = ShapedVerifier(len(row), params, 8, Shaping(), tokenizer.token_bytes, constraint)
    return verifier.sample(row, [1], place)


def rows(tokenizer: Tokenizer, num_forbidden: int) -> tuple[list[int], NDArray[np.float32]]:
    """The letters' tokens, and logits of them and of likelier ones that are forbidden."""
    rng = np.random.default_rng(num_forbidden)
    letters = [tokenizer.encode(letter, add_bos=False)[-1] for letter in LETTERS]
    assert [tokenizer.token_bytes(one) for one in letters] == [one.encode() for one in LETTERS]
    row = np.full(tokenizer.vocab_size, -30, np.float32)
    row[letters] = rng.normal(0, 1, len(letters))
    others = np.setdiff1d(np.arange(500, 900), letters)[:num_forbidden]
    row[others] = rng.normal(1, 1, num_forbidden)
    return letters, row


@pytest.mark.parametrize("num_forbidden", [0, 3, 40])
def test_draws_follow_the_masked_law(tokenizer: Tokenizer, num_forbidden: int) -> None:
    """Chi-squared, 7 degrees of freedom: 24.3 is exceeded once in a thousand times."""
    letters, row = rows(tokenizer, num_forbidden)
    params = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=7)
    found = [drawn(tokenizer, row, params, place) for place in range(NUM_DRAWS)]
    assert set(found) <= set(letters)
    weights = np.exp(row[letters].astype(np.float64))
    expected = NUM_DRAWS * weights / weights.sum()
    counts = np.array([found.count(one) for one in letters])
    assert float(((counts - expected) ** 2 / expected).sum()) < 24.3


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_the_token_is_the_masked_one(
    tokenizer: Tokenizer, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = SamplingParams(temperature=temperature, top_k=0, top_p=1.0, min_p=0.0, seed=3)
    made = list[int]()
    mask = Constraint.mask

    def counted(self: Constraint, row: NDArray[np.float32]) -> None:
        made.append(1)
        mask(self, row)

    monkeypatch.setattr(Constraint, "mask", counted)
    for num_forbidden in (0, 1, 3, 40):
        letters, row = rows(tokenizer, num_forbidden)
        masked = np.full_like(row, -np.inf)
        masked[letters] = row[letters]
        made.clear()
        for place in range(20):
            assert drawn(tokenizer, row, params, place) == drawn(tokenizer, masked, params, place)
        assert len(made) == 0 if num_forbidden < 4 else len(made) <= 20
        assert num_forbidden < 40 or made
