"""Texts that replies may quote, and replies asked for again: fewer steps, the same text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgespec
from edgespec.drafting.tables.table_drafter import TableDrafter
from edgespec.drafting.tree import DraftTree, StepOutcome, TopTokens

PROMPT = "Tell me a story about a dog."


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_a_reply_that_was_remembered_takes_fewer_steps(
    bundled_model: Path, temperature: float
) -> None:
    with edgespec.load(bundled_model, threads=1, max_nodes=8) as engine:
        engine.generate("Hello", max_tokens=4)
        plain = engine.generate(
            PROMPT, max_tokens=100, temperature=temperature, seed=5, speculation=False
        )
        engine.remember([*engine.encode(PROMPT), *plain.token_ids])
        reply = engine.generate(PROMPT, max_tokens=100, temperature=temperature, seed=5)
        assert reply.token_ids == plain.token_ids
        assert reply.stats.accepted >= 0.2 * len(plain.token_ids)


def test_by_consent_the_next_run_takes_fewer_steps(
    bundled_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGESPEC_DATA", str(tmp_path))
    monkeypatch.delenv("EDGESPEC_HISTORY", raising=False)
    texts, accepted = [], []
    for learn in (False, True, True):
        with edgespec.load(bundled_model, threads=1, max_nodes=8, learn=learn) as engine:
            reply = engine.generate(PROMPT, max_tokens=100, temperature=0.0)
            texts.append(reply.text)
            accepted.append(reply.stats.accepted)
        kept = list((tmp_path / "history").glob("*")) if (tmp_path / "history").exists() else []
        assert len(kept) == learn
    assert len(set(texts)) == 1
    assert accepted[2] > accepted[0] + 20


@pytest.mark.parametrize("drafter", ["stand", "recycling"])
def test_what_one_sample_taught_is_known_to_those_beside_it(
    bundled_model: Path, drafter: str
) -> None:
    with edgespec.load(
        bundled_model, threads=1, max_nodes=8, drafters=drafter, sequences=2
    ) as engine:
        options: dict[str, Any] = {"max_tokens": 30, "temperature": 0.7, "seed": 3}
        replies = engine.generate_batch([PROMPT], n=3, **options)
        one, other = (slot.market._sources[0].drafter for slot in engine.scheduler.slots)
        assert isinstance(one, TableDrafter)
        assert isinstance(other, TableDrafter)
        assert one is not other
        for place, reply in enumerate(replies):
            alone = engine.generate(PROMPT, speculation=False, **options | {"seed": 3 + place})
            assert reply.token_ids == alone.token_ids
        one.reset([1, 5])
        other.reset([2, 5])
        likeliest = np.arange(40, 48, dtype=np.int32)[None]
        falling = -60 * np.arange(8, dtype=np.float32)[None]
        top = TopTokens(likeliest[:, : one.wants_top], falling[:, : one.wants_top])
        one.observe(StepOutcome(DraftTree.root(5), [0], 40, [40], top))
        assert other.propose(1).tokens.tolist() == [5, 40]
