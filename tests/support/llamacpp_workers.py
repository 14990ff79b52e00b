"""Real workers on the loopback address: processes of `edgespec worker`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import psutil
import pytest

import edgespec
from edgespec.backends.llamacpp import library
from edgespec.system.size import MIB, parse_size
from tests.support.command_line import ROOT
from tests.support.gguf_models import CHATML, write_gguf
from tests.support.targets import missing

WHY = missing("llamacpp") or library.missing_rpc()
serving = pytest.mark.skipif(bool(WHY), reason=WHY)


def write_eight_layers(folders: pytest.TempPathFactory) -> Path:
    """A model of eight layers of 2 MiB."""
    return write_gguf(
        folders.mktemp("workers") / "m.gguf",
        dim=256, ffn=1024, layers=8, type="F16", template=CHATML, context=2048,
    )  # fmt: skip


def load(model: Path, **options: Any) -> edgespec.Engine:
    return edgespec.load(model, **{"backend": "llamacpp", "threads": 1, "context": 256, **options})


def addresses(made: list[Worker]) -> str:
    return ",".join(worker.address for worker in made)


_LINE = re.compile(r"listening on (\S+):(\d+), offering (.+?) of a budget of ")


class Worker:
    """A worker, and what it held at most; a context manager that ends it."""

    def __init__(self, memory_bytes: int, port: int = 0, key: Path | None = None) -> None:
        self.memory_bytes = memory_bytes
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "edgespec", "worker", "--threads", "1"),
                *("--port", str(port), "--memory", str(memory_bytes)),
                *(("--key-file", str(key)) if key else ()),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        match = _LINE.search(line)
        if match is None:
            raise AssertionError(line + self._process.communicate()[1])
        self.port = int(match[2])
        self.address = f"127.0.0.1:{self.port}"
        self.offer_bytes = parse_size(match[3].replace(" ", ""))
        self.peak_bytes = 0
        self.said = ""
        self._ended = threading.Event()
        threading.Thread(target=self._sample, daemon=True).start()

    def processes(self) -> list[psutil.Process]:
        """The worker and its server."""
        front = psutil.Process(self._process.pid)
        return [front, *front.children(recursive=True)]

    def _sample(self) -> None:
        while not self._ended.wait(0.01):
            try:
                held = sum(process.memory_info().rss for process in self.processes())
            except psutil.Error:
                continue
            self.peak_bytes = max(self.peak_bytes, held)

    def kill(self) -> None:
        """As when the machine loses power, except that its system closes the connections."""
        for process in reversed(self.processes()):
            process.kill()

    def close(self) -> None:
        self._ended.set()
        if self._process.poll() is None:
            self.kill()
        self.said += self._process.communicate()[1]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def own_bytes() -> int:
    """What a worker takes for itself, as one tells that offers the rest."""
    with Worker(256 * MIB) as worker:
        return worker.memory_bytes - worker.offer_bytes


@contextmanager
def workers(*offers: int) -> Iterator[list[Worker]]:
    """Workers that offer about so many bytes."""
    own = own_bytes()
    made: list[Worker] = []
    try:
        for offer in offers:
            made.append(Worker(own + offer))
        yield made
    finally:
        for worker in made:
            worker.close()
