"""Drafting with a smaller model: the text stays, its memory is planned, its vocabulary checked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgespec
from benchmarks.equality import Case, same
from edgespec.errors import OptionError, UnsupportedModelError
from edgespec.model_drafting import Partner, translation
from edgespec.models import open_model
from tests.conformance.targets import missing
from tests.models.build import CHATML, write_gguf
from tests.models.vocabularies import bpe_vocabulary

PROMPT = "the cat and the hat and the cat and the"
BACKENDS = [
    pytest.param(name, marks=pytest.mark.skipif(bool(missing(name)), reason=missing(name)))
    for name in ("native", "reference", "llamacpp")
]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A model, a smaller one with its vocabulary, and one with the same tokens in another order."""
    folder, found = tmp_path_factory.mktemp("models"), {}
    vocabulary = bpe_vocabulary("gpt-2", 400)
    order = np.random.default_rng(1).permutation(400)
    shuffled = dict(vocabulary)
    for key in ("tokenizer.ggml.tokens", "tokenizer.ggml.token_type"):
        shuffled[key] = [vocabulary[key][place] for place in order]
    places = {int(old): new for new, old in enumerate(order)}
    for key in ("tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id"):
        shuffled[key] = places[vocabulary[key]]
    for name, layers, metadata in (
        ("large", 3, vocabulary), ("small", 1, vocabulary), ("shuffled", 1, shuffled)
    ):  # fmt: skip
        found[name] = write_gguf(
            folder / f"{name}.gguf", type="Q8_0", layers=layers, template=CHATML, vocab=400,
            tokenizer="gpt2", metadata=metadata,
        )  # fmt: skip
    found["other"] = write_gguf(folder / "other.gguf", type="Q8_0", template=CHATML)
    return found


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("draft", ["large", "small", "shuffled"])
def test_the_text_is_that_of_plain_decoding(
    models: dict[str, Path], backend: str, draft: str
) -> None:
    """Alone and beside others; a model that drafts for itself is right, and too dear for more than
    a token at a time.
    """
    for drafters in ("none", "trigram,early-exit" if backend == "native" else "trigram"):
        options: dict[str, Any] = {
            "backend": backend, "drafters": drafters, "threads": 1, "draft_model": models[draft]
        }  # fmt: skip
        with edgespec.load(models["large"], **options) as engine:
            for temperature in (0.0, 0.8):
                case = Case(PROMPT, temperature, seed=3, max_tokens=40, ignore_eos=True)
                plain = case.plain(engine)
                found = case.speculative(engine, "drafter", None, plain)
                assert same(plain, found) or not engine._target.capabilities.bit_exact_rows
                assert found.stats.by_source["draft-model"]["drafted"] > 0
                if draft == "large" and drafters == "none":
                    assert found.stats.tokens_per_step > 1.9


def test_each_text_of_a_batch_has_its_own(models: dict[str, Path]) -> None:
    prompts = [PROMPT, "a dog and", "a dog and a cat"]
    options: dict[str, Any] = {"temperature": 0.8, "seed": 5, "max_tokens": 30, "ignore_eos": True}
    with edgespec.load(
        models["large"], draft_model=models["small"], threads=2, sequences=3
    ) as engine:
        plain = [engine.generate(prompt, speculation=False, **options) for prompt in prompts]
        for _ in range(2):
            found = engine.generate_batch(prompts, **options)
            assert all(same(one, other) for one, other in zip(plain, found, strict=True))


def test_its_memory_is_planned(models: dict[str, Path]) -> None:
    with edgespec.load(
        models["large"], draft_model=models["small"], threads=2, sequences=2
    ) as engine:
        partner = engine._partner
        assert isinstance(partner, Partner)
        target = partner._target
        for session in engine.lanes(2):
            assert session.market.size_bytes <= engine.plan.drafter_bytes
        for text in (target.own, target.open_sequence()) if target._num_sequences < 2 else ():
            text.state.reserve(0, target.context_length)
        target.own.state.reserve(0, target.context_length)
        planned = engine.plan.footprint["draft model"]
        assert sum(target.allocated_bytes().values()) <= planned
    without = edgespec.plan(models["large"])
    assert "draft model" not in [item.name for item in without.footprint]


def test_a_shorter_context_ends_drafting(models: dict[str, Path], tmp_path: Path) -> None:
    vocabulary = bpe_vocabulary("gpt-2", 400)
    short = write_gguf(
        tmp_path / "short.gguf", type="Q8_0", layers=1, vocab=400, tokenizer="gpt2",
        metadata=vocabulary, context=64,
    )  # fmt: skip
    with edgespec.load(models["large"], draft_model=short, drafters="none") as engine:
        case = Case(PROMPT, 0.0, seed=1, max_tokens=150, ignore_eos=True)
        plain = case.plain(engine)
        assert same(plain, case.speculative(engine, "drafter", None, plain))


def test_vocabularies_are_compared(models: dict[str, Path]) -> None:
    with open_model(models["large"]) as large, open_model(models["shuffled"]) as shuffled:
        ids = translation(large, shuffled)
        assert ids is not None
        ours, theirs = (file.tokenizer.token_text for file in (large, shuffled))
        assert all(ours(token) == theirs(int(ids[token])) for token in range(400))
        with open_model(models["small"]) as small:
            assert translation(large, small) is None
        with open_model(models["other"]) as other, pytest.raises(OptionError, match="lacks"):
            translation(large, other)


def test_who_cannot_draft_is_refused(models: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="name it: --draft-model FILE"):
        edgespec.plan(models["large"], drafters="draft-model")
    wide = write_gguf(tmp_path / "wide.gguf", type="Q3_K", dim=256, ffn=256, vocab=300)
    with pytest.raises(UnsupportedModelError, match="cannot draft"):
        edgespec.plan(models["large"], draft_model=wide)
