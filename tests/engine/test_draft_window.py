"""A draft model that keeps only the ends of a long text: the text stays, its memory is constant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgespec
from edgespec import OptionError
from edgespec.backends.passes import TokenTree
from edgespec.drafting.model.small_model import DraftModelDrafter
from edgespec.engine.engine import Engine
from edgespec.loading.draft_model import DraftModel
from edgespec.memory.plan.sizing import DRAFT_SINKS
from edgespec.verification.sampling import SamplingParams
from tests.support.equality import Case, same
from tests.support.gguf_models import CHATML, write_gguf
from tests.support.vocabularies import bpe_vocabulary

PROMPT = "the cat and the hat and the cat and the " * 20
WINDOW = 40


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A model, and one that is the same but for a short context."""
    folder = tmp_path_factory.mktemp("windows")
    made: dict[str, Any] = {
        "type": "Q8_0", "layers": 1, "template": CHATML, "vocab": 400, "tokenizer": "gpt2",
        "metadata": bpe_vocabulary("gpt-2", 400),
    }  # fmt: skip
    return {
        "long": write_gguf(folder / "long.gguf", context=8192, **made),
        "short": write_gguf(folder / "short.gguf", context=64, **made),
    }


def opened(files: dict[str, Path], draft: str, **options: Any) -> Engine:
    chosen = {"drafters": "none", "overlap": "off", "threads": 1, "context": 1024} | options
    return edgespec.load(files["long"], draft_model=files[draft], **chosen)


def draft_model_of(engine: Engine) -> DraftModel:
    (found,) = (one for one in engine._drafting if isinstance(one, DraftModel))
    return found


@pytest.mark.parametrize("overlap", ["off", "on"])
@pytest.mark.parametrize(("draft", "window"), [("long", WINDOW), ("short", "off")])
def test_the_text_is_that_of_plain_decoding(
    draft: str, window: int | str, overlap: str, files: dict[str, Path]
) -> None:
    """With a prompt that is longer than the window, and a reply of several."""
    with opened(files, draft, draft_window=window, overlap=overlap) as engine:
        case = Case(PROMPT, 0.8, seed=3, max_tokens=150, ignore_eos=True)
        plain = case.plain(engine)
        found = case.speculative(engine, "drafter", None, plain)
        assert same(plain, found) and found.stats.prompt_tokens > 64
        assert found.stats.by_source["draft-model"]["drafted"] > 0
        target = draft_model_of(engine)._target
        assert target is not None and target.context_length <= 64
        assert 0 < target.own.length <= target.context_length


def test_drafts_are_those_after_the_first_tokens_and_the_last(files: dict[str, Path]) -> None:
    """What the model says of just these, read at once, however the text grew."""
    with opened(files, "long", draft_window=WINDOW) as engine:
        sequence = draft_model_of(engine)._target
        assert sequence is not None
        drafter = DraftModelDrafter(sequence.own, 400, slides=True)
        drafter.begin(SamplingParams(temperature=0.0, seed=0))
        other = engine.scheduler.target.own
        ids = np.random.default_rng(5).integers(3, 400, 300).tolist()
        drafter.reset(ids[:100])
        for place in range(100, 300, 7):
            drafter.extend(ids[place : place + 7])
            told, grown = drafter._text, ids[: place + 7]
            last = len(told) - DRAFT_SINKS
            assert told == grown[:DRAFT_SINKS] + grown[-last:] and WINDOW // 2 <= last <= WINDOW
            drafted = drafter.propose(4).tokens
            other.truncate(0)
            other.prefill(told[:-1])
            likeliest = int(other.forward(TokenTree.chain(told[-1:])).logits[0].argmax())
            other.truncate(0)
            assert drafted[1] == likeliest


def test_the_plan_counts_the_window_alone(files: dict[str, Path]) -> None:
    def planned(context: int, **options: Any) -> int:
        made = edgespec.plan(files["long"], draft_model=files["long"], context=context, **options)
        told = any("draft window" in reason for reason in made.reasons)
        assert told == (context > options.get("draft_window", context) + DRAFT_SINKS)
        return int(made.footprint["draft model"])

    kept = {"draft_window": 2048}
    assert planned(8192, **kept) == planned(4096, **kept) < planned(4096)
    assert planned(1024, **kept) == planned(1024)


@pytest.mark.parametrize("window", ["none", 31, "-5"])
def test_what_is_no_window_is_refused(window: int | str, files: dict[str, Path]) -> None:
    with pytest.raises(OptionError, match="choose off or 32 tokens and more"):
        edgespec.plan(files["long"], draft_model=files["long"], draft_window=window)
    with pytest.raises(OptionError, match="add --draft-model FILE"):
        edgespec.plan(files["long"], draft_window=64)
