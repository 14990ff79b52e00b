"""Clocks that jump, as on machines that are suspended: replies stay the same."""

from __future__ import annotations

import ast
import random
import time
from pathlib import Path

import pytest

import edgespec
from tests.support.gguf_models import write_gguf

LONG = {"max_tokens": 60, "seed": 1, "ignore_eos": True}
DAY_S = 86400.0


def test_replies_do_not_depend_on_clocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look finds a clock that stood still, or is a day ahead."""
    model = write_gguf(tmp_path / "tiny.gguf", type="Q8_0", seed=77)  # its curve is worth nothing
    with edgespec.load(model, threads=1) as engine:
        expected = engine.generate("the cat and the hat", **LONG).token_ids
    drawn = random.Random(3)
    ahead = 0.0

    def look() -> float:
        nonlocal ahead
        ahead += drawn.choice([0.0, 0.0, 1e-6, DAY_S])
        return ahead

    with monkeypatch.context() as patch:
        for name in ("perf_counter", "monotonic", "time"):
            patch.setattr(time, name, look)
        with edgespec.load(model, threads=1) as engine:
            replies = [engine.generate("the cat and the hat", **LONG) for _ in range(3)]
    assert [reply.token_ids for reply in replies] == [expected] * 3


def test_no_duration_is_taken_from_the_calendar() -> None:
    """`time.time` is set by people and by other machines; dates alone are told by it."""
    package = Path(edgespec.__file__).parent
    users = {
        path.relative_to(package).parts[0]
        for path in package.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and (node.value.id, node.attr) == ("time", "time")
    }
    assert users <= {"server"}, users
