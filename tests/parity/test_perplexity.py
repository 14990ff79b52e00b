"""Perplexity of the same tokens equals llama.cpp's to 0.1 % and chance, for types both compute."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from tests.support import llama_peer, perplexity

ROOT = Path(__file__).parents[2]
NUM_TOKENS = 3500


@pytest.mark.slow
@pytest.mark.parametrize("kind", perplexity.KINDS)
def test_perplexity_is_the_peers(bundled_model: Path, kind: str, tmp_path: Path) -> None:
    """On a text that never changes. Its 3,500 tokens tell a difference to within 0.1 % at best; the
    benchmark's are 20,000 of the model's own domain.
    """
    text = [(ROOT / "LICENSE").read_text("utf-8")]
    path = tmp_path / f"{kind}.gguf"
    try:
        llama_peer.quantise(bundled_model, path, kind)
        found = perplexity.compare(path, text, NUM_TOKENS)
    except llama_peer.PeerMissing as error:
        pytest.skip(str(error))
    assert found.types == kind
    assert found.ours.size >= NUM_TOKENS
    assert abs(found.difference) <= found.bound, found.cells()


def test_cross_entropy_of_known_odds() -> None:
    """Logits that are logarithms of odds, far from zero too; a certain token costs nothing."""
    odds = np.log(np.array([[1, 2, 5], [1, 1, 2]], np.float32))
    losses = llama_peer.cross_entropy(odds + np.float32([[500], [-500]]), [2, 0])
    np.testing.assert_allclose(losses, [math.log(8 / 5), math.log(4)], atol=1e-4)
    assert llama_peer.cross_entropy(np.float32([[0, 2000]]), [1]) == [0.0]
