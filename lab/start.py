"""From the start of a process to the first character, with an empty and with a filled cache.

    python benchmarks/first_token.py [MODEL] [--rounds 3] [--starts 3] [--json]

In each round one start finds an empty cache folder and `--starts` more find it filled. The first
column is `edgespec run` as users start it, up to the first character on its standard output. The
others are one more start of each kind, through the Python interface, cut where the engine tells its
stages: Python itself; imports and the plan; kernels (compiled, or loaded from the cache); weights;
the cost curve (measured, or checked); prompt and first token. Seconds, medians, lowest and highest.
Modules are bytecode before, as installers leave them.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

PROMPT = "Tell me a story."
COMMAND = "edgespec run"
PHASES = ("Python", "imports, plan", "kernels", "weights", "curve", "first token")
GOALS = {("empty", "kernels"): 10.0, ("filled", COMMAND): 0.5}
Seconds = dict[str, list[float]]
"""By column, one figure for each start."""


def measure(model: str | None, rounds: int, starts: int) -> dict[str, Seconds]:
    """Seconds of all starts, by what their cache folder was."""
    found: dict[str, Seconds] = {
        state: {column: [] for column in (COMMAND, *PHASES)} for state in ("empty", "filled")
    }
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            for number in range(1 + starts):
                seconds = found["filled" if number else "empty"]
                seconds[COMMAND].append(_command(model, Path(folder) / "command"))
                for phase, taken in _phases(model, Path(folder) / "phases").items():
                    seconds[phase].append(taken)
    return found


def _command(model: str | None, cache: Path) -> float:
    """Seconds of one start of the command, up to its first character."""
    options = ["--seed", "1", "--max-tokens", "8", *(["--model", model] if model else [])]
    start = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "edgespec", "run", *options, PROMPT],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=_environment(cache),
    )
    assert process.stdout is not None
    first = process.stdout.read(1)
    seconds = time.perf_counter() - start
    process.communicate()
    if not first:
        raise SystemExit(f"edgespec run ended with exit code {process.returncode} and no text")
    return seconds


def _phases(model: str | None, cache: Path) -> dict[str, float]:
    """Seconds of each phase of one start."""
    start = time.time()
    told = subprocess.run(
        [sys.executable, str(Path(__file__).resolve()), "--child", *filter(None, [model])],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        env=_environment(cache),
        check=True,
    )
    ends = json.loads(told.stdout)
    return {
        phase: end - before
        for phase, before, end in zip(PHASES, [start, *ends], ends, strict=False)
    }


def _environment(cache: Path) -> dict[str, str]:
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"EDGESPEC_CACHE": str(cache), "PYTHONPATH": os.pathsep.join(paths)}


def _start_once(model: str | None) -> list[float]:
    """The times at which the phases of this process's start ended."""
    ends = [time.time()]
    import edgespec

    def progress(stage: str, done: int, total: int) -> None:
        if (stage, done) == ("kernels", 0) or (stage in ("kernels", "load") and done == total):
            marks[stage, done == total] = time.time()

    marks: dict[tuple[str, bool], float] = {}
    with edgespec.load(model, progress=progress) as engine:
        ends += [marks["kernels", False], marks["kernels", True], marks["load", True], time.time()]
        next(engine.stream(PROMPT, seed=1, max_tokens=8))
        ends.append(time.time())
    return ends


def _rows(found: dict[str, Seconds]) -> list[list[str]]:
    rows = [["cache", COMMAND, *PHASES]]
    for state, seconds in found.items():
        rows.append([state, *(f"{statistics.median(taken):.2f}" for taken in seconds.values())])
        spread = (f"{min(taken):.2f}-{max(taken):.2f}" for taken in seconds.values())
        rows.append(["", *spread])
    return rows


def _verdicts(found: dict[str, Seconds]) -> list[str]:
    lines = []
    for (state, column), goal in GOALS.items():
        seconds = statistics.median(found[state][column])
        verdict = "met" if seconds <= goal else "MISSED"
        lines.append(f"{column}, {state} cache: {seconds:.2f} s, goal {goal:g} s: {verdict}")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("model", nargs="?", help="the bundled one if left out")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--starts", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(_start_once(options.model)))
        return
    if min(options.rounds, options.starts) < 1:
        parser.error("--rounds and --starts start at 1")
    compileall.compile_dir(ROOT / "edgespec", quiet=1)
    found = measure(options.model, options.rounds, options.starts)
    if options.json:
        print(json.dumps(found))
        return
    rows: Sequence[Sequence[str]] = _rows(found)
    for row in rows:
        print("".join(f"{cell:>15}" for cell in row))
    print("\n".join(_verdicts(found)))


if __name__ == "__main__":
    main()
