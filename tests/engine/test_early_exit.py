"""Drafting with the model's own first layers: the text stays, and no weights are added."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgespec
from edgespec.drafting.model.chains import MEAN
from edgespec.drafting.model.early_exit import EarlyExitDrafter
from edgespec.drafting.rates import RATE
from edgespec.drafting.tree import DraftTree
from edgespec.errors import OptionError
from edgespec.loading.model_drafters import EXIT_LAYER_KEY, exit_layer
from edgespec.memory.plan.settings import KV_TYPES
from edgespec.models.open_model import open_model
from tests.support.equality import Case, same
from tests.support.gguf_models import CHATML, write_gguf

PROMPT = "the cat and the hat and the cat and the"
MODELS: dict[str, dict[str, Any]] = {
    "llama": {"type": "Q8_0", "layers": 3, "metadata": {EXIT_LAYER_KEY: 1}},
    "qwen2": {"arch": "qwen2", "type": "Q4_0", "tokenizer": "gpt2", "pre": "qwen2", "layers": 4},
    "qwen3": {"arch": "qwen3", "type": "F16", "metadata": {EXIT_LAYER_KEY: 9}},
}
DRAFTERS = ("early-exit", "suffix-automaton,early-exit,trigram")


def make(folder: Path, name: str, **changes: Any) -> Path:
    return write_gguf(folder / f"{name}.gguf", **({"template": CHATML} | MODELS[name] | changes))


@pytest.mark.parametrize(
    ("model", "kv_type", "drafters"),
    [
        (model, kv_type, DRAFTERS[(row + column) % 2])
        for row, model in enumerate(MODELS)
        for column, kv_type in enumerate(KV_TYPES)
    ],
)
def test_the_text_is_that_of_plain_decoding(
    tmp_path: Path, model: str, kv_type: str, drafters: str
) -> None:
    """Alone and in one tree with n-grams, on one and two threads, with every draft verified."""
    path, plain = make(tmp_path, model), None
    for threads in (1, 2):
        options: dict[str, Any] = {"threads": threads, "kv_type": kv_type, "drafters": drafters}
        with edgespec.load(path, **options) as engine:
            for temperature in (0.0, 0.7, 1.2):
                case = Case(PROMPT, temperature, seed=3, max_tokens=40, ignore_eos=True)
                plain = case.plain(engine)
                found = case.speculative(engine, "drafter", None, plain)
                assert same(plain, found)
                assert found.stats.by_source["early-exit"]["drafted"] > 0


def test_beyond_a_full_context_and_with_a_penalty(tmp_path: Path) -> None:
    with edgespec.load(make(tmp_path, "llama"), drafters="early-exit", context=256) as engine:
        options: dict[str, Any] = {
            "max_tokens": 400, "temperature": 0.7, "seed": 5, "repetition_penalty": 1.3,
            "ignore_eos": True, "on_overflow": "sliding",
        }  # fmt: skip
        plain = engine.stream(PROMPT, speculation=False, **options)
        drafted = engine.stream(PROMPT, **options)
        for _ in plain:
            pass
        for _ in drafted:
            pass
        assert same(plain.reply, drafted.reply)
        assert drafted.reply.stats.dropped_tokens > 0


def test_a_reply_that_was_abandoned_leaves_nothing(tmp_path: Path) -> None:
    with edgespec.load(make(tmp_path, "llama"), drafters="early-exit") as engine:
        case = Case(PROMPT, 0.0, seed=1, max_tokens=30, ignore_eos=True)
        expected = case.plain(engine)
        for _ in range(3):
            stream = engine.stream(PROMPT, max_tokens=30, temperature=0.0)
            next(stream)
            stream.close()
            assert engine.scheduler.target.own.early is None
        assert same(expected, case.speculative(engine, "drafter", None, expected))


def test_it_adds_no_weights(bundled_model: Path) -> None:
    """Of the plan's exact items none grows but by what all plans have for early nodes."""
    plans = [edgespec.plan(bundled_model, drafters=names) for names in ("trigram", "early-exit")]
    assert plans[0].footprint.exact == plans[1].footprint.exact
    assert plans[1].footprint["drafter early-exit"] <= 64 * 1024
    with edgespec.load(bundled_model, drafters="early-exit") as engine:
        engine.scheduler.target.own.state.reserve(0, engine.plan.context_length)
        assert engine.scheduler.target.allocated_bytes() == plans[1].footprint.exact


def test_where_to_leave(tmp_path: Path, bundled_model: Path) -> None:
    """After the layer that the file names, if it has so many."""
    found = []
    for path in (*(make(tmp_path, name) for name in MODELS), bundled_model):
        with open_model(path) as file:
            found.append(exit_layer(file))
    assert found == [1, 1, 1, 2]


def test_who_cannot_says_so(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="reference backend cannot leave a pass early"):
        edgespec.plan(make(tmp_path, "llama"), backend="reference", drafters="early-exit")
    with pytest.raises(OptionError, match="this model has only one layer"):
        edgespec.plan(make(tmp_path, "llama", layers=1), drafters="early-exit")


def test_it_leaves_where_that_pays_best(tmp_path: Path) -> None:
    """After probes: at an exit that agrees often, or that costs little; the text stays."""
    path = make(tmp_path, "llama", layers=4)
    with edgespec.load(path, drafters="early-exit") as engine:
        drafter = engine.scheduler.slots[0].market._sources[0].drafter
        assert isinstance(drafter, EarlyExitDrafter)
        assert ([exit.layer for exit in drafter.exits], drafter.layer) == ([1, 2, 3], 1)
        case = Case(PROMPT, 0.0, seed=1, max_tokens=60, ignore_eos=True)
        plain = case.plain(engine)
        assert same(plain, case.speculative(engine, "drafter", None, plain))
        assert drafter._probes > 5
        drafter._steps_s[:] = [1.0, 0.0, 0.0]
        drafter._prices = np.linspace(3.0, 3.5, 16)
        for rates, layer in (((0.1, 0.1, 0.98), 3), ((0.9, 0.9, 0.9), 1), ((0.3, 0.95, 0.95), 2)):
            drafter._tables[:, MEAN, RATE] = rates
            drafter._leave_at(drafter._best_exit())
            assert drafter.layer == layer
        assert same(plain, case.speculative(engine, "drafter", None, plain))


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_text_stays_with_chains_after_paths(bundled_model: Path, temperature: float) -> None:
    """Every draft is verified, chains after n-grams and n-grams after chains; both are there."""
    prompt = "Write the word red again and again: red red red red blue red red red red"
    drafters = "suffix-automaton,early-exit,trigram"
    with edgespec.load(bundled_model, threads=1, drafters=drafters) as engine:
        market, begun, ended = engine.scheduler.slots[0].market, [], []
        costly = market._costly[0]
        assert isinstance(costly.drafter, EarlyExitDrafter)
        propose = market.propose

        def watched(*arguments: Any, **options: Any) -> DraftTree:
            tree = propose(*arguments, **options)
            if costly.tree:
                begun.append(len(costly.path.tokens))
                theirs = tree.sources[1:] != costly.number
                ended.append(np.any(theirs & (tree.sources[tree.parents[1:]] == costly.number)))
            return tree

        market.propose = watched  # type: ignore[method-assign]
        case = Case(prompt, temperature, seed=3, max_tokens=96, ignore_eos=True)
        expected = case.plain(engine)
        assert same(expected, case.speculative(engine, "drafter", None, expected))
        assert any(begun) or temperature  # what is drawn repeats itself seldom
        assert any(ended)
