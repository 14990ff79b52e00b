"""Steps in one compiled call are the decode loop's: the same text, the same counts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numba import config

import edgespec
from edgespec.drafting.text.suffix_automaton import SuffixAutomatonDrafter
from edgespec.engine import burst as bursts
from edgespec.engine.burst import Burst, Written
from edgespec.engine.compiled_steps import nothing
from edgespec.engine.engine import Engine
from edgespec.engine.generation import Generation
from edgespec.engine.reply import Reply
from edgespec.errors import BackendError
from edgespec.system import addresses, clock
from tests.support.gguf_models import CHATML, write_gguf

pytestmark = pytest.mark.skipif(bool(config.DISABLE_JIT), reason="bursts are compiled")
PROMPT = "the cat and the hat and the cat and the"
MODELS: dict[str, dict[str, Any]] = {
    "llama": {"type": "Q8_0"},
    "qwen2 q4": {"arch": "qwen2", "type": "Q4_0", "tokenizer": "gpt2", "pre": "qwen2"},
    "gemma": {"arch": "gemma", "type": "F16"},
    "moe": {"arch": "qwen3moe", "type": "Q8_0"},
}
NAMES = ("llama", "qwen2 q4")


@pytest.fixture(scope="module", params=NAMES)
def engine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Engine]:
    path = tmp_path_factory.mktemp("bursts") / "m.gguf"
    write_gguf(path, template=CHATML, **MODELS[request.param])
    with edgespec.load(path, threads=2) as opened:
        yield opened


@pytest.fixture
def still(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """An engine for which no time passes, so that every decision is the text's alone."""

    def stand_still(self: clock.Clock) -> None:
        """A clock that is asked and says nothing."""
        self.words = np.zeros(clock._NUM_WORDS, np.int64)
        self.words[clock._FUNCTION] = addresses.address_of(nothing)
        self.units = np.ones(2)

    monkeypatch.setattr(clock.Clock, "__init__", stand_still)
    return engine


def anew(engine: Engine) -> None:
    """Forget everything that earlier replies taught."""
    scheduler = engine.scheduler
    scheduler.target.own.truncate(0)
    market = scheduler._make_market(1.0)
    market.statistics.table[:] = 0.0
    drafter = market._sources[0].drafter
    assert isinstance(drafter, SuffixAutomatonDrafter) and drafter.past is not None
    drafter.past._allocate(drafter.past.capacity)  # one for all markets: it outlives them
    slot = scheduler.slots[0]
    market.attach(slot.sequence, scheduler.controller.curve.table)
    slot.market, slot.clock = market, lambda: 0.0
    slot.prospects = type(slot.prospects)()
    fresh = type(scheduler.controller)(type(scheduler.controller.curve)(scheduler._curve),
                                       scheduler.plan.max_nodes)  # fmt: skip
    scheduler.controller = fresh


def counts(reply: Reply) -> dict[str, Any]:
    found = reply.stats.as_dict() if hasattr(reply.stats, "as_dict") else vars(reply.stats)
    kept = ("output_tokens", "steps", "drafted", "accepted", "tokens_per_step")
    by_source = {
        name: (part["drafted"], part["accepted"]) for name, part in found["by_source"].items()
    }
    return {key: found[key] for key in kept} | {"by_source": by_source}


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.2])
@pytest.mark.parametrize("speculation", [True, False])
def test_steps_are_the_loops(
    still: Engine, monkeypatch: pytest.MonkeyPatch, temperature: float, speculation: bool
) -> None:
    used: list[int] = []
    write = Burst.write

    def watched(self: Burst, generation: Generation) -> Written | None:
        found = write(self, generation)
        used.extend([found.steps] if found else [])
        return found

    replies = []
    for method in (watched, lambda *_: None):
        monkeypatch.setattr(Burst, "write", method)
        anew(still)
        made = [
            still.generate(
                PROMPT,
                max_tokens=150,
                temperature=temperature,
                seed=seed,
                speculation=speculation,
                ignore_eos=seed == 2,
            )
            for seed in (1, 2)
        ]
        replies.append([(one.token_ids, one.finish_reason, counts(one)) for one in made])
    assert replies[0] == replies[1]
    assert sum(used) > 40
    if speculation and temperature == 0.0:
        assert max(one[2]["accepted"] for one in replies[0]) > 0


def test_a_burst_ends_when_its_time_is_over(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bursts, "LONGEST_S", 0.0)
    pieces = list(engine.stream(PROMPT, max_tokens=20, temperature=0.0, ignore_eos=True))
    assert len(pieces) > 1


@pytest.mark.parametrize("seed", range(3))
def test_a_reply_ends_at_the_end_of_the_context(engine: Engine, seed: int) -> None:
    long = engine.encode(PROMPT) * 60
    prompt = long[: engine.plan.context_length - 20]
    replies = [
        engine.generate(
            prompt, max_tokens=200, seed=seed, temperature=0.5, ignore_eos=True, speculation=on
        )
        for on in (True, False)
    ]
    assert replies[0].token_ids == replies[1].token_ids
    assert {one.finish_reason for one in replies} == {"context"}


def test_what_needs_the_text_is_decoded_step_by_step(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[Written | None] = []
    write = Burst.write
    monkeypatch.setattr(Burst, "write", lambda *given: found.append(write(*given)) or found[-1])
    engine.generate(PROMPT, max_tokens=10, repetition_penalty=1.3, ignore_eos=True)
    assert found and not any(found)


def test_a_row_that_says_nothing_is_an_error(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tokens before it are the reply's, of which a burst writes at most 128."""
    stream = engine.stream(PROMPT, max_tokens=200, temperature=0.0, ignore_eos=True)
    next(stream)
    head = engine.scheduler.target._weights.head  # type: ignore[attr-defined]
    saved = head.scales.copy()
    head.scales[:] = 0xFF
    try:
        with pytest.raises(BackendError, match="NaN"):
            list(stream)
    finally:
        head.scales[:] = saved
    assert engine.generate(PROMPT, max_tokens=5, temperature=0.0).token_ids
