"""One model over two workers: what a plan puts there, and would halves of each layer be faster?

    python -m lab.split batches MODEL [--sequences 1,4] [--tokens 32] [--rounds 3]
    python -m lab.split halves [--layers 12] [--width 1024] [--delays 0,1,5] [--rounds 5]

`batches`: as many replies at once as `--sequences`, speculation on and off in turns, every layer on
two workers of this machine; planned bytes of each worker beside what its processes came to hold
("Distributed SpecMemo"). `halves`: matrices of a model's shape over two processes of a thread each,
in turns by layers, and at once by halves of each matrix with an exchange after each ("HeteGen"),
over the loopback address and through a relay that delays every byte; set OPENBLAS_NUM_THREADS=1.
Linux.
"""

from __future__ import annotations

import multiprocessing
import socket
import statistics
import time
from contextlib import ExitStack
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import psutil

import edgespec
from edgespec.system.size import MIB, format_size
from lab.cluster import Delay, Worker, peak_bytes
from lab.harness import (
    Asked,
    Rows,
    Script,
    Spread,
    alternate,
    numbers,
    option,
    ratios,
    rounds,
    start_anew,
    tokens,
)
from lab.speculation import BATCH_PROMPTS

script = Script(__doc__)


@script.command(
    option("model", type=Path),
    option("--sequences", type=numbers, default=[1, 4]),
    tokens(32),
    rounds(3),
    option("--context", type=int, default=512),
)
def batches(asked: Asked) -> Rows:
    """Memory and speed; the texts must be equal, or the exit code is 1."""
    size = asked.model.stat().st_size
    for count in asked.sequences:
        with ExitStack() as stack:
            workers = [Worker(size // 2 + 170 * MIB) for _ in range(2)]
            for one in workers:
                stack.callback(one.kill)
            before = [sum(map(resident, one.both())) for one in workers]
            engine = stack.enter_context(
                edgespec.load(
                    asked.model,
                    backend="llamacpp",
                    threads=1,
                    context=asked.context,
                    sequences=count,
                    workers=",".join(f"127.0.0.1:{one.port}" for one in workers),
                )
            )
            texts: set[str] = set()
            steps: list[float] = []

            def write(
                speculation: bool, engine: Any = engine, count: int = count,
                texts: Any = texts, steps: Any = steps,
            ) -> float:  # fmt: skip
                start_anew(engine)
                start = time.perf_counter()
                replies = engine.generate_batch(
                    BATCH_PROMPTS[:count], max_tokens=asked.tokens, temperature=0.0,
                    ignore_eos=True, speculation=speculation,
                )  # fmt: skip
                taken = time.perf_counter() - start
                texts.add(repr([one.token_ids for one in replies]))
                steps.extend([one.stats.tokens_per_step for one in replies] * speculation)
                return sum(len(one.token_ids) for one in replies) / taken

            found = alternate(
                {"with": partial(write, True), "without": partial(write, False)}, asked.rounds
            )
            script.check(len(texts) == 1, f"{count} at once: the texts are equal")
            held = [sum(peak_bytes(part.pid) for part in one.both()) for one in workers]
            grown = [after - first for after, first in zip(held, before, strict=True)]
            devices = engine.plan.devices
            yield {
                "at once": count,
                "plain, tokens/s": statistics.median(found["without"]),
                "speculation": statistics.median(found["with"]),
                "ratio": ratios(found["with"], found["without"]),
                "tokens/step": statistics.mean(steps),
                "planned": [
                    f"{part.units} units {format_size(part.total_bytes)}" for part in devices
                ],
                "of it KV": [format_size(part.cache_bytes) for part in devices],
                "held beyond the start": [format_size(one) for one in grown],
                "here, planned": format_size(engine.plan.planned_bytes),
            }


def resident(process: psutil.Process) -> int:
    return int(process.memory_info().rss)


@script.command(
    option("--layers", type=int, default=12),
    option("--width", type=int, default=1024, help="of the hidden state"),
    option("--delays", type=numbers, default=[0, 1, 5], help="milliseconds each way"),
    option("--passes", type=int, default=20),
    rounds(5),
)
def halves(asked: Asked) -> Rows:
    """Milliseconds of a pass; the bound has no exchanges and half the weights for each side."""
    for delay in asked.delays:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            shown = Delay(port, delay / 1e3).port if delay else port
            ours, theirs = multiprocessing.Pipe()
            side = multiprocessing.get_context("spawn").Process(
                target=far_side, args=(theirs, shown, asked.layers, asked.width), daemon=True
            )
            side.start()
            link, _ = server.accept()
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        weights = matrices(asked.layers, asked.width)
        state = np.ones(asked.width, np.float32)

        members = {
            kind: partial(timed, ours, kind, asked.passes, partial(one_pass, link, weights, state))
            for kind, one_pass in (("turns", one_turn), ("halves", one_shared))
        }
        empty = [np.zeros((0, asked.width), np.float32)] * len(weights)
        exchanges = partial(one_shared, link, empty, state)
        members["exchanges"] = partial(timed, ours, "exchanges", asked.passes, exchanges)
        found = alternate(members, asked.rounds)
        ours.send(("end", 0))
        side.join()
        link.close()
        yield {
            "delay each way, ms": delay,
            "layers in turns, ms": Spread.of(found["turns"]),
            "halves at once, ms": Spread.of(found["halves"]),
            "exchanges alone, ms": Spread.of(found["exchanges"]),
            "turns / halves": ratios(found["turns"], found["halves"]),
        }


def matrices(layers: int, width: int) -> list[np.ndarray[Any, np.dtype[np.float32]]]:
    """Of all layers, half of each layer's rows: attention's part, and what is behind it."""
    rng = np.random.default_rng(1)
    shapes = [(width // 2 * 4, width), (width // 2 * 8, width)] * layers
    return [rng.standard_normal(shape, np.float32) for shape in shapes]


def timed(ours: Connection, kind: str, passes: int, one_pass: Any) -> float:
    """Median milliseconds of a pass, the other side told to keep up."""
    ours.send((kind, passes))
    taken = []
    for _ in range(passes):
        start = time.perf_counter()
        one_pass()
        taken.append(1e3 * (time.perf_counter() - start))
    return statistics.median(taken)


def one_turn(link: socket.socket, weights: Any, state: Any) -> None:
    """Whole layers: those of this side, which are as many bytes as half of all, then a trip."""
    for matrix in weights:
        matrix @ state
    link.sendall(state.tobytes())
    receive(link, state.nbytes)


def one_shared(link: socket.socket, weights: Any, state: Any) -> None:
    """Half of every matrix; the halves of the state are exchanged after each."""
    half = state[: len(state) // 2].tobytes()
    for matrix in weights:
        matrix @ state
        link.sendall(half)
        receive(link, len(half))


def receive(link: socket.socket, count: int) -> None:
    while count:
        count -= len(link.recv(count))


def far_side(theirs: Connection, port: int, layers: int, width: int) -> None:
    link = socket.create_connection(("127.0.0.1", port))
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    weights, state = matrices(layers, width), np.ones(width, np.float32)
    while True:
        kind, passes = theirs.recv()
        if kind == "end":
            return
        for _ in range(passes):
            if kind == "halves":
                one_shared(link, weights, state)
            elif kind == "exchanges":
                one_shared(link, [matrix[:0] for matrix in weights], state)
            else:
                receive(link, state.nbytes)
                for matrix in weights:
                    matrix @ state
                link.sendall(state.tobytes())


if __name__ == "__main__":
    script.run()
