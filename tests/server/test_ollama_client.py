"""Ollama's own client against the server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from edgespec.engine.engine import Engine
from tests.support.http_server import Served

ollama = pytest.importorskip("ollama")
TURNS = [{"role": "user", "content": "Tell me about a dog."}]
OPTIONS: Any = {"seed": 1, "num_predict": 12}


@pytest.fixture(scope="module")
def client(served: Served) -> Iterator[Any]:
    made = ollama.Client(host=served.url)
    yield made
    made._client.close()


def test_it_chats_and_generates(client: Any, engine: Engine) -> None:
    expected = engine.generate(messages=TURNS, seed=1, max_tokens=12).text
    whole = client.chat(model="tiny", messages=TURNS, options=OPTIONS)
    assert whole.message.content == expected and whole.done
    pieces = client.chat(model="tiny", messages=TURNS, options=OPTIONS, stream=True)
    assert "".join(one.message.content for one in pieces) == expected
    found = client.generate(model="tiny", prompt="Once", raw=True, options=OPTIONS)
    assert found.response == engine.generate("Once", raw=True, seed=1, max_tokens=12).text


def test_it_embeds(client: Any, engine: Engine) -> None:
    found = client.embed(model="tiny", input=["a dog", "the sea"])
    assert [list(one) for one in found.embeddings] == [
        engine.embed(text).tolist() for text in ("a dog", "the sea")
    ]
    assert client.embed(model="tiny", input=[]).embeddings == []
    assert "embedding" in client.show("tiny").capabilities


def test_it_lists_the_model(client: Any, engine: Engine) -> None:
    names = [model.model for model in client.list().models]
    assert names == [f"{engine.file.path.stem}:latest", "tiny:latest"]
    assert client.show("tiny").details.quantization_level == engine.plan.quantisation
    with pytest.raises(ollama.ResponseError):
        client.chat(model="other", messages=TURNS)
