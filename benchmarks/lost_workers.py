"""How soon a worker that is gone or halted is told of, and how soon the conversation goes on.

    python benchmarks/lost_workers.py MODEL [--trials 5]

A worker on the loopback address holds the model. After three pieces of a reply it is killed or
halted (SIGSTOP: no connection is closed), the worker with its server or the server alone. Then it
is started again, or let go on, and the next message is sent. Last, the server is halted four fifths
of the time, so that a prompt takes long, and nothing may be given up. Linux and macOS.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parents[1]))

import edgespec
from edgespec.errors import BackendError
from edgespec.system.size import MIB

WAYS = ("killed", "halted", "server halted")
PROMPT = "Tell me a long story about a dog, a cat and a mouse. " * 30


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
        engine.generate(PROMPT, max_tokens=1, ignore_eos=True)
        return time.perf_counter() - start
    finally:
        over.set()
        thread.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("model", type=Path)
    parser.add_argument("--trials", type=int, default=5)
    asked = parser.parse_args()
    worker = Worker(asked.model.stat().st_size + 300 * MIB)
    try:
        with edgespec.load(
            asked.model, backend="llamacpp", workers=f"127.0.0.1:{worker.port}", context=1024,
            threads=1,
        ) as engine:  # fmt: skip
            for way in WAYS:
                found = [trial(engine, worker, way) for _ in range(asked.trials)]
                told, back = (sorted(column) for column in zip(*found, strict=True))
                print(
                    f"{way:<16}error after {told[0]:.2f} to {told[-1]:.2f} s, "
                    f"next reply {back[0]:.1f} to {back[-1]:.1f} s after its return",
                    flush=True,
                )
            chunk = engine.plan.prefill_chunk
            print(f"throttled: a prompt took {throttled_prefill(engine, worker):.1f} s, "
                  f"in chunks of {chunk} tokens, and nothing was given up")  # fmt: skip
    finally:
        worker.kill()


if __name__ == "__main__":
    main()
