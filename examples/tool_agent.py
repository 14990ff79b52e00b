"""An agent that calls Python functions: the model picks a call, Python runs it, the model answers.

    pip install 'edgespec[schema]'
    python examples/tool_agent.py "What is 17 times 23?"

A schema binds each step, so that what comes is always a call that can be run, or an answer. Which
of them is sensible depends on the model: the bundled one has no idea.
"""

import json
import operator
import os
import sys
import time
from pathlib import Path
from typing import Any

import edgespec

HERE = Path(__file__).parent
OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}
SYSTEM = "Use the functions. Write one call as JSON, or the answer as JSON."
MOST_STEPS = 4


def calculate(left: int, operation: str, right: int) -> float:
    """Calculate with two numbers."""
    return OPERATIONS[operation](left, right)


def current_time() -> str:
    """Tell the date and the time of day."""
    return time.strftime("%A, %d %B %Y, %H:%M")


def list_files() -> list[str]:
    """List the files of the folder."""
    return sorted(path.name for path in HERE.iterdir())


TOOLS = {tool.__name__: tool for tool in (calculate, current_time, list_files)}
NUMBER = {"type": "integer", "minimum": -9999, "maximum": 9999}
PARAMETERS = {"calculate": {"left": NUMBER, "operation": {"enum": [*OPERATIONS]}, "right": NUMBER}}


def whole(properties: dict[str, Any]) -> dict[str, Any]:
    """A schema of an object with exactly these properties."""
    return {"type": "object", "properties": properties, "required": [*properties],
            "additionalProperties": False}  # fmt: skip


def main(question: str = "What is 17 times 23?") -> None:
    schemas = {name: whole(PARAMETERS.get(name, {})) for name in TOOLS}
    tools = [{"type": "function", "function": {"name": name, "description": tool.__doc__,
              "parameters": schemas[name]}} for name, tool in TOOLS.items()]  # fmt: skip
    calls = [whole({"name": {"const": name}, "arguments": schemas[name]}) for name in TOOLS]
    answer = whole({"answer": {"type": "string", "maxLength": 200}})
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
    with edgespec.load(os.environ.get("EDGESPEC_MODEL"), context=1024) as engine:
        for step in range(MOST_STEPS):
            steps = calls if not step else [answer] if step == MOST_STEPS - 1 else [*calls, answer]
            asked: edgespec.ReplyKeywords = {"schema": {"anyOf": steps}, "max_tokens": 400}
            reply = engine.generate(messages=messages, tools=tools, temperature=0, **asked)
            print(reply.text)
            said = json.loads(reply.text)
            if "answer" in said:
                break
            try:
                result = TOOLS[said["name"]](**said["arguments"])
            except ZeroDivisionError as error:
                result = str(error)
            print(f"  {said['name']} gave {result}")
            messages.append({"role": "assistant", "content": reply.text})
            messages.append({"role": "tool", "content": json.dumps(result)})


if __name__ == "__main__":
    main(*sys.argv[1:])
