"""Models on other machines' memory, and prompts over a cluster: does it pay, and does it survive?

    python -m lab.cluster workers MODEL [--delays MS,...] [--tokens 64] [--rounds 2]
    python -m lab.cluster lost MODEL [--rounds 5]
    python -m lab.cluster ray [MODEL] [--prompts 500] [--kills 2]

`workers`: speculation over workers: a model here, on one, on two, and over a slow network. `lost`:
how soon a worker that is gone or halted is told of, and how soon the conversation goes on. `ray`:
many prompts over two Ray nodes on this machine, workers killed at random, beside one machine. Linux
and, for the first two, llama-cpp-python.
"""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import psutil

import edgespec
from edgespec.errors import BackendError
from edgespec.system.size import MIB, format_size
from lab.harness import (
    ROOT,
    Asked,
    Row,
    Rows,
    Script,
    Spread,
    alternate,
    option,
    ratios,
    rounds,
    tokens,
)
from tests.support.command_line import environment

NODES = ROOT / "tests" / "tools" / "cluster" / "two_nodes.py"
PROMPTS = (
    "Tell me a short story about a dog and a ball.",
    "Write the numbers from one to thirty as words.",
    "Repeat after me: the cat sat on the mat and the dog sat on the cat.",
)
WAYS = ("killed", "halted", "server halted")
LONG_PROMPT = "Tell me a long story about a dog, a cat and a mouse. " * 30
SUBJECTS = ("a dog", "the sea", "an old king", "two friends", "a red ball", "rain", "a lost key")
ASKS = (
    "Tell me a short story about {}.",
    "Write one sentence about {}.",
    "What do you know of {}?",
)
script = Script(__doc__)


@script.command(
    option("model"),
    option("--delays", default="1,5", help="milliseconds each way, on every byte"),
    tokens(64),
    rounds(2),
    option("--threads", type=int, default=2),
    option("--only", default="", help="rows whose names hold this"),
)
def workers(asked: Asked) -> Rows:
    """Plain and speculative replies in turns; their texts must be equal, or the exit code is 1.

    Workers are processes of `edgespec worker` on the loopback address; a delay is put on every byte
    in each direction by a relay of ours. Every layer is on workers but what they cannot hold.
    """
    size = Path(asked.model).stat().st_size
    rows = [("here", 0, 0.0), ("one worker", 1, 0.0), ("two workers", 2, 0.0)]
    rows += [(f"one worker, {ms} ms away", 1, float(ms)) for ms in asked.delays.split(",") if ms]
    for name, count, delay in rows:
        if asked.only not in name:
            continue
        with ExitStack() as stack:
            share = size + 200 * MIB if count < 2 else size // 2 + 170 * MIB
            ports = [stack.enter_context(worker(share, asked.threads)) for _ in range(count)]
            if delay:
                ports = [Delay(port, delay / 1e3).port for port in ports]
            yield {"where": name} | _over_workers(ports, asked)


def _over_workers(ports: list[int], asked: Asked) -> Row:
    options = {"max_tokens": asked.tokens, "temperature": 0, "ignore_eos": True}
    addresses = ",".join(f"127.0.0.1:{port}" for port in ports) or None
    steps: list[float] = []
    texts: dict[str, set[str]] = {prompt: set() for prompt in PROMPTS}
    with edgespec.load(
        asked.model, backend="llamacpp", context=512, threads=asked.threads, workers=addresses
    ) as engine:

        def write(speculation: bool) -> float:
            stats = []
            for prompt in PROMPTS:
                reply = engine.generate(prompt, speculation=speculation, **options)
                texts[prompt].add(repr(reply.token_ids))
                stats.append(reply.stats)
            steps.extend([one.tokens_per_step for one in stats] * speculation)
            return statistics.median(one.tokens_per_second for one in stats)

        members = {"plain": partial(write, False), "speculation": partial(write, True)}
        found = alternate(members, asked.rounds)
        curve, devices = engine.cost_curve(), engine.plan.devices
    script.check(all(len(of) == 1 for of in texts.values()), "the texts are equal")
    away = (f"{part.units} units {format_size(part.total_bytes)}" for part in devices)
    return {
        "plain, tokens/s": statistics.median(found["plain"]),
        "speculation": statistics.median(found["speculation"]),
        "ratio": ratios(found["speculation"], found["plain"]),
        "tokens/step": statistics.mean(steps),
        "T(n), ms": {str(n): 1e3 * curve[n] for n in (1, 2, 4, 8) if n in curve},
        "away": ", ".join(away),
    }


class Delay:
    """An address that stands for another, so many seconds further away."""

    def __init__(self, port: int, delay_s: float) -> None:
        self._target, self._delay_s = port, delay_s
        self.loop = asyncio.new_event_loop()
        ready = threading.Event()
        threading.Thread(target=self._run, args=(ready,), daemon=True).start()
        ready.wait()

    def _run(self, ready: threading.Event) -> None:
        async def main() -> None:
            server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
            self.port = server.sockets[0].getsockname()[1]
            ready.set()
            await server.serve_forever()

        self.loop.run_until_complete(main())

    async def _accept(self, one: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        other, forth = await asyncio.open_connection("127.0.0.1", self._target)
        await asyncio.gather(self._carry(one, forth), self._carry(other, back))

    async def _carry(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        while data := await source.read(1 << 18):
            self.loop.call_later(self._delay_s, target.write, data)
        self.loop.call_later(self._delay_s, target.close)


@contextmanager
def worker(memory_bytes: int, threads: int) -> Iterator[int]:
    """The port of a worker with a memory budget; tells at the end what it held at most."""
    command = [sys.executable, "-m", "edgespec", "worker", "--port", "0"]
    command += ["--memory", str(memory_bytes), "--threads", str(threads)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline().split(",")[0].rpartition(":")[2])
        peak = sum(peak_bytes(one.pid) for one in _tree(process.pid))
        script.note(f"a worker held {format_size(peak)} of {format_size(memory_bytes)}")
    finally:
        process.kill()
        process.wait()


def _tree(pid: int) -> list[psutil.Process]:
    """A worker and its server."""
    front = psutil.Process(pid)
    return [front, *front.children(recursive=True)]


def peak_bytes(pid: int) -> int:
    """VmHWM; their sum is at least the peak of the sum."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


class Worker:
    """A process of `edgespec worker`, started anew where it was."""

    def __init__(self, memory_bytes: int) -> None:
        self._memory_bytes, self.port = memory_bytes, 0
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "edgespec", "worker", "--threads", "1"]
        command += ["--port", str(self.port), "--memory", str(self._memory_bytes)]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline().split(",")[0].rpartition(":")[2])

    def both(self) -> list[psutil.Process]:
        """The worker and its server."""
        front = psutil.Process(self.process.pid)
        return [front, *front.children()]

    def kill(self) -> None:
        for one in self.both():
            one.kill()
        self.process.wait()


def lose(worker: Worker, way: str) -> Callable[[], None]:
    """Take the worker away; returns what brings it back."""
    if way == "killed":
        worker.kill()
        return worker.start
    stopped = worker.both()[way == "server halted" :]
    for one in stopped:
        one.suspend()

    def resume() -> None:
        for one in stopped if way == "halted" else ():
            one.resume()  # another server is started by the worker itself

    return resume


def trial(engine: edgespec.Engine, worker: Worker, way: str) -> tuple[float, float]:
    """Seconds to the error, and from the worker's return to the whole of the next reply."""
    with engine.chat() as chat:
        stream = chat.stream("Tell me a story.", max_tokens=400, ignore_eos=True)
        for _ in range(3):
            next(stream)
        bring_back = lose(worker, way)
        start = time.perf_counter()
        try:
            list(stream)
        except BackendError as error:
            told_s, said = time.perf_counter() - start, str(error)
        assert "nothing of the conversation is lost" in said, said
        bring_back()
        start = time.perf_counter()
        chat.send("And then?", max_tokens=8, ignore_eos=True)
        assert len(chat.messages) == 4
        return told_s, time.perf_counter() - start


def throttled_prefill(engine: edgespec.Engine, worker: Worker) -> float:
    """Seconds of a long prompt on a server that is halted four fifths of the time."""
    server, over = worker.both()[1], threading.Event()

    def throttle() -> None:
        while not over.is_set():
            server.suspend()
            time.sleep(0.2)
            server.resume()
            time.sleep(0.05)

    thread = threading.Thread(target=throttle)
    thread.start()
    try:
        start = time.perf_counter()
        engine.generate(LONG_PROMPT, max_tokens=1, ignore_eos=True)
        return time.perf_counter() - start
    finally:
        over.set()
        thread.join()


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


@script.command(option("model", type=Path), rounds(5))
def lost(asked: Asked) -> Rows:
    """A worker is killed or halted after three pieces of a reply, then started again.

    Halted is SIGSTOP: no connection is closed; the worker with its server or the server alone.
    Last, the server is halted four fifths of the time, so that a prompt takes long, and nothing may
    be given up.
    """
    held = Worker(asked.model.stat().st_size + 300 * MIB)
    address = f"127.0.0.1:{held.port}"
    try:
        with edgespec.load(
            asked.model, backend="llamacpp", workers=address, context=1024, threads=1
        ) as engine:
            for way in WAYS:
                found = [trial(engine, held, way) for _ in range(asked.rounds)]
                told, back = zip(*found, strict=True)
                yield {
                    "worker": way,
                    "error after, s": Spread.of(told),
                    "next reply after its return, s": Spread.of(back),
                }
            taken = throttled_prefill(engine, held)
            script.note(f"throttled: a prompt took {taken:.1f} s, and nothing was given up")
    finally:
        held.kill()


@script.command(
    option("model", nargs="?", default="edgespec-tiny"),
    option("--prompts", type=int, default=500),
    option("--kills", type=int, default=2),
    tokens(60),
    option("--seed", type=int, default=1),
)
def ray(asked: Asked) -> Rows:
    """Lines that came back, doubles and differences from one machine, which must be none."""
    rng = random.Random(asked.seed)
    with (
        tempfile.TemporaryDirectory() as folder,
        subprocess.Popen(
            [sys.executable, NODES],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment() | {"RAY_USAGE_STATS_ENABLED": "0"},
            text=True,
        ) as nodes,
    ):
        assert nodes.stdin is not None and nodes.stdout is not None
        prompts, out = Path(folder, "prompts.jsonl"), Path(folder, "out.jsonl")
        write_prompts(prompts, asked.prompts, rng)
        command = [sys.executable, "-m", "edgespec", "batch", str(prompts), "-m", asked.model]
        command += ["--memory", "1GiB", "--threads", "1", "--max-tokens", str(asked.tokens)]
        start = time.perf_counter()
        alone = subprocess.run(command, env=environment(), capture_output=True, check=True).stdout
        alone_s = time.perf_counter() - start
        address = nodes.stdout.readline().strip()
        start = time.perf_counter()
        with subprocess.Popen(
            [*command, "--ray", address, "--out", str(out)],
            env=environment(),
            stderr=subprocess.PIPE,
            text=True,
        ) as run:
            killed = kill_at_random(run, out, asked.kills, asked.prompts, rng)
            script.note(run.communicate()[1].strip())
        cluster_s = time.perf_counter() - start
        nodes.stdin.close()
        lines = out.read_bytes().splitlines()
        counts = Counter(json.loads(line)["line"] for line in lines)
        yield {
            "lines": len(lines),
            "of": asked.prompts,
            "twice": sum(counts.values()) - len(counts),
            "workers killed": killed,
            "with the cluster, s": cluster_s,
            "without, s": alone_s,
        }
        same = run.returncode == 0 and out.read_bytes() == alone
        script.check(same, "the file is the same as on one machine")


if __name__ == "__main__":
    script.run()
