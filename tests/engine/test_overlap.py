"""Drafting while the target verifies: real threads, delays on both sides, and the serial text."""

from __future__ import annotations

import gc
import os
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import edgespec
from edgespec.backends.native.target import NativeTarget
from edgespec.control.overlap.overlapped_drafter import DraftAhead
from edgespec.drafting.model.small_model import DraftModelDrafter
from edgespec.drafting.registry import DRAFTERS
from edgespec.engine.engine import Engine
from edgespec.errors import OptionError
from edgespec.system.cores import Cores
from tests.support.equality import Boundless, Case, Eager, same
from tests.support.gguf_models import CHATML, write_gguf
from tests.support.targets import missing
from tests.support.vocabularies import bpe_vocabulary

PROMPTS = ("the cat and the hat and the cat and the", "a dog and", "one two three one two")
OPTIONS: dict[str, Any] = {"max_tokens": 40, "seed": 7, "ignore_eos": True}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model, and its first two layers: a draft model that is often right."""
    folder, vocabulary = tmp_path_factory.mktemp("models"), bpe_vocabulary("gpt-2", 400)
    large, small = (
        write_gguf(
            folder / f"{layers}.gguf",
            type="Q8_0",
            layers=layers,
            template=CHATML,
            vocab=400,
            tokenizer="gpt2",
            metadata=vocabulary,
        )  # fmt: skip
        for layers in (3, 2)
    )
    return large, small


def load(models: tuple[Path, Path], **options: Any) -> Engine:
    chosen = {"threads": 1, "drafters": "none", "overlap": "on", "backend": "native", **options}
    return edgespec.load(models[0], draft_model=models[1], **chosen)


def ahead(engine: Engine) -> DraftAhead:
    drafter = engine.scheduler.slots[0].market._sources[-1].drafter
    assert isinstance(drafter, DraftAhead)
    return drafter


@pytest.fixture
def delays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every pass of either model takes up to 3 ms longer, and some much longer."""
    forward, rng = NativeTarget._forward, random.Random(5)

    def late(self: NativeTarget, *arguments: Any) -> Any:
        time.sleep(rng.choice((0.0, rng.random() * 3e-3, rng.random() * 3e-3, 8e-3)))
        return forward(self, *arguments)

    monkeypatch.setattr(NativeTarget, "_forward", late)


@pytest.mark.parametrize("drafters", ["none", *DRAFTERS, "early-exit", ",".join(DRAFTERS)])
def test_the_text_is_the_serial_loops(
    models: tuple[Path, Path], drafters: str, delays: None
) -> None:
    with load(models, drafters=drafters) as engine:
        kept, overlapped = engine.scheduler.controller, 0
        for number, prompt in enumerate(PROMPTS):
            for temperature in (0.0, 0.8):
                case = Case(prompt, temperature, number, max_tokens=24, ignore_eos=True)
                plain = case.plain(engine)
                engine.scheduler.controller = Eager(engine.plan.max_nodes) if number % 2 else kept
                found = engine.generate(
                    prompt, max_tokens=24, temperature=temperature, seed=number, ignore_eos=True
                )
                assert same(plain, found)
                assert found.stats.notes == ()
                overlapped += "written ahead" in found.stats.overlap
        assert overlapped


@pytest.mark.skipif(bool(missing("llamacpp")), reason=missing("llamacpp"))
def test_a_target_of_another_library_overlaps(models: tuple[Path, Path]) -> None:
    with load(models, backend="llamacpp") as engine:
        plain = engine.generate(PROMPTS[0], temperature=0.0, speculation=False, **OPTIONS)
        found = engine.generate(PROMPTS[0], temperature=0.0, **OPTIONS)
        assert plain.token_ids == found.token_ids
        assert "written ahead" in found.stats.overlap


@pytest.mark.usefixtures("step_by_step")
def test_a_cancelled_reply_stops_the_thread(models: tuple[Path, Path], delays: None) -> None:
    with load(models) as engine:
        expected = engine.generate(PROMPTS[0], speculation=False, **OPTIONS)
        stream = engine.stream(PROMPTS[0], **OPTIONS)
        for _ in range(3):
            next(stream)
        stream.close()
        pipeline = ahead(engine)._pipeline
        assert not pipeline._running
        pipeline.rest()
        passes = pipeline.drafts
        time.sleep(0.05)
        assert pipeline.drafts == passes
        found = engine.generate(PROMPTS[0], **OPTIONS)
        assert same(expected, found)


def test_an_error_of_the_drafter_is_told_and_costs_the_overlap_alone(
    models: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    look, calls = DraftModelDrafter.look, [0]

    def fail(self: DraftModelDrafter, paths: Any) -> Any:
        calls[0] += 1
        if calls[0] == 3:
            self._fed.append(1)  # whatever it held is not known any more
            raise RuntimeError("no more\nideas")
        return look(self, paths)

    monkeypatch.setattr(DraftModelDrafter, "look", fail)
    with load(models) as engine:
        engine.scheduler.controller = Eager(engine.plan.max_nodes)
        expected = engine.generate(PROMPTS[0], speculation=False, **OPTIONS)
        end = time.monotonic() + 30.0
        while time.monotonic() < end:  # beside passes this short the thread seldom gets its turn
            found = engine.generate(PROMPTS[0], **OPTIONS)
            assert same(expected, found)
            if found.stats.notes:
                break
        (note,) = found.stats.notes
        assert "RuntimeError: no more ideas" in note and "\n" not in note
        assert found.stats.overlap.startswith("off: ")
        again = engine.generate(PROMPTS[0], **OPTIONS)
        assert same(expected, again) and again.stats.notes == ()
        assert again.stats.by_source["draft-model"]["drafted"] > 0


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # nobody closes the second
def test_threads_end_with_the_engine_and_with_an_engine_nobody_holds(
    models: tuple[Path, Path],
) -> None:
    def drafting() -> list[threading.Thread]:
        return [one for one in threading.enumerate() if one.name == "edgespec-drafter"]

    with load(models) as engine:
        engine.generate(PROMPTS[0], **OPTIONS)
        assert len(drafting()) == 1
    assert not drafting()
    engine = load(models)
    engine.generate(PROMPTS[0], **OPTIONS)
    assert len(drafting()) == 1
    del engine
    end = time.monotonic() + 10
    while drafting() and time.monotonic() < end:
        gc.collect()
        time.sleep(0.01)
    assert not drafting()


def test_cores_are_lent_for_the_step_alone(models: tuple[Path, Path]) -> None:
    with load(models, threads=2) as engine:
        drafter, target = ahead(engine), engine.scheduler.target
        drafter._threads = 1  # as with no core to spare
        seen = []
        forward = type(target)._forward

        def watch(self: NativeTarget, *arguments: Any) -> Any:
            if self is target:
                seen.append(next(n for n, pace in self._paces.items() if pace is self._pace))
            return forward(self, *arguments)

        type(target)._forward = watch  # type: ignore[method-assign]
        try:
            stream = engine.stream(PROMPTS[0], **OPTIONS)
            next(stream)
            stream.close()
            assert 1 in seen
            seen.clear()
            engine.generate(PROMPTS[0], speculation=False, **OPTIONS)
            assert set(seen) == {target._team.size}
        finally:
            type(target)._forward = forward  # type: ignore[method-assign]


def test_what_was_asked_is_said_and_checked(models: tuple[Path, Path]) -> None:
    with pytest.raises(OptionError, match="--draft-model FILE"):
        edgespec.plan(models[0], overlap="on")
    with pytest.raises(OptionError, match="auto, on or off"):
        edgespec.plan(models[0], overlap="maybe")
    with pytest.raises(OptionError, match="one at a time"):
        edgespec.plan(models[0], draft_model=models[1], overlap="on", sequences=2)
    told = edgespec.plan(models[0], draft_model=models[1], overlap="off").reasons
    assert any(reason.startswith("overlap off: as requested") for reason in told)
    told = edgespec.plan(models[0], draft_model=models[1]).reasons
    assert any("used if measured to be faster" in reason for reason in told)
    with load(models, overlap="off") as engine:
        found = engine.generate(PROMPTS[0], **OPTIONS)
        assert found.stats.overlap == "off: as requested"
        assert ahead(engine)._pipeline._thread is None
    with edgespec.load(models[0], threads=1) as engine:
        assert engine.generate(PROMPTS[0], **OPTIONS).stats.overlap == ""


def throttled(
    monkeypatch: pytest.MonkeyPatch, engine: Engine, pass_s: float, draft_s: float, *, slow: int
) -> Callable[[str], float]:
    """Passes take as long as on a device, during which no core computes; drafts three times as long
    on the processor `slow`; returns what writes a reply and tells its seconds a token.
    """
    forward = NativeTarget._forward

    def late(self: NativeTarget, *arguments: Any) -> Any:
        seconds = pass_s if self is engine.scheduler.target else draft_s
        if hasattr(os, "sched_getaffinity") and os.sched_getaffinity(0) == {slow}:
            seconds *= 3.0
        time.sleep(seconds)
        return forward(self, *arguments)

    monkeypatch.setattr(NativeTarget, "_forward", late)
    engine.scheduler.controller.curve.table[:] = pass_s
    engine.scheduler.controller = Eager(
        engine.plan.max_nodes
    )  # the machine's own noise decides nothing

    def write(option: str) -> float:
        drafter = ahead(engine)
        choice = type(drafter._choice)(option)
        drafter._choice, drafter._token_s = choice, 0.0
        options: dict[str, Any] = {**OPTIONS, "temperature": 0.0, "max_tokens": 60, "max_nodes": 5}
        engine.generate(PROMPTS[0], **options)
        return 1.0 / engine.generate(PROMPTS[0], **options).stats.tokens_per_second

    return write


def test_overlap_pays_where_the_target_computes_elsewhere(
    models: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with load((models[0], models[0])) as engine:  # a draft model that is always right
        write = throttled(monkeypatch, engine, 0.012, 0.003, slow=-1)
        tries = (write("off") / write("on") for _ in range(6))  # others may want a processor
        assert any(gain > 1.15 for gain in tries)


@pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity") or len(os.sched_getaffinity(0)) < 2,
    reason="needs two processors that threads can be kept on",
)
def test_drafts_come_from_the_slow_cores_and_verdicts_from_the_fast(
    models: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two cores, one a third as fast as the other: better the drafter on it than the target."""
    one, other, *_ = sorted(os.sched_getaffinity(0))
    before = os.sched_getaffinity(0)
    seconds, seen = {}, []
    look = DraftModelDrafter.look

    def noted(self: DraftModelDrafter, paths: Any) -> Any:
        seen.append(frozenset(os.sched_getaffinity(0)))
        return look(self, paths)

    for fast, slow in ((one, other), (other, one)):
        with load((models[0], models[0])) as engine:
            drafter = ahead(engine)
            cores = Cores(frozenset({fast}), frozenset({slow}))
            ahead_of = DraftAhead(drafter._drafter, "on", cores=cores)
            ahead_of._target, ahead_of._prices = drafter._target, drafter._prices
            engine.scheduler.slots[0].market._sources[-1].drafter = ahead_of
            engine.scheduler.slots[0].market._costly[
                0
            ].account = Boundless()  # whether it pays is not asked
            seen.clear()
            monkeypatch.setattr(DraftModelDrafter, "look", noted)
            # The processor `other` is the throttled one, wherever the pipeline believes it is.
            write = throttled(monkeypatch, engine, 0.012, 0.001, slow=other)
            seconds[slow] = min(write("on") for _ in range(3))  # others may want a processor
            monkeypatch.undo()
            assert set(seen) == {frozenset({slow})}
            assert os.sched_getaffinity(0) == before
    assert seconds[other] < 0.8 * seconds[one]
