"""litellm, which many programs ask models through, against the server."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from edgespec.engine.engine import Engine
from tests.support.http_server import Served

LITELLM = os.environ.get("EDGESPEC_LITELLM") or shutil.which("litellm")
"""In an environment of its own, whose Python lies beside it: it wants other versions of much."""
TURNS = [{"role": "user", "content": "Tell me a story about a dog."}]
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": SCHEMA}}]
PROGRAM = """
import json, sys
import litellm

url, turns, schema, tools = json.loads(sys.stdin.read())
openai = {"model": "openai/tiny", "api_base": url + "/v1", "api_key": "none", "messages": turns}
ollama = {"model": "ollama_chat/tiny", "api_base": url, "messages": turns}
short = {"seed": 1, "max_tokens": 24}
bound = {"type": "json_schema", "json_schema": {"name": "dog", "schema": schema, "strict": True}}
found = {}
for name, asked in (("openai", openai), ("ollama", ollama)):
    whole = litellm.completion(**asked, **short)
    pieces = litellm.completion(**asked, **short, stream=True)
    found[name] = whole.choices[0].message.content
    found[name + " streamed"] = "".join(one.choices[0].delta.content or "" for one in pieces)
chosen = {"tools": tools, "tool_choice": "required", "max_tokens": 64, "seed": 1}
call = litellm.completion(**openai, **chosen).choices[0].message.tool_calls[0].function
found["tool"] = [call.name, json.loads(call.arguments)]
pieces = litellm.completion(**openai, **chosen, stream=True)
calls = [one.choices[0].delta.tool_calls for one in pieces]
texts = [one[0].function.arguments or "" for one in calls if one]
found["tool streamed"] = json.loads("".join(texts))
answer = litellm.completion(**openai, response_format=bound, max_tokens=64, seed=1)
found["schema"] = json.loads(answer.choices[0].message.content)
asked = {"model": "openai/tiny", "api_base": url + "/v1", "api_key": "none", "input": ["a dog"]}
found["embedding"] = litellm.embedding(**asked).data[0]["embedding"]
try:
    litellm.completion(**openai, temperature=-1)
except litellm.BadRequestError as error:
    found["refused"] = str(error)
print(json.dumps(found))
"""

pytestmark = pytest.mark.skipif(LITELLM is None, reason="litellm is not installed")


@pytest.fixture(scope="module")
def found(served: Served) -> Any:
    assert LITELLM is not None
    python = Path(LITELLM).with_name("python")
    done = subprocess.run(
        [python, "-c", PROGRAM],
        input=json.dumps([served.url, TURNS, SCHEMA, TOOLS]),
        capture_output=True, text=True, timeout=300,
        env=os.environ | {"LITELLM_LOCAL_MODEL_COST_MAP": "True"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_chats_are_the_engines_replies(found: Any, engine: Engine) -> None:
    expected = engine.generate(messages=TURNS, seed=1, max_tokens=24).text
    assert found["openai"] == found["openai streamed"] == expected
    assert found["ollama"] == found["ollama streamed"] == expected


def test_tools_and_schemas_bind_the_reply(found: Any) -> None:
    name, arguments = found["tool"]
    assert name == "look"
    assert found["tool streamed"] == arguments
    for value in (arguments, found["schema"]):
        jsonschema.validate(value, SCHEMA)


def test_embeddings_are_the_engines(found: Any, engine: Engine) -> None:
    assert np.allclose(found["embedding"], engine.embed("a dog"), atol=1e-6)


def test_what_is_refused_is_said(found: Any) -> None:
    assert "temperature is -1" in found["refused"]
