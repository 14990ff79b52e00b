"""An engine that is closed while it writes: the reply ends, the process does not."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import psutil
import pytest

import edgespec
from edgespec.errors import EdgeSpecError
from tests.support.gguf_models import CHATML, write_gguf

SCRIPT = """
import sys, threading, time
import edgespec

path, backend = sys.argv[1:]
ended = []

def write(engine, how):
    try:
        if how == "generate":
            engine.generate("hello " * 60, max_tokens=400, seed=1, ignore_eos=True)
        elif how == "stream":
            for _ in engine.stream("hello", max_tokens=400, seed=1, ignore_eos=True):
                pass
        else:
            engine.generate_batch(["a", "b"], max_tokens=300, seed=1, ignore_eos=True)
        ended.append("whole")
    except edgespec.EdgeSpecError as error:
        assert "closed" in str(error), error
        ended.append("closed")

for turn in range(24):
    engine = edgespec.load(path, backend=backend, threads=1, sequences=2)
    how = ("generate", "stream", "batch")[turn % 3]
    thread = threading.Thread(target=write, args=(engine, how))
    thread.start()
    time.sleep(0.002 * turn)
    engine.close()
    thread.join(60)
    assert not thread.is_alive()
assert len(ended) == 24, ended
assert "closed" in ended, ended
print("alive")
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("closing") / "tiny.gguf", template=CHATML)


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_closing_while_another_thread_writes(backend: str, model: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(model), backend],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert (run.returncode, run.stdout) == (0, "alive\n"), run.stderr[-2000:]


def test_a_stream_that_rests_ends_with_its_engine(model: Path) -> None:
    engine = edgespec.load(model, threads=1)
    stream = engine.stream("hello", max_tokens=200, seed=1, ignore_eos=True)
    next(stream)
    engine.close()
    assert stream.reply.finish_reason == "cancelled"
    with pytest.raises(EdgeSpecError, match="closed"):
        next(stream)
    stream.close()


def test_what_an_engine_calls_cannot_close_it(model: Path) -> None:
    failures: list[str] = []

    def close(stage: str, done: int, total: int) -> None:
        if stage == "prefill" and not failures:
            try:
                engine.close()
            except EdgeSpecError as error:
                failures.append(str(error))

    with edgespec.load(model, threads=1, progress=close) as engine:
        reply = engine.generate("word " * 60, max_tokens=4, seed=1, ignore_eos=True)
    assert len(reply.token_ids) == 4
    assert "cannot be closed" in failures[0]


def test_two_threads_may_close(model: Path) -> None:
    engine = edgespec.load(model, threads=1)
    threads = [threading.Thread(target=engine.close) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    with pytest.raises(EdgeSpecError, match="closed"):
        engine.generate("x", max_tokens=1)


@pytest.mark.skipif(not psutil.POSIX, reason="descriptors are POSIX's")
def test_nothing_is_left_of_engines_that_were_closed(model: Path) -> None:
    """`lab.soak api` does it for longer, and looks at memory too."""
    process, held = psutil.Process(), []
    for _ in range(8):
        with edgespec.load(model, threads=2, context=256) as engine:
            engine.generate("hello", max_tokens=4, seed=1)
        held.append((process.num_fds(), process.num_threads()))
    assert held[-1] <= held[1], held


def test_a_closed_engine_is_gone_when_the_next_is_open(model: Path) -> None:
    """Its parts hold each other, which only a collection undoes; and those are far between."""
    gc.disable()
    try:
        with edgespec.load(model, threads=1) as engine:
            engine.chat().send("hello", max_tokens=4)
        gone = weakref.ref(engine)
        del engine
        with edgespec.load(model, threads=1):
            assert gone() is None
    finally:
        gc.enable()
