"""llama.cpp on random models of every architecture: what other engines are held against.

Its logits must depend on every part, or a wrong engine could agree with it: each breakage, a change
of the file that does what a wrong engine would do, must change them by far more than rounding does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support import llama_peer
from tests.support.llama_peer import Scores
from tests.support.random_models import MODELS, Breakage, Recipe, all_breakages, text, write

LEAST_CHANGE = 0.045
"""Distance between logits over their length, as at a cosine of 0.999; F16 is some 0.003 away."""


@pytest.mark.parametrize("name", MODELS)
def test_logits_depend_on_context_and_hardly_on_rounding(name: str, tmp_path: Path) -> None:
    recipe = MODELS[name]()
    ids = text(recipe)
    exact = write(recipe, tmp_path / "f32.gguf")
    half = write(recipe, tmp_path / "f16.gguf", type="F16")
    (found,) = _scores([exact], ids, num_tokens=64)
    assert np.isfinite(found.logits).all()
    assert found.logits.std() > 1
    assert len(found.tokens) == len(ids) + 64
    assert len(set(found.tokens[len(ids) :])) > 5, "the greedy text sticks"

    (rounded,) = _scores([half], ids)
    assert np.median(_distances(rounded.logits, found.logits[: len(ids)])) < 0.01
    (other,) = _scores([exact], [ids[0] ^ 1, *ids[1:]])
    assert _distances(other.logits, found.logits[: len(ids)])[-1] > 0.02
    (moved,) = _scores([exact], [ids[1], *ids])
    assert _distances(moved.logits[1:], found.logits[: len(ids)])[-1] > 0.02


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_every_breakage_shows(name: str, tmp_path: Path) -> None:
    recipe = MODELS[name]()
    ids = text(recipe)
    (whole,) = _scores([write(recipe, tmp_path / "whole.gguf")], ids)
    changes = dict(_changes(recipe, whole, ids, tmp_path))
    # What is no number is as wrong as can be.
    unseen = {name: change for name, change in changes.items() if change <= LEAST_CHANGE}
    assert unseen == {}


@pytest.mark.slow
def test_the_longest_context_decides_on_the_factors_of_phi(tmp_path: Path) -> None:
    recipe = MODELS["phi3"]()
    ids = text(recipe)
    path = write(recipe, tmp_path / "model.gguf")
    (short,) = _scores([path], ids, context=256)
    (long,) = _scores([path], ids, context=512)
    assert _distances(long.logits, short.logits).max() > LEAST_CHANGE


@pytest.mark.slow
def test_chunks_of_llama_4_begin_where_they_should(tmp_path: Path) -> None:
    """Chunks in other layers change nothing in the first chunk, and much beyond it."""
    recipe = MODELS["llama4"]()
    ids = text(recipe, recipe.far_tokens)
    elsewhere = Breakage("another pattern", {"attention.sliding_window_pattern": 3})
    paths = [
        write(recipe, tmp_path / "whole.gguf"),
        write(recipe, tmp_path / "broken.gguf", breakage=elsewhere),
    ]
    whole, broken = _scores(paths, ids)
    apart = _distances(broken.logits, whole.logits)
    assert apart[:8192].max() < 1e-4
    assert apart[8192:].max() > LEAST_CHANGE


def _changes(
    recipe: Recipe, whole: Scores, ids: Sequence[int], folder: Path
) -> Iterator[tuple[str, float]]:
    """By how much each breakage changes the logits of some position."""
    every, drawn = all_breakages(recipe), dict(recipe.arrays())
    for values in drawn.values():
        values.flags.writeable = False
    for few in (every[start : start + 6] for start in range(0, len(every), 6)):
        paths = [
            write(recipe, folder / f"{place}.gguf", breakage=breakage, drawn=drawn)
            for place, breakage in enumerate(few)
        ]
        for breakage, broken in zip(few, _scores(paths, ids), strict=True):
            yield breakage.name, float(_distances(broken.logits, whole.logits).max())


def _scores(
    paths: Sequence[Path], ids: Sequence[int], num_tokens: int = 0, context: int = 0
) -> list[Scores]:
    try:
        found = llama_peer.scores(paths, ids, num_tokens, context=context, kv_type="f32")
        return list(found)
    except llama_peer.PeerMissing as error:
        pytest.skip(str(error))


def _distances(left: NDArray[np.float32], right: NDArray[np.float32]) -> NDArray[np.float64]:
    """Of each row, relative to its length in the second: f64 [rows]."""
    one, two = left.astype(np.float64), right.astype(np.float64)
    lengths: NDArray[np.float64] = np.linalg.norm(one - two, axis=1) / np.linalg.norm(two, axis=1)
    return lengths
