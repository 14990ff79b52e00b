"""Reasoning in replies and conversations; the model is noise, so the tags are what it wrote."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import edgespec
from edgespec.engine.engine import Engine
from edgespec.models import reasoning
from tests.support.gguf_models import write_gguf

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content and keep %}({{ m.reasoning_content }}){% endif %}"
    "{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if tools %}tools: {{ tools | tojson }}{% endif %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is undefined or enable_thinking %}<think>\n{% endif %}{% endif %}"
)
OPTIONS = {"max_tokens": 40, "seed": 1, "temperature": 0.0, "ignore_eos": True}


@pytest.fixture(scope="module")
def path(tmp_path_factory: Any) -> Path:
    folder = tmp_path_factory.mktemp("thinking")
    return write_gguf(folder / "m.gguf", tokenizer="gpt2", template=TEMPLATE, context=1024)


@pytest.fixture
def engine(path: Path) -> Iterator[Engine]:
    with edgespec.load(path, memory="auto", threads=1) as engine:
        yield engine


def test_a_thought_that_never_ends_is_no_answer(engine: Engine) -> None:
    stream = engine.stream("hello", **OPTIONS)
    pieces = list(stream)
    reply = stream.reply
    assert all(piece.reasoning for piece in pieces)
    assert reply.text == ""
    assert "".join(pieces) == reply.reasoning
    assert reply.reasoning == engine.tokenizer.decode(reply.token_ids).strip()
    assert len(reply.token_ids) == 40


def test_thoughts_and_answer(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = engine.generate("hello", **OPTIONS)
    end = whole.reasoning[len(whole.reasoning) // 2 :][:3]
    monkeypatch.setattr(reasoning, "_TAGS", (("<think>", end),))
    engine.file._knows_reasoning = False
    thought, _, answer = whole.reasoning.partition(end)
    stream = engine.stream("hello", **OPTIONS)
    pieces = list(stream)
    assert stream.reply.token_ids == whole.token_ids
    assert stream.reply.reasoning == "".join(p for p in pieces if p.reasoning) == thought.strip()
    said = "".join(p for p in pieces if not p.reasoning)
    assert stream.reply.text == said
    assert said.strip() == answer.strip()
    many = engine.generate_batch(["hello"], **OPTIONS)[0]
    assert (many.text, many.reasoning) == (stream.reply.text, stream.reply.reasoning)


def test_a_conversation_goes_on_with_the_answer_alone(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = engine.chat()
    chat.send("hello", **OPTIONS)
    whole = chat.messages[-1]["reasoning_content"]
    end = whole[len(whole) // 2 :][:3]
    monkeypatch.setattr(reasoning, "_TAGS", (("<think>", end),))
    engine.file._knows_reasoning = False
    chat.reset()
    first = chat.send("hello", **OPTIONS)
    assert first.reasoning
    assert first.text
    assert chat.messages[-1] == {
        "role": "assistant", "content": first.text, "reasoning_content": first.reasoning,
    }  # fmt: skip
    stream = chat.stream("go on", **OPTIONS)
    next(stream)
    stream.close()
    asked = engine.tokenizer.decode(stream.request.prompt_ids)
    assert first.text in asked
    assert first.reasoning not in asked


def test_raw_prompts_and_token_ids_have_no_reasoning(engine: Engine) -> None:
    for reply in (
        engine.generate("<think>\n", raw=True, **OPTIONS),
        engine.generate(engine.encode("hello"), **OPTIONS),
    ):
        assert reply.reasoning == ""
        assert reply.text == engine.tokenizer.decode(reply.token_ids)


def test_thinking_is_asked_of_the_template(engine: Engine) -> None:
    ends = {
        thinking: engine.tokenizer.decode(engine.encode("hello", thinking=thinking))[-8:]
        for thinking in (None, True, False)
    }
    assert ends[None] == ends[True] == "<think>\n"
    assert ends[False] != ends[True]
    reply = engine.generate("hello", thinking=False, **OPTIONS)
    assert reply.reasoning == ""
    assert reply.text == engine.tokenizer.decode(reply.token_ids)
    chat = engine.chat(tools=[{"name": "weather"}])
    assert 'tools: [{"name": "weather"}]' in chat.render([{"role": "user", "content": "x"}])
    assert chat.send("hello", thinking=False, **OPTIONS).reasoning == ""


def test_a_reply_that_is_stopped_keeps_what_was_thought(engine: Engine) -> None:
    chat = engine.chat()
    stream = chat.stream("hello", **OPTIONS)
    first = next(stream)
    stream.close()
    assert stream.reply.reasoning.startswith(first)
    assert chat.messages[-1]["content"] == ""
