"""The budget holds for batches: a whole process that fills every text's context."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_line import environment
from tests.support.gguf_models import write_gguf

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="reads VmHWM"),
]

PROGRAM = """
import json, sys
import edgespec

def peak():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM"))

model, kv_type = sys.argv[1:]
with edgespec.load(model, kv_type=kv_type, context=1024, sequences=8, threads=1) as engine:
    prompts = [f"{number} The cat sat. " * 90 for number in range(9)]
    replies = engine.generate_batch(prompts, max_tokens=4096, seed=1, ignore_eos=True)
    print(json.dumps({
        "peak": peak(),
        "planned": engine.plan.planned_bytes,
        "kv": engine.plan.footprint["KV cache"],
        "reasons": sorted({reply.finish_reason for reply in replies}),
    }))
"""


@pytest.mark.parametrize("kv_type", ["f16", "int8", "q4"])
def test_full_contexts_stay_within_the_plan(kv_type: str, tmp_path: Path) -> None:
    """Keys and values of eight texts are a large part of it, so a text too many would be seen."""
    shape: dict[str, Any] = {"dim": 256, "ffn": 256, "layers": 12, "heads": 8, "kv_heads": 8}
    path = write_gguf(tmp_path / "model.gguf", type="Q8_0", context=1024, **shape)
    found: dict[str, Any] = {}
    for _ in range(2):  # the second starts from compiled kernels, as the plan then says
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(path), kv_type],
            capture_output=True,
            text=True,
            env=environment(),
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert found["peak"] <= found["planned"], found
    assert found["reasons"] == ["context"]
    assert found["kv"] > 0.2 * found["planned"]
    assert found["peak"] > 0.85 * found["planned"], found
