"""Several replies at once: each is what it would be alone, whoever else is written with it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import edgespec
from edgespec import ContextOverflowError, EdgeSpecError, OptionError
from edgespec.drafting.registry import DRAFTERS
from edgespec.engine.engine import Engine
from edgespec.engine.reply import Reply
from edgespec.loading.model_drafters import EARLY_EXIT
from tests.support.equality import verify_everything
from tests.support.gguf_models import CHATML, write_gguf

PROMPTS = [
    "Fix this text, word by word: the red ball and the red box and the red ball is red.",
    "a",
    "one two three one two three one two",
    "a red ball, a red ball, a red ball",
    "the cat and the hat and the dog " * 5,
    "one two three",
    "nothing like the others: xyzzy",
    "the cat and the hat and the cat and the",
]
KINDS: dict[str, dict[str, Any]] = {
    "f32": {"backend": "native"},
    "q8": {"backend": "native", "type": "Q8_0"},
    "q8-int8": {"backend": "native", "type": "Q8_0", "kv_type": "int8"},
    "q8-q4": {"backend": "native", "type": "Q8_0", "kv_type": "q4"},
    "reference": {"backend": "reference"},
}
SEQUENCES = 4


def open_engine(folder: Path, kind: str, **options: Any) -> Engine:
    settings = dict(KINDS[kind])
    path = folder / f"{kind}.gguf"
    model_type = settings.pop("type", "F32")
    if not path.exists():
        write_gguf(path, template=CHATML, type=model_type)
    defaults = {"threads": 1, "sequences": SEQUENCES, "max_nodes": 24}
    return edgespec.load(path, **(defaults | settings | options))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("batch")


@pytest.fixture(scope="module")
def shared(folder: Path) -> Iterator[Engine]:
    with open_engine(folder, "q8") as opened:
        yield opened


@pytest.fixture
def engine(shared: Engine) -> Iterator[Engine]:
    """An engine whose texts are forgotten, and which is whole afterwards."""
    for session in shared.scheduler.take_slots(SEQUENCES):
        session.sequence.truncate(0)
        session.ids.clear()
    yield shared
    whole(shared)
    assert not shared.line.is_driven


def whole(engine: Engine) -> None:
    """Every text has committed all of its tokens but the last."""
    for session in engine.scheduler.take_slots(SEQUENCES):
        assert session.sequence.length == max(len(session.ids) - 1, 0)


def alone(engine: Engine, prompts: list[str], **options: Any) -> list[Reply]:
    return [engine.generate(prompt, speculation=False, **options) for prompt in prompts]


def same(left: list[Reply], right: list[Reply]) -> bool:
    return [(reply.token_ids, reply.text, reply.finish_reason) for reply in left] == [
        (reply.token_ids, reply.text, reply.finish_reason) for reply in right
    ]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_batch_of_any_size_is_plain_text(folder: Path, kind: str, temperature: float) -> None:
    """Ragged prompts, more of them than go at once; with and without speculation."""
    options: dict[str, Any] = {"temperature": temperature, "seed": 3, "max_tokens": 30}
    if kind == "reference":
        options["max_tokens"] = 8
    with open_engine(folder, kind) as engine:
        expected = alone(engine, PROMPTS, **options)
        for max_batch in (1, 2, SEQUENCES):
            for speculation in (False, True):
                found = engine.generate_batch(
                    PROMPTS, max_batch=max_batch, speculation=speculation, **options
                )
                assert same(expected, found)
        whole(engine)


@pytest.mark.parametrize("name", [*DRAFTERS, EARLY_EXIT])
def test_every_drafter_leaves_every_text_alone(
    bundled_model: Path, name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("EDGESPEC_DATA", str(tmp_path))
    with edgespec.load(bundled_model, threads=1, drafters=name, sequences=8) as engine:
        verify_everything(engine)
        drafted = 0
        for temperature in (0.0, 0.8):
            options: dict[str, Any] = {
                "temperature": temperature, "seed": 5, "max_tokens": 40, "ignore_eos": True
            }  # fmt: skip
            expected = alone(engine, PROMPTS, **options)
            found = engine.generate_batch(PROMPTS, **options)
            assert same(expected, found)
            assert same(expected[:1], engine.generate_batch(PROMPTS[:1], **options))
            drafted += sum(reply.stats.drafted for reply in found)
        assert drafted > 0
        for session in engine.scheduler.take_slots(8):
            assert session.market.size_bytes <= engine.plan.drafter_bytes


def test_all_drafters_together(
    bundled_model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("EDGESPEC_DATA", str(tmp_path))
    every = ",".join([*DRAFTERS, EARLY_EXIT])
    with edgespec.load(bundled_model, threads=1, drafters=every, sequences=5) as engine:
        verify_everything(engine)
        for temperature, prompts in ((0.0, PROMPTS[3:4]), (0.8, PROMPTS[:2])):
            options: dict[str, Any] = {"temperature": temperature, "seed": 5, "max_tokens": 48}
            found = engine.generate_batch(prompts, n=5, **options)
            expected = [
                engine.generate(prompt, speculation=False, **(options | {"seed": 5 + sample}))
                for prompt in prompts
                for sample in range(5)
            ]
            assert same(expected, found)


def test_samples_of_a_prompt_hear_each_other(bundled_model: Path) -> None:
    """Greedy replies say the same, so those that come later are told by those before, though each
    prompt's are written among others'.
    """
    with edgespec.load(bundled_model, threads=1, drafters="consensus", sequences=4) as engine:
        verify_everything(engine)
        options: dict[str, Any] = {"temperature": 0.0, "max_tokens": 24, "ignore_eos": True}
        turns = [PROMPTS[0], PROMPTS[3]] * 4
        found = engine.generate_batch(turns, seed=1, max_batch=2, **options)
        assert same(found, alone(engine, turns, seed=1, **options))
        steps = [reply.stats.steps for reply in found]
        assert max(steps[2:]) < min(steps[:2])


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_samples_of_a_prompt_differ_by_their_seeds(engine: Engine, temperature: float) -> None:
    options: dict[str, Any] = {"temperature": temperature, "max_tokens": 20}
    found = engine.generate_batch(PROMPTS[:2], n=3, seed=7, **options)
    expected = [
        engine.generate(prompt, seed=seed, **options)
        for prompt in PROMPTS[:2]
        for seed in (7, 8, 9)
    ]
    assert same(expected, found)
    assert [reply.stats.seed for reply in found] == [7, 8, 9] * 2
    chosen = engine.generate_batch(PROMPTS[:1], n=2, seeds=[9, 7], **options)
    assert same([expected[2], expected[0]], chosen)


def test_prompts_share_what_they_have_in_common(engine: Engine) -> None:
    prompt = "the cat and the hat " * 40
    found = engine.generate_batch([prompt] * 3 + [prompt + "again"], seed=1, max_tokens=3)
    counts = [reply.stats.cached_tokens for reply in found]
    num_tokens = found[0].stats.prompt_tokens
    assert counts[:3] == [0, num_tokens - 1, num_tokens - 1]
    assert 256 < counts[3] < num_tokens
    kept = engine.scheduler.target.store.only
    tables = [session.sequence.state for session in engine.scheduler.take_slots(SEQUENCES)]
    assert sum(map(len, tables)) > kept.num_blocks


def test_pieces_come_as_they_are_written(engine: Engine) -> None:
    options: dict[str, Any] = {"seed": 2, "max_tokens": 24, "ignore_eos": True}
    stream = engine.stream_batch(PROMPTS, **options)
    pieces: list[str] = [""] * len(PROMPTS)
    order = []
    for index, piece in stream:
        pieces[index] += piece
        assert stream.texts[index].startswith(pieces[index])
        order.append(index)
    assert pieces == [reply.text for reply in stream.replies]
    assert order.index(1) < len(order) - 1 - order[::-1].index(0)  # side by side
    assert order.index(SEQUENCES) > order.index(0)  # and who waits comes later
    assert sorted(stream.ended) == list(range(len(PROMPTS)))
    assert same(alone(engine, PROMPTS, **options), stream.replies)


def test_requests_bring_their_own_options(engine: Engine) -> None:
    asked: list[dict[str, Any]] = [
        {"seed": 1, "max_tokens": 5, "temperature": 0.0},
        {"seed": 2, "max_tokens": 30, "temperature": 1.2, "repetition_penalty": 1.3},
        {"seed": 3, "max_tokens": 9, "speculation": False},
        {"seed": 4, "max_tokens": 12, "max_nodes": 2, "raw": True},
        {"seed": 5, "max_tokens": 7, "top_k": 5, "ignore_eos": True},
    ]
    pairs = list(zip(PROMPTS, asked, strict=False))
    expected = [engine.generate(prompt, **options) for prompt, options in pairs]
    requests = [engine.request(prompt, **options) for prompt, options in pairs]
    assert same(expected, engine.generate_batch(requests))


@pytest.mark.parametrize("after", [0, 1, 7])
def test_cancelling_one_leaves_the_others_alone(engine: Engine, after: int) -> None:
    options: dict[str, Any] = {"seed": 2, "max_tokens": 24, "ignore_eos": True}
    expected = alone(engine, PROMPTS, **options)
    stream = engine.stream_batch(PROMPTS, **options)
    for _ in range(after):
        next(stream)
    cancelled = [2, 6]  # one is being written, the other waits
    for index in (*cancelled, 2):  # twice is once
        stream.cancel(index)
    for _ in stream:
        pass
    for index, (reply, whole_reply) in enumerate(zip(stream.replies, expected, strict=True)):
        if index in cancelled:
            assert reply.finish_reason == "cancelled"
            assert whole_reply.token_ids[: len(reply.token_ids)] == reply.token_ids
        else:
            assert same([reply], [whole_reply])
    assert stream.replies[6].text == ""
    assert stream.replies[6].stats.output_tokens == 0


def test_a_stream_that_is_left_ends_all(engine: Engine) -> None:
    stream = engine.stream_batch(PROMPTS, seed=1, max_tokens=100, ignore_eos=True)
    for _ in range(9):
        next(stream)
    with pytest.raises(EdgeSpecError, match="not finished"):
        _ = stream.replies
    stream.close()
    assert {reply.finish_reason for reply in stream.replies} == {"cancelled"}
    whole(engine)
    unread = engine.stream_batch(PROMPTS, seed=1)
    next(unread)
    del unread
    assert engine.generate("hello", max_tokens=2, seed=1).text is not None


def test_a_failed_pass_leaves_the_engine_whole(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = engine.stream_batch(PROMPTS, seed=1, max_tokens=30, ignore_eos=True)
    for _ in range(6):
        next(stream)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(engine.scheduler.target, "_forward", interrupt)
        for _ in stream:
            pass
    whole(engine)
    options: dict[str, Any] = {"seed": 2, "max_tokens": 9}
    assert same(alone(engine, PROMPTS, **options), engine.generate_batch(PROMPTS, **options))


def test_a_full_context_ends_only_its_own_reply(folder: Path) -> None:
    options: dict[str, Any] = {"seed": 1, "max_tokens": 400, "ignore_eos": True}
    prompts = ["a", "the cat and the hat and the cat and the " * 4]
    with open_engine(folder, "q8", context=256) as engine:
        short, long = engine.generate_batch(prompts, **options)
        assert (short.finish_reason, long.finish_reason) == ("context", "context")
        assert len(short.token_ids) > len(long.token_ids)
        assert same(alone(engine, prompts, **options), [short, long])


def test_conversations_go_on_after_a_batch(engine: Engine) -> None:
    chat = engine.chat()
    chat.send("hello", seed=1, max_tokens=9)
    engine.generate_batch(PROMPTS, seed=1, max_tokens=5)
    after = chat.send("and now?", seed=2, max_tokens=9)
    other = engine.chat()
    other.send("hello", seed=1, max_tokens=9)
    assert other.send("and now?", seed=2, max_tokens=9).token_ids == after.token_ids


def test_nothing_asked_is_nothing_written(engine: Engine) -> None:
    assert engine.generate_batch([]) == []


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"n": 0}, "n is 0"),
        ({"max_batch": 0}, "max_batch is 0.*loaded for 4"),
        ({"max_batch": 5}, "sequences=5"),
        ({"n": 2, "seeds": [1]}, "give 2 seeds"),
        ({"seeds": [1], "seed": 2}, "give 1 seeds"),
        ({"max_tokens": 0}, "max_tokens is 0"),
    ],
)
def test_options_that_mean_nothing(engine: Engine, options: dict[str, Any], found: str) -> None:
    with pytest.raises(OptionError, match=found):
        engine.generate_batch(PROMPTS, **options)


def test_prompts_that_cannot_be_answered(engine: Engine) -> None:
    with pytest.raises(OptionError, match="a list of prompts"):
        engine.generate_batch("one text")  # type: ignore[arg-type]
    with pytest.raises(ContextOverflowError, match="tokens and the context holds"):
        engine.generate_batch(["a", "a b c " * 500])
    with pytest.raises(OptionError, match="empty"):
        engine.generate_batch([[]])


def test_one_text_at_once_is_what_load_gives(folder: Path) -> None:
    with open_engine(folder, "q8", sequences=1) as engine:
        replies = engine.generate_batch(PROMPTS[:3], seed=1, max_tokens=5)
        assert same(alone(engine, PROMPTS[:3], seed=1, max_tokens=5), replies)
        with pytest.raises(OptionError, match="sequences=2"):
            engine.generate_batch(PROMPTS, max_batch=2)


def test_texts_slide_in_a_batch_as_they_do_alone(model: Path) -> None:
    """Replies that outgrow their context beside others that do not, and a prompt that is too
    long.
    """
    options: dict[str, Any] = {"seed": 3, "ignore_eos": True, "raw": True, "on_overflow": "sliding"}
    prompts = ["one two three", "the cat and the hat " * 30, "so"]
    with edgespec.load(model, threads=1, context=128, sequences=2) as engine:
        alone = [engine.generate(prompt, max_tokens=200, **options) for prompt in prompts]
        found = engine.generate_batch(prompts, max_tokens=200, **options)
    assert [reply.token_ids for reply in found] == [reply.token_ids for reply in alone]
    dropped = [reply.stats.dropped_tokens for reply in found]
    assert dropped == [reply.stats.dropped_tokens for reply in alone] and min(dropped) > 0
    assert {reply.finish_reason for reply in found} == {"length"}
