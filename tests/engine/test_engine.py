"""One engine through replies that end well, that are left, and that are refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

import edgespec
from edgespec import ContextOverflowError, EdgeSpecError, OptionError, Stats
from edgespec.backends.sequence import KvSequence
from edgespec.engine.engine import Engine
from edgespec.engine.reply_stream import Stream

PROMPT = "the cat and the hat"


def write(engine: Engine, prompt: str = PROMPT, max_tokens: int = 24) -> list[int]:
    reply = engine.generate(prompt, max_tokens=max_tokens, seed=1, ignore_eos=True)
    return reply.token_ids


def whole(engine: Engine) -> None:
    """The target has committed all of the text but its last token."""
    assert engine.scheduler.target.own.length == max(len(engine.scheduler.slots[0].ids) - 1, 0)


def test_pieces_add_up_to_the_reply(engine: Engine) -> None:
    stream = engine.stream(PROMPT, max_tokens=24, seed=1, ignore_eos=True)
    pieces = list(stream)
    assert len(pieces) > 1
    assert "".join(pieces) == stream.reply.text == stream.text
    assert stream.reply.token_ids == write(engine)
    whole(engine)


def test_max_tokens_is_exact_whatever_the_drafts(engine: Engine) -> None:
    for most in (1, 2, 3, 7):
        reply = engine.generate("a b a b a b", max_tokens=most, seed=1, ignore_eos=True)
        assert len(reply.token_ids) == reply.stats.output_tokens == most
        assert reply.finish_reason == "length"


def test_every_number_is_there_and_makes_sense(engine: Engine) -> None:
    stats = engine.generate(PROMPT, max_tokens=24, seed=7, ignore_eos=True).stats
    values = stats.as_dict()
    assert set(values) == {field.name for field in dataclasses.fields(Stats)}
    assert stats["seed"] == stats.seed == 7
    assert stats.prompt_tokens == len(engine.encode(PROMPT))
    assert stats.output_tokens == 24
    assert stats.steps == stats.output_tokens - stats.accepted
    assert stats.tokens_per_step == pytest.approx(24 / stats.steps)
    assert stats.drafted >= stats.accepted
    assert stats.drafted == sum(source["drafted"] for source in stats.by_source.values())
    assert 0 < stats.time_to_first_token_s < 60
    assert stats.tokens_per_second > 0
    assert stats.prefill_tokens_per_second > 0
    assert stats.estimated_speedup > 0
    assert stats.planned_memory_bytes == engine.plan.planned_bytes
    assert stats.peak_memory_bytes > 2**20
    assert stats.backend == "native"


def test_a_seed_that_was_drawn_can_be_used_again(engine: Engine) -> None:
    first = engine.generate(PROMPT, max_tokens=16, temperature=1.0)
    again = engine.generate(PROMPT, max_tokens=16, temperature=1.0, seed=first.stats.seed)
    assert first.token_ids == again.token_ids


def test_a_reply_ends_at_the_models_end_unless_told_otherwise(engine: Engine) -> None:
    """At a high temperature a small vocabulary reaches </s> soon."""
    options = {"temperature": 3.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "max_tokens": 480}
    stopped = next(
        (seed, reply)
        for seed in range(20)
        if (reply := engine.generate("x", raw=True, seed=seed, **options)).finish_reason == "stop"
    )
    seed, reply = stopped
    assert not engine.tokenizer.end_ids & set(reply.token_ids)
    assert reply.stats.output_tokens == len(reply.token_ids) + 1
    on = engine.generate("x", raw=True, seed=seed, ignore_eos=True, **options)
    assert on.token_ids[: len(reply.token_ids)] == reply.token_ids
    assert len(on.token_ids) > len(reply.token_ids)
    whole(engine)


def test_the_context_ends_a_reply(engine: Engine) -> None:
    reply = engine.generate(PROMPT, max_tokens=10_000, seed=1, ignore_eos=True)
    assert reply.finish_reason == "context"
    total = reply.stats.prompt_tokens + reply.stats.output_tokens
    assert total == engine.plan.context_length + 1
    whole(engine)
    assert len(write(engine)) == 24


def test_a_prompt_that_does_not_fit_is_refused_and_the_engine_goes_on(engine: Engine) -> None:
    expected = write(engine)
    with pytest.raises(ContextOverflowError, match="512"):
        write(engine, "too long " * 500)
    assert write(engine) == expected


def test_only_what_is_new_is_prefilled(engine: Engine) -> None:
    first = engine.generate("one two three", raw=True, max_tokens=4, seed=1)
    assert first.stats.cached_tokens == 0
    second = engine.generate("one two three four", raw=True, max_tokens=4, seed=1)
    assert 0 < second.stats.cached_tokens < second.stats.prompt_tokens
    again = engine.generate("one two three four", raw=True, max_tokens=4, seed=1)
    assert again.stats.cached_tokens == again.stats.prompt_tokens - 1
    assert again.stats.prefill_tokens_per_second == 0.0
    assert again.token_ids == second.token_ids


@pytest.mark.usefixtures("step_by_step")
@pytest.mark.parametrize("how", ["close", "forget", "throw"])
@pytest.mark.parametrize("after", [0, 1, 5])
def test_a_reply_that_is_left_leaves_the_engine_whole(
    engine: Engine, how: str, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    expected = write(engine)
    stream = engine.stream(PROMPT, max_tokens=200, seed=1, ignore_eos=True)
    for _ in range(after):
        next(stream)
    if how == "throw":
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(engine.scheduler.watch, "check", interrupt)
            while True:
                next(stream)
    elif how == "close":
        stream.close()
    if after and how != "forget":
        assert stream.reply.finish_reason == "cancelled"
        assert stream.reply.text == stream.text
    del stream
    whole(engine)
    assert write(engine) == expected


@pytest.mark.usefixtures("step_by_step")
def test_an_interrupt_inside_a_step_leaves_the_engine_whole(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C may come anywhere: here before, within and after the commit of each step."""
    expected = write(engine, max_tokens=96)
    target = engine.scheduler.target
    for owner, name in ((target, "forward"), (KvSequence, "commit")):
        for calls in (1, 2, 3):
            original, seen = getattr(owner, name), 0

            def interrupted(*args: object, **kwargs: object) -> object:
                nonlocal seen
                seen += 1
                if seen == calls:  # noqa: B023 - used at once
                    if name == "commit":  # noqa: B023
                        original(*args, **kwargs)  # noqa: B023
                    raise KeyboardInterrupt
                return original(*args, **kwargs)  # noqa: B023

            with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
                patch.setattr(owner, name, interrupted)
                write(engine, max_tokens=96)
            whole(engine)
            assert write(engine, max_tokens=96) == expected


def test_an_interrupt_of_the_prefill_leaves_the_engine_whole(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = write(engine, "word " * 100)
    engine.scheduler.target.own.truncate(0)

    def stop(stage: str, done: int, total: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(engine.scheduler, "_progress", stop)
    with pytest.raises(KeyboardInterrupt):
        write(engine, "word " * 100)
    monkeypatch.undo()
    assert write(engine, "word " * 100) == expected


def test_a_second_reply_waits_for_the_first(engine: Engine) -> None:
    """In one thread too: who reads the second has the first written to its end."""
    expected = write(engine, max_tokens=50)
    stream = engine.stream(PROMPT, max_tokens=50, seed=1, ignore_eos=True)
    next(stream)
    assert write(engine) == expected[:24]
    assert stream.generation.stats is not None
    for _ in stream:
        pass
    assert stream.reply.token_ids == expected


def test_a_stream_that_was_never_read_blocks_nothing(engine: Engine) -> None:
    stream = engine.stream(PROMPT)
    write(engine)
    assert not stream.started
    with pytest.raises(EdgeSpecError, match="not finished"):
        _ = stream.reply


WRONG = {
    "max_tokens": 0,
    "temperature": -0.5,
    "top_k": -1,
    "top_p": 1.5,
    "min_p": float("nan"),
    "seed": -1,
    "repetition_penalty": 0.0,
    "max_nodes": 0,
}


@pytest.mark.parametrize("name", WRONG)
def test_values_that_mean_nothing_are_refused_before_work(engine: Engine, name: str) -> None:
    with pytest.raises(OptionError, match=name):
        engine.stream(PROMPT, **{name: WRONG[name]})


def test_an_empty_prompt_is_refused(engine: Engine) -> None:
    with pytest.raises(OptionError, match="empty"):
        engine.generate([], max_tokens=4)


def test_an_engine_can_be_closed_twice_and_then_says_so(model: Path) -> None:
    engine = edgespec.load(model, threads=1)
    write(engine)
    engine.close()
    engine.close()
    with pytest.raises(EdgeSpecError, match="closed"):
        write(engine)


def test_the_cost_curve_covers_the_plan(engine: Engine) -> None:
    curve = engine.cost_curve()
    assert 1 in curve
    assert max(curve) <= engine.plan.max_nodes
    assert all(seconds > 0 for seconds in curve.values())


def test_progress_names_its_stages(model: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    with edgespec.load(model, threads=1, progress=lambda *step: seen.append(step)) as engine:
        write(engine, "word " * 60)
    stages = list(dict.fromkeys(stage for stage, _, _ in seen))
    assert [stage for stage in stages if stage != "measure"] == [
        "plan",
        "kernels",
        "load",
        "prefill",
    ]
    for stage in stages:
        steps = [(done, total) for name, done, total in seen if name == stage]
        assert steps[-1][0] == steps[-1][1]


def test_streams_are_iterators(engine: Engine) -> None:
    stream = engine.stream(PROMPT, max_tokens=2, seed=1)
    assert isinstance(stream, Stream)
    assert iter(stream) is stream
