"""The promise itself: a whole process, from start to last token, stays within its budget.

Each run is a process of its own whose peak is read from the system, not from EdgeSpec's monitor.
The context is filled, so that a plan that reserves too much is caught as well.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

import edgespec
from tests.support.gguf_models import write_gguf

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="reads VmHWM"),
    pytest.mark.skipif(not hasattr(edgespec, "load"), reason="edgespec.load is not there yet"),
]

MIB = 1024**2
CONTEXT = 512
PROGRAM = """
import json, sys
import edgespec

def peak():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM"))

model, memory, context, backend = sys.argv[1:]
try:
    with edgespec.load(
        model, memory=memory, context=int(context), kv_type="f16", backend=backend
    ) as engine:
        reply = engine.generate(
            "The cat sat. " * 8, max_tokens=int(context) - 130, temperature=0.8, seed=1,
            ignore_eos=True,
        )
        result = {
            "peak": peak(),
            "planned": engine.plan.planned_bytes,
            "tokens": len(reply.token_ids),
            "text": reply.text,
        }
except edgespec.EdgeSpecError as error:
    result = {"peak": peak(), "error": str(error)}
print(json.dumps(result))
"""


@dataclass(frozen=True)
class Run:
    """What one process did."""

    peak: int
    planned: int = 0
    tokens: int = 0
    text: str = ""
    error: str = ""


@cache
def run(model: Path, memory: str, backend: str = "native") -> Run:
    """A process with this budget; what it did serves all tests that look at it."""
    command = [sys.executable, "-c", PROGRAM, str(model), memory, str(CONTEXT), backend]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return Run(**json.loads(done.stdout))


def least_budget(model: Path, backend: str = "native") -> int:
    """MiB of the smallest budget, as the refusal of a hopeless one names it."""
    refused = run(model, "70MiB", backend)
    assert "--memory " in refused.error, refused
    return int(refused.error.rsplit("--memory ", 1)[1].split("MiB")[0])


@pytest.fixture(scope="module", params=["tiny", "middle", "large"])
def model(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("models") / f"{request.param}.gguf"
    sizes = {
        "tiny": {"type": "Q8_0", "ffn": 128},
        "middle": {"type": "Q8_0", "dim": 512, "layers": 6, "heads": 8, "ffn": 1408, "vocab": 8000},
        "large": {"type": "Q4_0", "dim": 1024, "layers": 12, "heads": 16, "kv_heads": 4,
                  "ffn": 2816, "vocab": 32000},
    }  # fmt: skip
    write_gguf(path, context=2048, **sizes[request.param])  # type: ignore[arg-type]
    run(path, "auto")  # compiles kernels, so that the runs below find them cached
    yield path
    path.unlink()


@pytest.mark.parametrize("factor", [1.0, 1.15, 1.4, 2.0])
def test_the_peak_stays_within_the_budget_and_near_the_plan(model: Path, factor: float) -> None:
    budget = int(least_budget(model) * factor)
    done = run(model, f"{budget}MiB")
    assert not done.error
    assert done.tokens == CONTEXT - 130
    assert done.peak <= budget * MIB
    assert done.planned <= budget * MIB
    assert done.planned == pytest.approx(done.peak, rel=0.10)


def test_backends_that_are_compared_are_counted(model: Path) -> None:
    """Those that are installed; one that is chosen may run in a process of its own."""
    least = least_budget(model, "auto")
    done = run(model, f"{least}MiB", "auto")
    assert not done.error
    assert done.peak <= least * MIB


def test_the_text_does_not_depend_on_the_budget(model: Path) -> None:
    """As long as keys and values are kept alike."""
    least = least_budget(model)
    texts = {run(model, f"{int(least * factor)}MiB").text for factor in (1.0, 2.0)}
    assert len(texts) == 1


def test_a_refusal_comes_before_loading(model: Path) -> None:
    refused = run(model, "70MiB")
    assert refused.error
    assert refused.peak <= 70 * MIB


PROMPTS = """
import json, sys
from pathlib import Path
import edgespec
from edgespec.engine import kept_prompts
from edgespec.memory.kv import prompt_cache

def peak():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM"))

model, folder = sys.argv[1:]
kept_prompts.LEAST_S = 0.0
prompt_cache.cache_folder = lambda: Path(folder)
options = {"memory": "auto", "context": 2048, "prompt_cache": "1GiB", "backend": "native"}
with edgespec.load(model, **options) as engine:
    reply = engine.generate([5, 6, 7, 8, 9] * 400, max_tokens=8, seed=1, ignore_eos=True)
    print(json.dumps([peak(), engine.plan.planned_bytes, reply.stats.prompt_cache_tokens]))
"""


def test_reading_prompts_from_disk_is_planned(model: Path, tmp_path: Path) -> None:
    """The context is filled from files, straight into the arena's blocks."""
    command = [sys.executable, "-c", PROMPTS, str(model), str(tmp_path)]
    for expected in (0, 1999):
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        peak, planned, read = json.loads(done.stdout)
        assert read == expected
        assert peak <= 1.05 * planned
