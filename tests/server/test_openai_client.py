"""OpenAI's own client against the server."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import openai
import pytest

from edgespec.engine.engine import Engine
from tests.support.http_server import Served

TURNS: Any = [{"role": "user", "content": "Tell me a story about a dog."}]
SHORT: dict[str, Any] = {"model": "tiny", "seed": 1, "max_tokens": 24}


@pytest.fixture(scope="module")
def client(served: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def test_a_chat_completion_is_the_engines_reply(client: openai.OpenAI, engine: Engine) -> None:
    expected = engine.generate(messages=TURNS, seed=1, max_tokens=24)
    found = client.chat.completions.create(messages=TURNS, **SHORT)
    (choice,) = found.choices
    assert choice.message.content == expected.text
    assert choice.message.role == "assistant"
    assert choice.finish_reason == {"stop": "stop", "length": "length"}[expected.finish_reason]
    assert found.usage is not None
    assert found.usage.completion_tokens == len(expected.token_ids)
    assert found.usage.prompt_tokens == expected.stats.prompt_tokens
    assert found.usage.total_tokens == found.usage.prompt_tokens + found.usage.completion_tokens
    assert found.model_extra is not None
    assert found.model_extra["edgespec"][0]["seed"] == 1


def test_speculation_can_be_left_out_of_one_request(client: openai.OpenAI) -> None:
    found = [
        client.chat.completions.create(messages=TURNS, extra_body={"speculation": how}, **SHORT)
        for how in ("off", "on")
    ]
    assert found[0].choices[0].message.content == found[1].choices[0].message.content
    assert found[0].model_extra is not None
    assert found[0].model_extra["edgespec"][0]["drafted"] == 0


def test_a_stream_is_the_same_text(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(messages=TURNS, n=2, **SHORT)
    texts, reasons = {0: "", 1: ""}, {}
    usage = None
    for chunk in client.chat.completions.create(
        messages=TURNS, n=2, stream=True, stream_options={"include_usage": True}, **SHORT
    ):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            if choice.finish_reason:
                reasons[choice.index] = choice.finish_reason
    assert texts == {choice.index: choice.message.content for choice in whole.choices}
    assert reasons == {choice.index: choice.finish_reason for choice in whole.choices}
    assert texts[0] != texts[1]
    assert usage is not None and whole.usage is not None
    assert usage.completion_tokens == whole.usage.completion_tokens


def test_log_probabilities_come_with_each_token(client: openai.OpenAI) -> None:
    found = client.chat.completions.create(
        messages=TURNS, logprobs=True, top_logprobs=3, temperature=0.0, **SHORT
    )
    (choice,) = found.choices
    assert choice.logprobs is not None and choice.logprobs.content is not None
    spelled = b"".join(bytes(token.bytes or []) for token in choice.logprobs.content)
    assert spelled.decode() == choice.message.content
    for token in choice.logprobs.content:
        assert token.logprob == max(other.logprob for other in token.top_logprobs) <= 0
        assert len(token.top_logprobs) == 3
    streamed = []
    for chunk in client.chat.completions.create(
        messages=TURNS, logprobs=True, temperature=0.0, stream=True, **SHORT
    ):
        if chunk.choices and chunk.choices[0].logprobs is not None:
            streamed += chunk.choices[0].logprobs.content or []
    assert [one.logprob for one in streamed] == [one.logprob for one in choice.logprobs.content]


def test_stop_texts_end_a_reply(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(messages=TURNS, **SHORT).choices[0].message.content
    assert whole is not None
    stop = whole[8:12]
    found = client.chat.completions.create(messages=TURNS, stop=[stop], **SHORT).choices[0]
    assert found.message.content == whole[: whole.index(stop)]
    assert found.finish_reason == "stop"


def test_a_schema_binds_the_answer(client: openai.OpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {"colour": {"enum": ["red", "blue"]}, "good": {"type": "boolean"}},
        "required": ["colour", "good"],
        "additionalProperties": False,
    }
    form: Any = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    found = client.chat.completions.create(messages=TURNS, response_format=form, **SHORT)
    value = json.loads(found.choices[0].message.content or "")
    assert set(value) == {"colour", "good"} and value["colour"] in ("red", "blue")


def test_completions_continue_texts(client: openai.OpenAI, engine: Engine) -> None:
    found = client.completions.create(
        model="tiny", prompt=["Once upon", "The red"], max_tokens=8, seed=2, n=2, logprobs=1
    )
    texts = [
        engine.generate(prompt, raw=True, max_tokens=8, seed=seed).text
        for prompt in ("Once upon", "The red")
        for seed in (2, 3)
    ]
    assert [choice.text for choice in found.choices] == texts
    assert [choice.index for choice in found.choices] == [0, 1, 2, 3]
    logprobs = found.choices[0].logprobs
    assert logprobs is not None and "".join(logprobs.tokens or []) == texts[0]
    ids = engine.tokenizer.encode("Once upon")
    again = client.completions.create(model="tiny", prompt=ids, max_tokens=8, seed=2)
    assert again.choices[0].text == texts[0]


def test_models_are_listed(client: openai.OpenAI, engine: Engine) -> None:
    names = [model.id for model in client.models.list()]
    assert names == [engine.file.path.stem, "tiny"]
    assert client.models.retrieve("tiny").id == "tiny"


def test_embeddings_are_the_engines(client: openai.OpenAI, engine: Engine) -> None:
    texts = ["a dog", "a cat"]
    found = client.embeddings.create(model="tiny", input=texts, encoding_format="float")
    for one, text in zip(found.data, texts, strict=True):
        assert np.allclose(one.embedding, engine.embed(text), atol=1e-6)
    coded = client.embeddings.with_raw_response.create(
        model="tiny", input="a dog", encoding_format="base64", extra_body={"pooling": "last"}
    )
    raw = base64.b64decode(json.loads(coded.text)["data"][0]["embedding"])
    assert np.allclose(np.frombuffer(raw, "<f4"), engine.embed("a dog", pooling="last"), atol=1e-6)
    extra: Any = {"encoding_format": None}  # as litellm sends it
    (one,) = client.embeddings.create(model="tiny", input="a dog", extra_body=extra).data
    assert np.allclose(one.embedding, engine.embed("a dog"), atol=1e-6)
    with pytest.raises(openai.BadRequestError, match="input has no text"):
        client.embeddings.create(model="tiny", input=[])


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"temperature": -1}, "temperature is -1"),
        ({"temperature": "hot"}, "temperature"),
        ({"n": 1000}, "n: "),
        ({"messages": [{"role": "user", "content": "word " * 2000}]}, "tokens and the context"),
        ({"messages": [{"content": "who?"}]}, "a role and a content"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "image_url.*reads text alone",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": 3}}}},
            "schema",
        ),
        ({"response_format": {"type": "json_object", "schema": "/etc/passwd"}}, "an object"),
        ({"response_format": {"type": "json_object", "schema": 3}}, "an object"),
        ({"logit_bias": {"99999999": 1}}, "99999999"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(
    client: openai.OpenAI, wrong: dict[str, Any], words: str
) -> None:
    asked: dict[str, Any] = {"model": "tiny", "messages": TURNS, "max_tokens": 4} | wrong
    with pytest.raises(openai.BadRequestError, match=words):
        client.chat.completions.create(**asked)
    with pytest.raises(openai.BadRequestError, match=words):
        client.chat.completions.create(**asked, stream=True)


def test_another_model_is_not_found(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="no model 'gpt-9'"):
        client.chat.completions.create(model="gpt-9", messages=TURNS)


def test_many_clients_get_what_they_would_get_alone(client: openai.OpenAI, engine: Engine) -> None:
    def turns(place: int) -> Any:
        return [{"role": "user", "content": f"Count to {place} and tell me about the sea."}]

    expected = [
        engine.generate(messages=turns(place), seed=place, max_tokens=16).text
        for place in range(16)
    ]

    def ask(place: int) -> str | None:
        found = client.chat.completions.create(
            model="tiny", messages=turns(place), seed=place, max_tokens=16, user=str(place % 3)
        )
        return found.choices[0].message.content

    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(ask, range(16))) == expected
