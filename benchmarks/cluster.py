"""Many prompts over two Ray nodes on this machine, workers killed at random, beside one machine.

    python benchmarks/cluster.py [MODEL] [--prompts 500] [--kills 2] [--tokens 60] [--seed 1]

Prints the lines that came back, doubles and differences from a run without a cluster, which must be
none, what was said of the deaths, and both times: the nodes share this machine's cores. Needs ray.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.cli_runs import environment

NODES = Path(__file__).parents[1] / "tests" / "cluster" / "two_nodes.py"
SUBJECTS = ("a dog", "the sea", "an old king", "two friends", "a red ball", "rain", "a lost key")
ASKS = (
    "Tell me a short story about {}.",
    "Write one sentence about {}.",
    "What do you know of {}?",
)


def write_prompts(path: Path, count: int, rng: random.Random) -> None:
    lines = [
        {"prompt": rng.choice(ASKS).format(rng.choice(SUBJECTS)), "id": f"p{n}", "seed": n}
        for n in range(count)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def kill_at_random(
    run: subprocess.Popen[str], out: Path, kills: int, count: int, rng: random.Random
) -> int:
    """Kill a worker each time a random share of the lines is written; returns how many died."""
    marks = sorted(rng.randrange(1, count * 3 // 4) for _ in range(kills))
    killed = 0
    while run.poll() is None and killed < kills:
        time.sleep(0.02)
        written = out.read_bytes().count(b"\n") if out.exists() else 0
        found = [
            process
            for process in psutil.process_iter(["cmdline"])
            if " ".join(process.info["cmdline"] or ()).startswith("ray::Worker")
        ]
        if written >= marks[killed] and found:
            rng.choice(found).kill()
            killed += 1
            time.sleep(0.5)
    return killed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", nargs="?", default="edgespec-tiny")
    parser.add_argument("--prompts", type=int, default=500)
    parser.add_argument("--kills", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as folder, subprocess.Popen(
        [sys.executable, NODES], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, env=environment() | {"RAY_USAGE_STATS_ENABLED": "0"}, text=True,
    ) as nodes:  # fmt: skip
        assert nodes.stdin is not None and nodes.stdout is not None
        prompts, out = Path(folder, "prompts.jsonl"), Path(folder, "out.jsonl")
        write_prompts(prompts, options.prompts, rng)
        command = [sys.executable, "-m", "edgespec", "batch", str(prompts), "-m", options.model]
        command += ["--memory", "1GiB", "--threads", "1", "--max-tokens", str(options.tokens)]
        start = time.perf_counter()
        alone = subprocess.run(command, env=environment(), capture_output=True, check=True).stdout
        alone_s = time.perf_counter() - start
        address = nodes.stdout.readline().strip()
        start = time.perf_counter()
        with subprocess.Popen(
            [*command, "--ray", address, "--out", str(out)], env=environment(),
            stderr=subprocess.PIPE, text=True,
        ) as run:  # fmt: skip
            killed = kill_at_random(run, out, options.kills, options.prompts, rng)
            said = run.communicate()[1]
        cluster_s = time.perf_counter() - start
        nodes.stdin.close()
        lines = out.read_bytes().splitlines()
        numbers = Counter(json.loads(line)["line"] for line in lines)
        print(said.strip())
        twice = sum(numbers.values()) - len(numbers)
        print(f"{len(lines)} lines of {options.prompts}, {twice} twice; {killed} workers killed")
        print(f"exit code {run.returncode}; as on one machine: {out.read_bytes() == alone}")
        print(f"{cluster_s:.1f} s with the cluster, {alone_s:.1f} s without")


if __name__ == "__main__":
    main()
