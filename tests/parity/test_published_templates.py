"""The chat templates that llama.cpp keeps of published models, beside Jinja without our limits."""

from __future__ import annotations

import json
from typing import Any

import pytest

from edgespec.errors import TemplateError
from edgespec.models.template import ChatTemplate
from tests.models.test_chat_template import plain
from tests.support.llama_sources import llama_models

PLACE = {"type": "string", "description": "Where"}
RICH = {
    "place": PLACE,
    "days": {"type": ["integer", "null"], "default": 3, "minimum": 1},
    "unit": {"type": "string", "enum": ["C", "F"]},
    "more": {
        "type": "array",
        "items": {"type": "object", "properties": {"x": {"type": "number"}}},
    },
}


def _tools(properties: dict[str, Any]) -> list[dict[str, Any]]:
    parameters = {"type": "object", "properties": properties, "required": ["place"]}
    return [
        {
            "type": "function",
            "function": {
                "name": name,
                "description": f"Tell the {name} of a place, e.g. “Zürich”.",
                "parameters": parameters,
            },
        }
        for name in ("weather", "population")
    ]


DAYS = {"type": "integer", "description": "How many"}
TOOLS, RICH_TOOLS = _tools({"place": PLACE, "days": DAYS}), _tools(RICH)
ARGUMENTS = {"place": "Zürich", "days": 2, "more": [{"x": 1.5}], "unit": None}


def _call(arguments: Any, name: str = "weather", number: str = "call12345") -> dict[str, Any]:
    return {
        "id": number, "type": "function", "function": {"name": name, "arguments": arguments},
    }  # fmt: skip


def _turn(role: str, content: str, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


USER, WHY = _turn("user", "What is 2 < 3 in C++?"), _turn("user", "  Why? ")
SYSTEM = _turn("system", "Be <b>brief</b> & kind.")
TRUE = _turn("assistant", "True.")
RESULT = _turn("tool", '{"celsius": 21}', name="weather", tool_call_id="call12345")
THOUGHT = "<think>\nLet me see.\n</think>\n\nTrue."


def _calls(arguments: Any, *, content: str = "", last: bool = False) -> list[dict[str, Any]]:
    asked = _turn("assistant", content, tool_calls=[_call(arguments)])
    turns = [USER, asked, RESULT]
    return turns if last else [*turns, _turn("assistant", "21 °C."), WHY]


CONVERSATIONS: dict[str, tuple[list[dict[str, Any]], Any]] = {
    "plain": ([USER], None),
    "turns": ([USER, TRUE, WHY], None),
    "system": ([SYSTEM, USER], None),
    "system and turns": ([SYSTEM, USER, TRUE, WHY], None),
    "thought in content": ([USER, _turn("assistant", THOUGHT), WHY], None),
    "thought": ([USER, _turn("assistant", "True.", reasoning_content="Let me see."), WHY], None),
    "tools": ([USER], TOOLS),
    "tools and system": ([SYSTEM, USER, TRUE, WHY], TOOLS),
    "rich tools": ([USER], RICH_TOOLS),
    "call": (_calls(ARGUMENTS), TOOLS),
    "call, arguments in JSON": (_calls('{"place": "Zürich"}'), TOOLS),
    "call, answer next": ([SYSTEM, *_calls(ARGUMENTS, content="Let me look.", last=True)], TOOLS),
    "two calls": (
        [
            USER,
            _turn(
                "assistant", "",
                tool_calls=[_call(ARGUMENTS), _call({}, "population", "call67890")],
                reasoning_content="Both.",
            ),
            RESULT,
            _turn("tool", "400000", name="population", tool_call_id="call67890"),
        ],
        TOOLS,
    ),
}  # fmt: skip
FUNCTIONS = json.dumps([tool["function"] for tool in TOOLS])
"""What Firefunction calls its tools."""
SETTINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "thinking": {"enable_thinking": True, "thinking": True},
    "functions": {"functions": FUNCTIONS, "datetime": "2026-11-22"},
    "no thinking": {"enable_thinking": False, "thinking": False},
}


def _names() -> list[str]:
    try:
        return sorted(path.name for path in (llama_models() / "templates").glob("*.jinja"))
    except pytest.skip.Exception:
        return ["none"]


@pytest.mark.parametrize("name", _names())
def test_the_text_is_jinjas(name: str) -> None:
    if name == "none":  # they came after the tests were listed, or not at all
        pytest.skip("there were no templates")
    source = (llama_models() / "templates" / name).read_text(encoding="utf-8")
    template = ChatTemplate(source, "<s>", "</s>")
    written = 0
    for case, (turns, tools) in CONVERSATIONS.items():
        for setting, values in SETTINGS.items():
            for ends in (True, False):
                given = {"tools": tools, "add_generation_prompt": ends, "documents": None, **values}
                try:
                    expected = plain(source, messages=turns, **given)
                except Exception:  # the template refuses: so must we
                    with pytest.raises(TemplateError):
                        template.render(turns, **given)
                    continue
                assert template.render(turns, **given) == expected, (case, setting, ends)
                written += 1
    assert written, "no conversation at all"
