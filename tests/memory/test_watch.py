"""The lines that a running reply must not cross, in real processes that hold too much."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import edgespec
from edgespec.errors import BudgetError
from edgespec.memory import watch
from edgespec.memory.plan.plan import Footprint, FootprintItem, Plan
from edgespec.memory.watch import Watch
from edgespec.system.cgroup import CgroupMemory
from edgespec.system.resident_memory import resident_bytes
from tests.support.gguf_models import CHATML, write_gguf

MIB = 1024**2
PROGRAM = """
import json, sys, time
import numpy as np
import edgespec
from edgespec.system.resident_memory import resident_bytes

model, share = sys.argv[1], float(sys.argv[2])
found = {}
drafters = "ngram,suffix-automaton"
with edgespec.load(model, memory="400MiB", context=256, drafters=drafters) as engine:
    options = {"max_tokens": 120, "ignore_eos": True, "seed": 1, "repetition_penalty": 1.01}
    plan, watch, market = engine.plan, engine.scheduler.watch, engine.scheduler.slots[0].market
    found["expected"] = engine.generate("and the cat", **options).text
    found["reliefs_before"], found["stores_before"] = watch.num_reliefs, market.size_bytes
    bystander = engine.chat()
    bystander.send("hello", max_tokens=4, seed=1)
    stream = engine.stream("and the cat", **options)
    hog = None
    try:
        for count, _ in enumerate(stream):
            if count == 3:
                line = watch.soft_bytes + share * (watch.hard_bytes - watch.soft_bytes)
                hog = np.ones(int(line - resident_bytes()) // 8)
                time.sleep(0.3)
    except edgespec.BudgetError as error:
        found["error"] = str(error)
    found["reason"], found["text"] = stream.reply.finish_reason, stream.reply.text
    found["reliefs"], found["stores"] = watch.num_reliefs, market.size_bytes
    del hog
    found["after"] = engine.generate("and the cat", **options).text
    found["bystander"] = bystander.send("still there?", max_tokens=4, seed=1).stats.cached_tokens
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("watch") / "tiny.gguf", template=CHATML)


def run(model: Path, share: float) -> dict[str, Any]:
    """A process that holds more and more while a reply is written: a share of the way from the
    soft line to the hard one.
    """
    command = [sys.executable, "-c", PROGRAM, str(model), str(share)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_past_the_soft_line_stores_shrink_and_the_text_stays(model: Path) -> None:
    found = run(model, 0.5)
    assert "error" not in found
    assert found["reliefs"] > found["reliefs_before"] == 0
    assert found["stores"] < 0.7 * found["stores_before"]
    assert found["text"] == found["after"] == found["expected"]
    assert found["reason"] == "length"


def test_past_the_hard_line_the_request_ends_and_the_process_lives_on(model: Path) -> None:
    found = run(model, 1.5)
    message = found["error"]
    for part in ("over its budget of 400.0 MiB", "planned were", "interpreter", "held besides"):
        assert part in message, message
    assert "\n" not in message
    assert found["expected"].startswith(found["text"]) and found["text"] != found["expected"]
    assert found["reason"] == "cancelled"
    assert found["after"] == found["expected"]
    assert found["bystander"] > 0


def small_plan(budget_bytes: int) -> Plan:
    """A plan of half of its budget."""
    footprint = Footprint((FootprintItem("weights", budget_bytes // 2),))
    with edgespec.load(memory="4GiB", context=64) as engine:
        return replace(engine.plan, budget_bytes=budget_bytes, footprint=footprint)


def test_below_the_lines_nothing_happens() -> None:
    calls: list[int] = []
    with Watch(small_plan(2**40), lambda: calls.append(1) or 0, interval_s=0.001) as watching:
        for _ in range(100):
            watching.check()
        watching.look()
    assert not calls and watching.num_reliefs == 0


def test_loading_is_watched_too() -> None:
    watching = Watch(small_plan(resident_bytes() // 2), lambda: 0)
    with pytest.raises(BudgetError, match="over its budget"):
        watching.look()


def test_a_group_without_memory_ends_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Filling a real group to its last MiB would be a race against the kernel."""
    full = CgroupMemory(400 * MIB, 400 * MIB, 400 * MIB - 1000)
    monkeypatch.setattr(watch, "cgroup_memory", lambda: full)
    with pytest.raises(BudgetError, match="the control group of this process"):
        Watch(small_plan(2**40), lambda: 0).relieve()
