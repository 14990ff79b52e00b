"""What does looking at few tokens spare a reply that a grammar binds, against a mask for each?

    python -m lab.few_checks [MODEL] [--tags FILE] [--replies 30] [--tokens 48] [--rounds 5]

Greedy replies of the model, one thread, each bound by a schema that no reply before had, or by the
names of a ctags file: with the token drawn first and looked up in the grammar, and with a mask of
the vocabulary at each choice, in turns. Processor time of whole replies, their prompts and the
making of each grammar included; the texts are checked to be equal.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import edgespec
from edgespec.engine.engine import Engine
from edgespec.verification.constraint import Constraint
from edgespec.verification.shaped_verifier import ShapedVerifier
from lab.harness import MODEL, Asked, Rows, Script, Spread, alternate, option, ratios, rounds

script = Script(__doc__)
CODE = (
    "def add(self, item):\n    self.", "for one in self.", "import os\n\npath = os.",
    "with open(path) as file:\n    text = file.",
    "class Box:\n    def __init__(self):\n        self.",
)  # fmt: skip


def person(number: int) -> dict[str, Any]:
    """A schema of its own."""
    return {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 20},
            f"likes_{number}": {"type": "array", "items": {"type": "string"}, "maxItems": 3},
            "age": {"type": "integer", "minimum": 0, "maximum": 120},
            "is_tall": {"type": "boolean"},
        },
        "required": ["name", f"likes_{number}", "age", "is_tall"],
        "additionalProperties": False,
    }


@script.command(
    MODEL,
    option("--tags", type=Path, help="as ctags writes it"),
    option("--replies", type=int, default=30),
    option("--tokens", type=int, default=48),
    rounds(5),
)
def replies(asked: Asked) -> Rows:
    """Schemas, and names."""
    kinds = ["schema"]
    names = list[str]()
    if asked.tags is not None:
        names = [line.split("\t")[0] for line in asked.tags.read_text("utf-8").splitlines()]
        kinds.append("names")
    with edgespec.load(asked.model, threads=1) as engine:
        for kind in kinds:
            yield _compared(engine, kind, names, asked)


def _compared(engine: Engine, kind: str, names: list[str], asked: Asked) -> dict[str, Any]:
    counts = {"masks": 0, "tokens": 0}
    texts: dict[tuple[str, int], list[int]] = {}
    turn = [0]
    drawing, mask = ShapedVerifier._draw, Constraint.mask

    def counted(self: Constraint, row: Any) -> None:
        counts["masks"] += 1
        mask(self, row)

    def masked(self: ShapedVerifier, *given: Any) -> int:
        self._may_refuse = False
        return drawing(self, *given)

    def timed(first: bool) -> float:
        ShapedVerifier._draw = drawing if first else masked  # type: ignore
        counts.update(masks=0, tokens=0)
        turn[0] += 1
        begun = time.process_time()
        for number in range(asked.replies):
            unique = 1000 * turn[0] + number
            options: dict[str, Any] = (
                {"schema": person(unique)}
                if kind == "schema"
                else {"names": [*names, f"new_{unique}"], "raw": True}
            )
            prompt = f"Invent person {number}." if kind == "schema" else CODE[number % len(CODE)]
            reply = engine.generate(
                prompt, temperature=0.0, max_tokens=asked.tokens, seed=1, **options
            )
            counts["tokens"] += len(reply.token_ids)
            if kind == "names":
                known = texts.setdefault((kind, number), reply.token_ids)
                assert known == reply.token_ids
        spent[first] = dict(counts)
        return (time.process_time() - begun) / counts["tokens"] * 1e6

    spent: dict[bool, dict[str, int]] = {}
    Constraint.mask = counted  # type: ignore[method-assign]
    try:
        found = alternate({"few": lambda: timed(True), "mask": lambda: timed(False)}, asked.rounds)
    finally:
        ShapedVerifier._draw = drawing  # type: ignore[method-assign]
        Constraint.mask = mask  # type: ignore[method-assign]
    return {
        "bound by": kind,
        "masks a token": f"{spent[True]['masks'] / spent[True]['tokens']:.2f}",
        "all masked": f"{spent[False]['masks'] / spent[False]['tokens']:.2f}",
        "us a token": Spread.of(found["few"]),
        "with masks": Spread.of(found["mask"]),
        "few / masks": ratios(found["few"], found["mask"]),
    }


if __name__ == "__main__":
    script.run()
