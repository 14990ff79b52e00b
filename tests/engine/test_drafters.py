"""Each drafter alone, in an engine: the text is that of plain decoding."""

from __future__ import annotations

from pathlib import Path

import pytest

import edgespec
from edgespec.drafting.registry import DRAFTERS
from edgespec.loading.model_drafters import EARLY_EXIT
from tests.support.equality import Case, same

PROMPT = "Fix this text, word by word: the red ball and the red box and the red ball is red."


@pytest.mark.parametrize("name", [*DRAFTERS, EARLY_EXIT])
def test_the_text_is_that_of_plain_decoding(
    bundled_model: Path, name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("EDGESPEC_DATA", str(tmp_path))
    with edgespec.load(bundled_model, threads=1, drafters=name) as engine:
        for temperature in (0.0, 0.8):
            case = Case(PROMPT, temperature, seed=1, max_tokens=64, ignore_eos=True)
            expected = case.plain(engine)
            found = case.speculative(engine, "drafter", None, expected)
            assert same(expected, found)
            assert found.stats.by_source[name]["drafted"] > 0
        assert engine.scheduler.slots[0].market.size_bytes <= engine.plan.drafter_bytes


def test_all_drafters_together(
    bundled_model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In one market, with drafts that do not pay verified too."""
    monkeypatch.setenv("EDGESPEC_DATA", str(tmp_path))
    with edgespec.load(
        bundled_model, threads=1, drafters=",".join([*DRAFTERS, EARLY_EXIT])
    ) as engine:
        for temperature in (0.0, 0.8):
            case = Case(PROMPT, temperature, seed=2, max_tokens=96, ignore_eos=True)
            expected = case.plain(engine)
            found = case.speculative(engine, "drafter", None, expected)
            assert same(expected, found)
            assert found.stats.tokens_per_step > 1.0
            assert len(found.stats.by_source) > 3
        assert engine.scheduler.slots[0].market.size_bytes <= engine.plan.drafter_bytes
