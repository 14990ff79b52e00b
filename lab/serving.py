"""What the server does under load, and what schemas cost.

python -m lab.serving load [MODEL] --clients 100 --seconds 60
python -m lab.serving schemas [MODEL] --rounds 5
"""

from __future__ import annotations

import http.client
import itertools
import json
import threading
import time
from collections import Counter
from functools import partial
from typing import Any

import numpy as np

import edgespec
from edgespec.engine.engine import Engine
from edgespec.system.resident_memory import resident_bytes
from lab.harness import MODEL, Asked, Rows, Script, Spread, alternate, option, ratios, rounds

script = Script(__doc__)
SUBJECTS = ("a dog", "the sea", "a red ball", "rain", "a clever fox", "bread", "the moon")
CALL = {
    "type": "object",
    "properties": {
        "name": {"const": "get_current_weather"},
        "arguments": {
            "type": "object",
            "properties": {
                "location": {"enum": ["Bern", "Rome", "Lima"]},
                "temperature_unit": {"enum": ["celsius", "fahrenheit"]},
                "include_forecast": {"type": "boolean"},
            },
            "required": ["location", "temperature_unit", "include_forecast"],
            "additionalProperties": False,
        },
    },
    "required": ["name", "arguments"],
    "additionalProperties": False,
}
LIST = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {"title": {"type": "string", "maxLength": 30}, "year": {"type": "integer",
        "minimum": 1900, "maximum": 2030}},
        "required": ["title", "year"],
        "additionalProperties": False,
    },
    "minItems": 3,
    "maxItems": 6,
}  # fmt: skip


class Client(threading.Thread):
    """Asks for one reply after the other until told to stop."""

    def __init__(self, place: int, port: int, stop: threading.Event, num_tokens: int) -> None:
        super().__init__()
        self.place, self._port, self._stop_event = place, port, stop
        self._num_tokens = num_tokens
        self.seconds: list[float] = []
        self.first_s: list[float] = []
        self.texts: dict[int, str] = {}
        """By seed."""
        self.failures: Counter[str] = Counter()

    def run(self) -> None:
        for number in itertools.count():
            if self._stop_event.is_set():
                return
            seed = self.place * 10_000 + number
            try:
                self._ask(seed)
            except Exception as error:
                self.failures[f"{type(error).__name__}: {error}"[:80]] += 1

    def _ask(self, seed: int) -> None:
        begun = time.perf_counter()
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=300)
        body = {"model": "", "messages": turns(seed), "seed": seed, "stream": True,
                "max_tokens": self._num_tokens, "user": str(self.place)}  # fmt: skip
        connection.request("POST", "/v1/chat/completions", json.dumps(body))
        pieces, first = [], 0.0
        with connection.getresponse() as answer:
            for line in answer:
                if not line.startswith(b"data: {"):
                    continue
                found = json.loads(line[6:])
                if "error" in found:
                    raise RuntimeError(found["error"]["message"])
                piece = found["choices"][0]["delta"].get("content")
                if piece:
                    first = first or time.perf_counter() - begun
                    pieces.append(piece)
        connection.close()
        self.seconds.append(time.perf_counter() - begun)
        self.first_s.append(first)
        self.texts[seed] = "".join(pieces)


def turns(seed: int) -> list[dict[str, str]]:
    """The prompt that belongs to a seed."""
    subject = SUBJECTS[seed % len(SUBJECTS)]
    return [{"role": "user", "content": f"Number {seed}: tell me a story about {subject}."}]


@script.command(
    MODEL,
    option("--clients", type=int, default=100),
    option("--seconds", type=float, default=60.0),
    option("--sequences", type=int, default=4),
    option("--tokens", type=int, default=64, help="most tokens of a reply"),
    option("--compared", type=int, default=200, help="replies that are written again, alone"),
)
def load(asked: Asked) -> Rows:
    """Many clients at once, each with one request after the other; replies compared with those that
    the engine writes alone.
    """
    from tests.support.http_server import serving

    with edgespec.load(asked.model, sequences=asked.sequences, context=1024) as engine:
        engine.generate(messages=turns(0), seed=0, max_tokens=8)
        with serving(engine) as served:
            stop, held = threading.Event(), []
            clients = [
                Client(place, served.port, stop, asked.tokens) for place in range(asked.clients)
            ]
            begun = time.perf_counter()
            for client in clients:
                client.start()
            while (now := time.perf_counter() - begun) < asked.seconds:
                time.sleep(asked.seconds / 12)
                held.append(resident_bytes() / 2**20)
                yield {"second": f"{now:.0f}", "replies": sum(len(c.texts) for c in clients),
                       "resident, MiB": f"{held[-1]:.1f}"}  # fmt: skip
            stop.set()
            for client in clients:
                client.join()
            wall_s = time.perf_counter() - begun
        yield _summary(clients, wall_s)
        _compare(engine, clients, asked)


def _summary(clients: list[Client], wall_s: float) -> dict[str, Any]:
    seconds = np.array([one for client in clients for one in client.seconds])
    first = np.array([one for client in clients for one in client.first_s])
    counts = np.array([len(client.texts) for client in clients])
    for client in clients:
        for failure, count in client.failures.items():
            script.note(f"client {client.place}: {failure}, {count} times")
    return {
        "replies": len(seconds),
        "failed": sum(sum(client.failures.values()) for client in clients),
        "replies/s": f"{len(seconds) / wall_s:.1f}",
        "median, s": f"{np.median(seconds):.2f}",
        "95 %": f"{np.quantile(seconds, 0.95):.2f}",
        "longest": f"{seconds.max():.2f}",
        "first token, median": f"{np.median(first):.2f}",
        "replies of a client": f"{counts.min()} to {counts.max()}",
        "Jain's index": f"{counts.sum() ** 2 / (len(counts) * (counts**2).sum()):.4f}",
    }


def _compare(engine: Engine, clients: list[Client], asked: Asked) -> None:
    """Write some of the replies again, one at a time."""
    every = {seed: text for client in clients for seed, text in client.texts.items()}
    chosen = sorted(every)[:: max(len(every) // asked.compared, 1)]
    wrong = [
        seed
        for seed in chosen
        if engine.generate(messages=turns(seed), seed=seed, max_tokens=asked.tokens).text
        != every[seed]
    ]
    script.note(f"{len(chosen)} replies written again alone, {len(wrong)} of them differ")
    script.check(not wrong, "every reply is what the engine writes alone")


@script.command(MODEL, rounds(5), option("--tokens", type=int, default=200))
def schemas(asked: Asked) -> Rows:
    """Tokens per second of text that a schema binds, with and without speculation, and of free text
    of the same length.
    """
    with edgespec.load(asked.model, context=1024) as engine:
        for name, schema in (("tool call", CALL), ("list of objects", LIST)):

            def write(schema: Any, speculation: bool) -> float:
                num_tokens, seconds = 0, 0.0
                for seed in range(8):
                    reply = engine.generate(
                        f"Number {seed}: what do you know?", schema=schema, seed=seed,
                        max_tokens=asked.tokens, speculation=speculation,
                    )  # fmt: skip
                    stats = reply.stats
                    num_tokens += stats.output_tokens
                    seconds += stats.output_tokens / stats.tokens_per_second
                return num_tokens / seconds

            members = {
                "bound": partial(write, schema, True),
                "bound, plain": partial(write, schema, False),
                "free": partial(write, None, True),
                "free, plain": partial(write, None, False),
            }
            found = alternate(members, asked.rounds)
            yield {
                "schema": name,
                **{f"{member}, tokens/s": Spread.of(found[member]) for member in members},
                "bound / plain": ratios(found["bound"], found["bound, plain"]),
                "bound / free": ratios(found["bound"], found["free"]),
            }


if __name__ == "__main__":
    script.run()
