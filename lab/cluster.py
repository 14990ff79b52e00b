"""Does speculation pay over workers? A model here, on one, on two, and over a slow network.

    python benchmarks/workers.py MODEL [--delays MS,...] [--tokens N] [--trials N] [--threads N]

Workers are processes of `edgespec worker` on the loopback address; a delay is put on every byte in
each direction by a relay of ours, so 1 ms is a round trip of 2 ms. Every layer is on workers but
what they cannot hold. Plain and speculative replies alternate; their texts must be equal. Exit
code 1: they were not. Linux only, for the peaks.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parents[1]))

import edgespec
from edgespec.system.size import MIB, format_size

PROMPTS = (
    "Tell me a short story about a dog and a ball.",
    "Write the numbers from one to thirty as words.",
    "Repeat after me: the cat sat on the mat and the dog sat on the cat.",
)


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
        peak = sum(_peak_bytes(one.pid) for one in _tree(process.pid))
        budget = format_size(memory_bytes)
        print(f"{'':<28}a worker held {format_size(peak)} of {budget}", flush=True)
    finally:
        process.kill()
        process.wait()


def _tree(pid: int) -> list[psutil.Process]:
    """A worker and its server."""
    front = psutil.Process(pid)
    return [front, *front.children(recursive=True)]


def _peak_bytes(pid: int) -> int:
    """VmHWM; their sum is at least the peak of the sum."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def measure(
    name: str, model: str, ports: list[int], tokens: int, trials: int, threads: int
) -> bool:
    """Print one row; whether all texts were equal."""
    options = {"max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    speeds: dict[bool, list[float]] = {False: [], True: []}
    accepted, equal = [], True
    workers = ",".join(f"127.0.0.1:{port}" for port in ports) or None
    with edgespec.load(
        model, backend="llamacpp", context=512, threads=threads, workers=workers
    ) as engine:
        for _ in range(trials):
            for prompt in PROMPTS:
                replies = {}
                for speculation in (False, True):
                    reply = engine.generate(prompt, speculation=speculation, **options)
                    speeds[speculation].append(reply.stats.tokens_per_second)
                    replies[speculation] = reply
                accepted.append(replies[True].stats.tokens_per_step)
                equal &= replies[True].token_ids == replies[False].token_ids
        curve, plan = engine.cost_curve(), engine.plan
    plain, fast = (statistics.median(speeds[which]) for which in (False, True))
    ratios = [b / a for a, b in zip(speeds[False], speeds[True], strict=True)]
    each = [statistics.median(ratios[place :: len(PROMPTS)]) for place in range(len(PROMPTS))]
    passes = " ".join(f"{size}: {1e3 * curve[size]:.1f}" for size in (1, 2, 4, 8) if size in curve)
    away = ", ".join(f"{part.units} units {format_size(part.total_bytes)}" for part in plan.devices)
    print(
        f"{name:<28}{plain:>8.1f}{fast:>8.1f}{statistics.median(ratios):>7.2f}"
        f" ({' '.join(f'{ratio:.2f}' for ratio in each)})  {statistics.mean(accepted):.2f} a step  "
        f"ms {passes}  {away}{'' if equal else '  DIFFERENT TEXTS'}",
        flush=True,
    )
    return equal


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--delays", default="1,5")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--trials", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", default="", help="rows whose names hold this")
    args = parser.parse_args()
    size = Path(args.model).stat().st_size
    print(f"{'':<28}{'plain':>8}{'spec.':>8}{'ratio':>7}  tokens/s, medians; ratios of each prompt")
    equal = True
    rows = [("here", 0, 0.0), ("one worker", 1, 0.0), ("two workers", 2, 0.0)]
    rows += [(f"one worker, {ms} ms away", 1, float(ms)) for ms in args.delays.split(",") if ms]
    for name, count, delay in rows:
        if args.only not in name:
            continue
        with ExitStack() as stack:
            share = size + 200 * MIB if count < 2 else size // 2 + 170 * MIB
            ports = [stack.enter_context(worker(share, args.threads)) for _ in range(count)]
            if delay:
                ports = [Delay(port, delay / 1e3).port for port in ports]
            equal &= measure(name, args.model, ports, args.tokens, args.trials, args.threads)
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
