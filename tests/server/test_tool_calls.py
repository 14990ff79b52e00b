"""Calls of tools in the words of several families of models."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from edgespec.server.tool_calls import ToolCall, may_begin, parse
from tests.support.http_server import Served

NAMES = ["weather", "add"]
CALL = '{"name": "weather", "arguments": {"city": "Bern"}}'
BERN = ToolCall("weather", '{"city": "Bern"}')
TOOL: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Bern", "Rome"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


@pytest.mark.parametrize(
    ("text", "rest", "calls"),
    [
        (f"<tool_call>\n{CALL}\n</tool_call>", "", [BERN]),
        (f"Let me see.\n<tool_call>{CALL}</tool_call>", "Let me see.", [BERN]),
        (f"<tool_call>{CALL}</tool_call>\n<tool_call>{CALL}</tool_call>", "", [BERN, BERN]),
        (f"<tool_call>{CALL}", "", [BERN]),
        (CALL.replace("arguments", "parameters"), "", [BERN]),
        (f"<|python_tag|>{CALL}; {CALL}", "", [BERN, BERN]),
        (f"[TOOL_CALLS][{CALL}]", "", [BERN]),
        ('<function=weather>{"city": "Bern"}</function>', "", [BERN]),
        (
            '{"function": {"name": "add", "arguments": "{\\"a\\": 1}"}}',
            "",
            [ToolCall("add", '{"a": 1}')],
        ),
        ('{"name": "add"}', "", [ToolCall("add", "{}")]),
    ],
)
def test_a_call_is_found(text: str, rest: str, calls: list[ToolCall]) -> None:
    assert parse(text, NAMES) == (rest, calls)


@pytest.mark.parametrize(
    "text",
    [
        "It is warm in Bern.",
        '{"name": "unknown", "arguments": {}}',
        '{"city": "Bern"}',
        "[1, 2, 3]",
        "<tool_call>not JSON</tool_call>",
        '{"name": "add", "arguments": "not JSON"}',
        "[" * 100_000,
        "",
    ],
)
def test_what_is_no_call_stays_text(text: str) -> None:
    assert parse(text, NAMES) == (text, [])


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("It is warm", "It is warm"),
        ("See <tool_call>{", "See "),
        ("See <tool", "See "),
        ("a < b", "a < b"),
        ('  {"name"', "  "),
        ("[TOOL", ""),
    ],
)
def test_what_may_be_a_call_is_held_back(text: str, shown: str) -> None:
    assert text[: may_begin(text)] == shown


def test_a_tool_that_must_be_called_is_called(served: Served) -> None:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
        asked: Any = {
            "model": "tiny",
            "messages": [{"role": "user", "content": "What is the weather in Bern?"}],
            "tools": [TOOL],
            "tool_choice": "required",
            "seed": 1,
            "max_tokens": 64,
        }
        choice = client.chat.completions.create(**asked).choices[0]
        assert choice.finish_reason == "tool_calls" and choice.message.tool_calls
        function: Any = choice.message.tool_calls[0]
        assert function.function.name == "weather"
        assert json.loads(function.function.arguments)["city"] in ("Bern", "Rome")
        streamed, reason = [], None
        for chunk in client.chat.completions.create(**asked, stream=True):
            for one in chunk.choices:
                assert not one.delta.content
                streamed += one.delta.tool_calls or []
                reason = one.finish_reason or reason
        assert reason == "tool_calls"
        assert streamed[0].function is not None
        assert streamed[0].function.arguments == function.function.arguments
