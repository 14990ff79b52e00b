"""Does a day of requests leave anything behind?

    python -m lab.soak server [MODEL] [--requests 100000] [--minutes M] [--memory SIZE] [--cgroup]
    python -m lab.soak api MODEL OTHER [--requests 100000] [--minutes M]

`server`: `edgespec serve` in a process (with --cgroup in a control group whose limit is its
budget), asked by four clients: replies of all lengths, read whole or left, streams, schemas,
batches, Ollama's protocol, embeddings, nonsense. `api`: one process that opens one model and the
other in turns, with fifty requests each (tests/support/endurance.py). Memory, descriptors and
threads are looked at after the first 500 requests and ten times from then on; some texts are asked
for again at the end, of a fresh process, and must be the same.
"""

from __future__ import annotations

import http.client
import json
import random
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil

from edgespec.system.size import MIB, parse_size
from lab.harness import MODEL, Asked, Row, Rows, Script, in_process, option
from tests.support.budget_runs import held_bytes
from tests.support.command_line import environment
from tests.support.control_group import ControlGroup
from tests.support.endurance import WORDS, Requests

script = Script(__doc__)
CLIENTS = 4
WARM_UP = 500
MOST_GROWTH = 0.01
REQUESTS = option("--requests", type=int, default=100_000)
MINUTES = option("--minutes", type=float, help="begin no request later")
_COMPARED = 40
_LOOKS = 10
_MODELS_TURN = 50
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "year": {"type": "integer"}},
    "required": ["name", "year"],
    "additionalProperties": False,
}
KINDS = {"whole": 6, "stream": 4, "left": 4, "schema": 2, "pair": 1, "ollama": 2, "embedding": 1,
         "nonsense": 1}  # fmt: skip


def drawn(number: int) -> tuple[str, str, Any]:
    """The kind, address and body of a request, the same for the same number."""
    rng = random.Random(number)
    (kind,) = rng.choices(list(KINDS), list(KINDS.values()))
    text = " ".join(rng.choices(WORDS, k=rng.choice([3, 20, 120])))
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": text}],
        "max_tokens": rng.choice([1, 8, 40, 120]),
        "seed": number,
        "temperature": rng.choice([0.0, 0.8]),
    }
    if kind == "ollama":
        options = {"num_predict": body["max_tokens"], "seed": number}
        return kind, "/api/chat", {"model": "", "stream": False, "options": options,
                                   "messages": body["messages"]}  # fmt: skip
    if kind == "embedding":
        return kind, "/v1/embeddings", {"model": "", "input": text}
    if kind == "nonsense":
        wrong: list[dict[str, Any]] = [{"max_tokens": -1}, {"temperature": "x"}, {"messages": 3}]
        return kind, "/v1/chat/completions", body | rng.choice(wrong)
    more: dict[str, dict[str, Any]] = {
        "stream": {"stream": True},
        "left": {"stream": True},
        "pair": {"n": 2},
        "schema": {"response_format": {"type": "json_schema",
                                       "json_schema": {"name": "one", "schema": SCHEMA}}},
    }  # fmt: skip
    return kind, "/v1/chat/completions", body | more.get(kind, {})


def answer(port: int, number: int) -> str:
    """What a request gets, without what differs each time."""
    kind, path, body = drawn(number)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    try:
        headers = {"Content-Type": "application/json"}
        connection.request("POST", path, json.dumps(body).encode(), headers)
        found = connection.getresponse()
        if kind == "left":
            found.read(random.Random(number).randrange(1, 900))
            return f"{kind} {found.status}"
        text = found.read().decode()
    finally:
        connection.close()
    if found.status != 200:
        return f"{kind} {found.status}"
    if kind == "stream":
        parts = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
        return "".join(
            part["choices"][0]["delta"].get("content") or "" for part in parts if part["choices"]
        )
    values = json.loads(text)
    if kind == "ollama":
        return str(values["message"]["content"])
    if kind == "embedding":
        return json.dumps(values["data"])
    return json.dumps([choice["message"]["content"] for choice in values["choices"]])


class Clients:
    """Threads that ask for one request after the other."""

    def __init__(self, port: int, count: int, seconds: float) -> None:
        self.told: dict[int, str] = {}
        """Answers that are compared at the end."""
        self.counts: Counter[str] = Counter()
        self.failures: list[str] = []
        self.done = 0
        self._port, self._count = port, count
        self._end = time.monotonic() + seconds
        self._lock = threading.Lock()
        self._next = iter(range(count))
        self._every = max(count // _COMPARED, 1)
        self._threads = [threading.Thread(target=self._ask) for _ in range(CLIENTS)]
        for thread in self._threads:
            thread.start()

    @property
    def are_at_work(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    def _ask(self) -> None:
        while time.monotonic() < self._end and len(self.failures) < 10:
            with self._lock:
                number = next(self._next, None)
            if number is None:
                return
            kind = drawn(number)[0]
            try:
                text = answer(self._port, number)
            except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
                self.failures.append(f"request {number}, {kind}: {error!r}")
                continue
            with self._lock:
                self.counts[kind] += 1
                self.done += 1
                if kind != "left" and (number % self._every == 0 or number < _COMPARED // 2):
                    self.told[number] = text


@script.command(
    MODEL, REQUESTS, MINUTES,
    option("--memory", type=parse_size, default="600MiB"),
    option("--cgroup", action="store_true"),
)  # fmt: skip
def server(asked: Asked) -> Rows:
    """Requests of a server. Exit code 1: something is left behind, or a text differs."""
    with _served(asked.model, asked.memory, asked.cgroup) as (process, port, group):
        clients = Clients(port, asked.requests, (asked.minutes or 1e9) * 60)
        first: Row = {}
        next_look = min(WARM_UP, asked.requests // 2)
        while clients.are_at_work:
            time.sleep(2.0)
            if clients.done >= next_look:
                last = _held(process.pid, clients.done)
                first = first or last
                yield last
                next_look = (clients.done * _LOOKS // asked.requests + 1) * asked.requests // _LOOKS
        time.sleep(1.0)  # connections that were left end
        last = _held(process.pid, clients.done)
        yield last
        facts = group.facts() if group else {}
    for failure in clients.failures:
        script.note(failure)
    script.note(", ".join(f"{count} {name}" for name, count in clients.counts.most_common()))
    with _served(asked.model, asked.memory, cgroup=False) as (_, port, _group):
        wrong = [number for number, text in clients.told.items() if answer(port, number) != text]
    script.check(not clients.failures, f"{len(clients.failures)} requests failed")
    told = f"{len(wrong)} of {len(clients.told)} texts differ from a fresh process's"
    script.check(not wrong, f"{told} {wrong[:5]}")
    script.check(bool(first) and _is_flat(first, last), "nothing is left behind")
    if facts:
        script.check(not facts["kills"], f"{facts['kills']} kills, most {facts}")


def _held(pid: int, requests: int) -> Row:
    process = psutil.Process(pid)
    return {
        "requests": requests,
        "MiB": held_bytes(pid) / MIB,
        "descriptors": process.num_fds() if psutil.POSIX else process.num_handles(),
        "threads": process.num_threads(),
    }


def _is_flat(first: Row, last: Row) -> bool:
    """The line's own threads come and go, so one more or less is none lost."""
    grew = last["MiB"] / first["MiB"] - 1.0
    script.note(f"memory {grew:+.2%}, goal {MOST_GROWTH:+.0%}")
    few = last["descriptors"] <= first["descriptors"] + CLIENTS
    return bool(grew <= MOST_GROWTH and few and last["threads"] <= first["threads"] + 1)


@contextmanager
def _served(
    model: str | None, memory: int, cgroup: bool
) -> Iterator[tuple[subprocess.Popen[str], int, ControlGroup | None]]:
    """A server's process and port."""
    command = [sys.executable, "-m", "edgespec", "serve", "--port", "0", "--max-batch", "2",
               "--memory", str(memory), "--context", "1024"]  # fmt: skip
    with ExitStack() as opened:
        group = opened.enter_context(ControlGroup(memory)) if cgroup else None
        process = subprocess.Popen(
            [*command, *([model] if model else [])],
            stdout=subprocess.PIPE,
            text=True,
            env=environment() | {"EDGESPEC_HISTORY": "0"},
            preexec_fn=group.enter if group else None,
        )
        opened.callback(process.wait)
        opened.callback(process.terminate)
        assert process.stdout is not None
        port = re.search(r":(\d+) \(", process.stdout.readline())
        if port is None:
            sys.exit("the server did not start")
        yield process, int(port[1]), group


@script.command(option("models", nargs=2, type=Path, metavar="MODEL"), REQUESTS, MINUTES)
def api(asked: Asked) -> Rows:
    """Requests in one process that swaps models. Exit code 1: something is left behind."""
    seconds = (asked.minutes or 1e9) * 60
    found = in_process(swapping, [str(model) for model in asked.models], asked.requests, seconds)
    if "error" in found:
        sys.exit(found["error"])
    yield from (found["first"], found["last"])
    script.note(f"most between: {found['most']:.1f} MiB")
    script.check(found["same"], "the first texts are those at the end")
    script.check(_is_flat(found["first"], found["last"]), "nothing is left behind")


def swapping(models: list[str], requests: int, seconds: float) -> dict[str, Any]:
    """What this process holds after ten turns of both models, and at the end."""
    import edgespec

    end = time.monotonic() + seconds
    found: list[Row] = []
    texts: list[list[str]] = []
    while not found or (found[-1]["requests"] < requests and time.monotonic() < end):
        texts.append([])
        for model in models:
            with edgespec.load(model, context=512, sequences=2) as engine:
                prompt = " ".join(WORDS)
                texts[-1].append(engine.generate(prompt, seed=3, max_tokens=40).text)
                work = Requests(engine, len(found))
                for _ in range(_MODELS_TURN):
                    work.one()
        found.append(_held(psutil.Process().pid, len(found) * 2 * _MODELS_TURN))
        del texts[1:-1]
    first = found[min(WARM_UP // (2 * _MODELS_TURN), len(found) // 2)]
    most = max(one["MiB"] for one in found)
    return {"first": first, "last": found[-1], "most": most, "same": texts[0] == texts[-1]}


if __name__ == "__main__":
    script.run()
