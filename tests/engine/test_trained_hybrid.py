"""A hybrid that was trained, with the block that drafts for it: real text, not random weights."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import edgespec
from edgespec.engine.engine import Engine

MODEL = Path(__file__).parents[2] / "training" / "hybrid" / "edgespec-hybrid-mtp-q8_0.gguf"
pytestmark = pytest.mark.skipif(not MODEL.exists(), reason="the file is in the repository alone")
PROMPTS = ("Tell me a short story about a dog.", "What is a cat?", "Write a list of five animals.")


@pytest.fixture(scope="module", params=["mtp", "auto", "suffix-automaton,mtp"])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    with edgespec.load(MODEL, drafters=request.param, context=512, threads=1) as opened:
        yield opened


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_text_is_that_of_plain_decoding(engine: Engine, temperature: float) -> None:
    for seed, prompt in enumerate(PROMPTS):
        replies = [
            engine.generate(
                prompt,
                max_tokens=48,
                ignore_eos=True,
                temperature=temperature,
                seed=seed,
                speculation=speculation,
            )
            for speculation in (True, False)
        ]
        assert replies[0].token_ids == replies[1].token_ids


def test_its_block_drafts_what_it_writes() -> None:
    """Three in four, greedily; one of random weights has next to none right."""
    with edgespec.load(MODEL, drafters="mtp", context=512, threads=1) as engine:
        drafted = accepted = 0
        for prompt in PROMPTS:
            reply = engine.generate(prompt, max_tokens=64, ignore_eos=True, temperature=0.0)
            own = reply.stats.by_source["mtp"]
            drafted, accepted = drafted + own["drafted"], accepted + own["accepted"]
    assert drafted > 5
    assert accepted > 0.3 * drafted
