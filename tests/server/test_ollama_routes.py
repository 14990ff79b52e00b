"""Ollama's protocol, as its clients speak it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from edgespec.engine.engine import Engine
from tests.support.http_server import Served

TURNS = [{"role": "user", "content": "Tell me a story about a dog."}]
OPTIONS: dict[str, Any] = {"seed": 1, "num_predict": 20, "temperature": 0.7, "repeat_penalty": 1.1}


def expected(engine: Engine) -> str:
    return engine.generate(
        messages=TURNS, seed=1, max_tokens=20, temperature=0.7, repetition_penalty=1.1
    ).text


def test_a_chat_comes_in_lines(served: Served, engine: Engine) -> None:
    body = {"model": "tiny:latest", "messages": TURNS, "options": OPTIONS}
    found = served.ask("POST", "/api/chat", body)
    assert found.headers["content-type"].startswith("application/x-ndjson")
    lines = [json.loads(line) for line in found.text.splitlines()]
    assert "".join(line["message"]["content"] for line in lines) == expected(engine)
    assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]
    last = lines[-1]
    assert last["done_reason"] in ("stop", "length")
    assert last["eval_count"] <= 20 and last["prompt_eval_count"] > 0
    assert last["total_duration"] >= last["eval_duration"] > 0


def test_a_chat_comes_whole(served: Served, engine: Engine) -> None:
    body = {"model": "tiny", "messages": TURNS, "options": OPTIONS, "stream": False}
    found = served.ask("POST", "/api/chat", body).json
    assert found["message"] == {"role": "assistant", "content": expected(engine)}
    assert found["done"] is True


def test_generate_takes_a_prompt_and_a_system_message(served: Served, engine: Engine) -> None:
    body = {"model": "tiny", "prompt": "Hello", "options": OPTIONS, "stream": False}
    raw = engine.generate(
        "Hello", raw=True, seed=1, max_tokens=20, temperature=0.7, repetition_penalty=1.1
    )
    assert served.ask("POST", "/api/generate", body | {"raw": True}).json["response"] == raw.text
    found = served.ask("POST", "/api/generate", body | {"system": "Be brief."}).json
    turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
    reply = engine.generate(
        messages=turns, seed=1, max_tokens=20, temperature=0.7, repetition_penalty=1.1
    )
    assert found["response"] == reply.text


def test_a_format_binds_the_answer(served: Served) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"],
              "additionalProperties": False}  # fmt: skip
    body = {"model": "tiny", "messages": TURNS, "format": schema, "stream": False}
    assert json.loads(served.ask("POST", "/api/chat", body).json["message"]["content"])["a"] in (
        1,
        2,
    )


def test_a_format_names_no_file(served: Served, tmp_path: Path) -> None:
    """Else a client could ask what is in the server's files."""
    secret = tmp_path / "secret.json"
    secret.write_text('{"const": "secret"}')
    for name in (str(secret), "/dev/zero", "yaml"):
        body = {"model": "tiny", "messages": TURNS, "format": name, "stream": False}
        found = served.ask("POST", "/api/chat", body)
        assert found.status == 400 and "secret" not in found.text, found
    body |= {"format": '{"enum": ["a"]}'}
    assert served.ask("POST", "/api/chat", body).json["message"]["content"] == '"a"'


def test_an_empty_request_loads(served: Served) -> None:
    assert served.ask("POST", "/api/generate", {"model": "tiny"}).json["done_reason"] == "load"
    assert served.ask("POST", "/api/chat", {"model": "tiny"}).json["done_reason"] == "load"


def test_the_model_is_described(served: Served, engine: Engine) -> None:
    models = served.ask("GET", "/api/tags").json["models"]
    assert models[0]["name"] == f"{engine.file.path.stem}:latest"
    assert models[0]["size"] == engine.file.path.stat().st_size
    shown = served.ask("POST", "/api/show", {"model": "tiny"}).json
    family = shown["details"]["family"]
    assert shown["model_info"][f"{family}.context_length"] == 512
    assert served.ask("GET", "/api/version").json["version"]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"model": "other", "messages": TURNS}, 404),
        ({"model": "tiny", "messages": TURNS, "options": {"top_k": "many"}}, 400),
        ({"model": "tiny", "messages": "hello"}, 400),
    ],
)
def test_what_cannot_be_is_refused(served: Served, body: dict[str, Any], status: int) -> None:
    found = served.ask("POST", "/api/chat", body)
    assert found.status == status
    assert found.json["error"]
