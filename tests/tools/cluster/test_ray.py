"""`edgespec batch --ray` on a real cluster: two nodes on this machine, whose workers are killed."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.support.command_line import Finished, edgespec, environment

NUM_PROMPTS = 120
pytestmark = pytest.mark.slow


@contextmanager
def two_nodes() -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The address of a cluster, and the process that kills a node when it is sent a line."""
    pytest.importorskip("ray", reason="ray is not installed")
    with subprocess.Popen(
        [sys.executable, Path(__file__).with_name("two_nodes.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment() | {"RAY_USAGE_STATS_ENABLED": "0"},
        text=True,
    ) as cluster:
        assert cluster.stdout is not None and cluster.stdin is not None
        yield cluster.stdout.readline().strip(), cluster
        cluster.stdin.close()


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with two_nodes() as (found, _):
        yield found


@pytest.fixture(scope="module")
def model(bundled_model: Path) -> Path:
    """Large enough for workers to be at work when they die."""
    return bundled_model


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ray") / "prompts.jsonl"
    words = ("the", "cat", "hat", "one", "two", "hello")
    rng = random.Random(1)
    lines = [
        {"prompt": " ".join(rng.choices(words, k=rng.randint(1, 9))), "id": f"p{n}", "seed": n}
        for n in range(NUM_PROMPTS)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def arguments(model: Path, prompts: Path) -> list[object]:
    options: list[object] = ["--threads", 1, "--max-batch", 2, "--max-tokens", 100]
    options.append("--no-speculation")
    return ["batch", prompts, "-m", model, "--memory", "1GiB", *options]


def workers() -> list[psutil.Process]:
    """Ray names a process after the class it runs."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        command = " ".join(process.info["cmdline"] or ())
        if command.startswith("ray::Worker"):
            found.append(process)
    return found


@pytest.fixture(scope="module")
def alone(model: Path, prompts: Path) -> str:
    found = edgespec(*arguments(model, prompts))
    assert (found.code, found.err) == (0, "")
    return found.out


def test_killed_workers_change_nothing(
    address: str, model: Path, prompts: Path, alone: str, tmp_path: Path
) -> None:
    """Two are killed at random while they write: every line is there once, and is the same."""
    out = tmp_path / "out.jsonl"
    with subprocess.Popen(
        [sys.executable, "-m", "edgespec"]
        + [str(each) for each in (*arguments(model, prompts), "--ray", address, "--out", out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
        text=True,
    ) as run:
        rng, killed = random.Random(2), 0
        while run.poll() is None and killed < 2:
            time.sleep(0.02)
            if killed == 0 and not (out.exists() and out.stat().st_size):
                continue
            # What was lost holds back the lines after it, so the second death goes by the clock.
            time.sleep(rng.uniform(0.0, 0.5) * killed)
            if found := workers():
                rng.choice(found).kill()
                killed += 1
        printed, said = run.communicate(timeout=240)
    assert (run.returncode, printed) == (0, "")
    assert killed == 2
    # The second may have been one that had no line left to answer.
    assert 1 <= said.count("died; another takes its lines") == len(said.splitlines()) <= 2
    assert out.read_text(encoding="utf-8") == alone


def test_a_node_that_is_lost_changes_nothing(model: Path, prompts: Path, tmp_path: Path) -> None:
    """Its raylet is killed, and its worker with it, while both nodes write."""
    out = tmp_path / "out.jsonl"
    options = [str(each) for each in (*arguments(model, prompts), "--max-tokens", 300)]
    alone = edgespec(*options)
    with (
        two_nodes() as (address, cluster),
        subprocess.Popen(
            [sys.executable, "-m", "edgespec", *options, "--ray", address, "--out", out],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(),
            text=True,
        ) as run,
    ):
        assert cluster.stdin is not None and cluster.stdout is not None
        while run.poll() is None and not (out.exists() and out.read_bytes().count(b"\n") >= 10):
            time.sleep(0.02)
        cluster.stdin.write("\n")
        cluster.stdin.flush()
        assert cluster.stdout.readline() == "lost\n"
        printed, said = run.communicate(timeout=120)
    assert (run.returncode, printed) == (0, ""), said
    # Nothing need be said: its worker may have had no line, and the end come before Ray noticed.
    told = ("died; another takes its lines", "is left out: the node is gone")
    assert all(line.endswith(told) for line in said.splitlines()), said
    assert out.read_text(encoding="utf-8") == alone.out


def test_it_goes_on_where_it_ended(
    address: str, model: Path, prompts: Path, alone: str, tmp_path: Path
) -> None:
    """What --out holds already is not asked for again."""
    out = tmp_path / "out.jsonl"
    kept = "".join(alone.splitlines(keepends=True)[: NUM_PROMPTS - 7])
    out.write_text(kept + '{"line": 11', encoding="utf-8", newline="")
    found = edgespec(*arguments(model, prompts), "--ray", address, "--out", out)
    assert (found.code, found.out, found.err) == (0, "", "")
    assert out.read_text(encoding="utf-8") == alone


def test_a_model_that_does_not_fit_is_told_of_by_each_node(
    address: str, model: Path, prompts: Path
) -> None:
    found = edgespec(*arguments(model, prompts), "--ray", address, "--memory", "20MiB")
    assert (found.code, found.out) == (1, "")
    lines = found.err.splitlines()
    assert len(lines) == 3
    assert all("is left out: " in line and "20" in line for line in lines[:2])
    assert "no node of the cluster is left, and 120 prompts are without a reply" in lines[2]


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("127.0.0.1:9", ("nobody listens at 127.0.0.1:9", "ray start --head")),
        ("here", ("--ray here is no address", "HOST:PORT")),
        ("ray://127.0.0.1:10001", ("is no address",)),
    ],
)
def test_wrong_addresses(address: str, words: tuple[str, ...], model: Path, prompts: Path) -> None:
    pytest.importorskip("ray", reason="ray is not installed")
    found: Finished = edgespec(*arguments(model, prompts), "--ray", address)
    found.assert_refused(2, *words)


def test_a_line_that_means_nothing_is_refused_before_anyone_starts(
    model: Path, tmp_path: Path
) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "a"}\n{"prompt": "b", "top_p": 7}\n', encoding="utf-8")
    edgespec(*arguments(model, path), "--ray", "auto").assert_refused(2, "line 2: ", "top_p")
