"""Calls of tools in what a model wrote, as the families of models write them."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from edgespec.errors import OptionError
from edgespec.system.records import dataclass

_TAGGED = re.compile(r"<(tool_call|function_call)>\s*(.*?)\s*(?:</\1>|$)", re.DOTALL)
_NAMED = re.compile(r"<function=([^>\s]+)>\s*(.*?)\s*(?:</function>|$)", re.DOTALL)
_MARKS = ("[TOOL_CALLS]", "<|python_tag|>", "<|tool_call|>")
_BEGINNINGS = ("<tool_call>", "<function_call>", "<function=", *_MARKS)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call: the function's name, and its arguments as JSON text."""

    name: str
    arguments: str


def parse(text: str, names: Sequence[str]) -> tuple[str, list[ToolCall]]:
    """The text beside the calls, and the calls of functions with these names.

    Known are Hermes' and Qwen's <tool_call> tags, Llama's plain JSON objects and <function=NAME>
    tags, and Mistral's lists. What cannot be read, or calls an unknown function, stays text.
    """
    for pattern, read in ((_TAGGED, _from_tag), (_NAMED, _from_name)):
        calls = [one for match in pattern.finditer(text) for one in read(match, names)]
        if calls:
            return pattern.sub("", text).strip(), calls
    plain = text.strip()
    for mark in _MARKS:
        plain = plain.removeprefix(mark).strip()
    calls = _from_json(plain, names)
    return ("", calls) if calls else (text, [])


def call_schema(tools: Sequence[dict[str, Any]], name: str | None) -> dict[str, Any]:
    """The JSON schema of a call that must be made: of one of the tools, or of the one named."""
    functions = [tool.get("function", {}) for tool in tools]
    chosen = [one for one in functions if name in (None, one.get("name"))]
    if not chosen:
        raise OptionError(f"tool_choice names {name!r}, and no tool is called so")
    calls = [
        {
            "type": "object",
            "properties": {
                "name": {"const": one.get("name")},
                "arguments": one.get("parameters") or {"type": "object"},
            },
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for one in chosen
    ]
    return calls[0] if len(calls) == 1 else {"anyOf": calls}


def may_begin(text: str) -> int:
    """Where in a text a call may have begun, from where on it is not shown yet; the text's length
    if nowhere.
    """
    blanks = len(text) - len(text.lstrip())
    if text[blanks : blanks + 1] in ("{", "["):
        return blanks
    places = [text.find(mark) for mark in _BEGINNINGS if mark in text]
    if places:
        return min(places)
    for size in range(min(len(text), max(map(len, _BEGINNINGS))), 0, -1):
        if any(mark.startswith(text[-size:]) for mark in _BEGINNINGS):
            return len(text) - size
    return len(text) if text.strip() else 0


def _from_tag(match: re.Match[str], names: Sequence[str]) -> list[ToolCall]:
    return _from_json(match[2], names)


def _from_name(match: re.Match[str], names: Sequence[str]) -> list[ToolCall]:
    return _calls([{"name": match[1], "arguments": match[2] or "{}"}], names)


def _from_json(text: str, names: Sequence[str]) -> list[ToolCall]:
    """Calls from a JSON object, a list of them, or several with semicolons or blanks between."""
    decoder, found, place = json.JSONDecoder(), [], 0
    try:
        while place < len(text):
            value, place = decoder.raw_decode(text, place)
            found += value if isinstance(value, list) else [value]
            while place < len(text) and text[place] in " \t\r\n;,":
                place += 1
    except (ValueError, RecursionError):
        return []
    return _calls(found, names)


def _calls(values: Sequence[Any], names: Sequence[str]) -> list[ToolCall]:
    """Objects as calls, none unless all of them are."""
    calls = []
    for value in values:
        if not isinstance(value, dict):
            return []
        inner = value.get("function", value)
        if not isinstance(inner, dict) or inner.get("name") not in names:
            return []
        arguments = inner.get("arguments", inner.get("parameters", {}))
        if isinstance(arguments, str):
            try:
                json.loads(arguments)
            except ValueError:
                return []
            calls.append(ToolCall(inner["name"], arguments))
        else:
            calls.append(ToolCall(inner["name"], json.dumps(arguments, ensure_ascii=False)))
    return calls
