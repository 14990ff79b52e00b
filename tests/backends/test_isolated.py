"""Engines of others behind a wall: the same texts, and faults that end as sentences."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import edgespec
from edgespec.backends.isolated import known
from edgespec.backends.isolated.known import is_known as IS_KNOWN  # noqa: N812
from edgespec.backends.isolated.target import IsolatedTarget
from edgespec.backends.passes import TokenTree
from edgespec.errors import BackendError, BudgetError, OptionError
from edgespec.tools.export.export import export
from tests.support.command_line import environment
from tests.support.facts import facts_in
from tests.support.gguf_models import CHATML, write_gguf
from tests.support.targets import missing

PLAIN = {"max_tokens": 16, "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module", params=["llamacpp", "onnx"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GGUF file for llama.cpp, and the same as a folder for ONNX Runtime."""
    if missing(request.param):
        pytest.skip(missing(request.param))
    folder = tmp_path_factory.mktemp("isolated")
    written = write_gguf(folder / "m.gguf", dim=64, layers=2, type="F16", template=CHATML)
    return written if request.param == "llamacpp" else export(written, folder / "m").path.parent


def _load(model: Path, **options: Any) -> edgespec.Engine:
    backend = "llamacpp" if model.is_file() else "onnx"
    settings = {"backend": backend, "threads": 1, "context": 256, "isolate": "on"}
    return edgespec.load(model, **settings | options)


def _sequences(model: Path) -> int:
    """How many replies an engine writes at once."""
    return 2 if model.is_file() else 1


@pytest.fixture(scope="module")
def engine(model: Path) -> Iterator[edgespec.Engine]:
    with _load(model, sequences=_sequences(model)) as made:
        yield made


def _target(engine: edgespec.Engine) -> IsolatedTarget:
    target = engine.scheduler.target
    assert isinstance(target, IsolatedTarget)
    return target


def test_texts_are_those_of_the_engine_in_this_process(
    model: Path, engine: edgespec.Engine
) -> None:
    prompts = ["the cat", "once more the cat"]
    with _load(model, isolate="off", sequences=_sequences(model)) as here:
        expected = [here.generate(prompt, **PLAIN).token_ids for prompt in prompts]
        batch = [reply.token_ids for reply in here.generate_batch(prompts, **PLAIN)]
    assert [engine.generate(prompt, **PLAIN).token_ids for prompt in prompts] == expected
    assert [reply.token_ids for reply in engine.generate_batch(prompts, **PLAIN)] == batch
    plain = engine.generate(prompts[0], speculation=False, **PLAIN)
    assert plain.token_ids == expected[0]


def test_sequences_are_copied_and_put_back(model: Path) -> None:
    with _load(model) as engine:
        target = _target(engine)
        sequence = target.own
        sequence.truncate(0)
        sequence.prefill([1, 2, 3, 4])
        kept = sequence.snapshot()
        first = target.forward(((sequence, TokenTree.chain([5, 6])),)).logits.copy()
        sequence.commit([0, 1])
        assert sequence.length == 6 and sequence.truncate(2) == 2
        sequence.restore(kept)
        again = target.forward(((sequence, TokenTree.chain([5, 6])),)).logits
        assert sequence.length == 4 and np.allclose(first, again, atol=1e-5)
        with pytest.raises(BackendError):
            sequence.restore(object())
        del kept
        assert engine.generate("after", max_tokens=1).stats.output_tokens == 1


def test_it_is_counted_and_walled(engine: edgespec.Engine) -> None:
    target = _target(engine)
    child = psutil.Process(target._child.pid)
    assert "isolation" in engine.plan.footprint.names
    reply = engine.generate("the cat", max_tokens=2)
    assert reply.stats.peak_memory_bytes > child.memory_info().rss
    if target.is_walled:
        status = Path(f"/proc/{child.pid}/status").read_text("ascii")
        assert "NoNewPrivs:\t1" in status and "Seccomp:\t2" in status
    elif sys.platform.startswith("linux"):
        pytest.skip("this kernel has no Landlock or no seccomp")


def test_an_engine_that_dies_ends_the_reply_alone(model: Path) -> None:
    with _load(model) as engine:
        child = psutil.Process(_target(engine)._child.pid)
        stream = engine.stream("the cat", **PLAIN | {"max_tokens": 200})
        next(stream)
        child.send_signal(getattr(signal, "SIGSEGV", signal.SIGTERM))
        child.wait(10)
        with pytest.raises(BackendError, match="load the model again"):
            for _ in stream:
                pass
        with pytest.raises(BackendError, match="isolated (llamacpp|onnx) engine"):
            engine.generate("again", max_tokens=1)
    end = time.monotonic() + 5
    while psutil.pid_exists(child.pid) and time.monotonic() < end:
        time.sleep(0.05)
    assert not psutil.pid_exists(child.pid)


def test_an_interrupt_does_not_end_the_engine(engine: edgespec.Engine) -> None:
    os.kill(_target(engine)._child.pid, signal.SIGINT)
    assert engine.generate("the cat", max_tokens=2).stats.output_tokens == 2


def test_what_it_cannot_have_is_told(model: Path) -> None:
    with pytest.raises(OptionError, match="leave out --isolate"):
        _load(model, drafters="early-exit")
    with pytest.raises(OptionError, match="leave out --isolate"):
        _load(model, draft_model=model)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="there is no wall elsewhere")
def test_a_new_file_is_isolated_until_it_has_run(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known, "is_known", IS_KNOWN)
    monkeypatch.setattr(known, "fact_path", facts_in(tmp_path))
    with _load(model, isolate="auto") as engine:
        assert engine.plan.isolated and "not run this file here before" in engine.plan.explain()
        first = engine.generate("the cat", **PLAIN).token_ids
    with _load(model, isolate="auto") as engine:
        assert not engine.plan.isolated
        assert engine.generate("the cat", **PLAIN).token_ids == first
    if model.is_file():
        os.utime(model, ns=(1, 1))
        with pytest.raises(BackendError), _load(model, isolate="auto") as engine:
            psutil.Process(_target(engine)._child.pid).kill()
            engine.generate("the cat", **PLAIN)
        with _load(model, isolate="auto") as engine:
            assert engine.plan.isolated, "what ended its process stays unknown"


def test_no_room_for_a_process_of_its_own(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _load(model, isolate="off").close()  # what an engine of others imports is there
    monkeypatch.setattr(known, "is_known", lambda *_: False)
    settings: dict[str, Any] = {"backend": "llamacpp" if model.is_file() else "onnx", "threads": 1}
    settings |= {"context": 256, "max_nodes": 4}
    alone, walled = (edgespec.plan(model, isolate=word, **settings) for word in ("off", "auto"))
    between = walled.planned_bytes - alone.planned_bytes
    assert walled.isolated and between > 8 << 20
    # Halfway, as what this process has resident moves by some MiB from plan to plan.
    settings["memory"] = alone.planned_bytes + between // 2
    with pytest.raises(BudgetError):
        edgespec.plan(model, isolate="on", **settings)
    assert not edgespec.plan(model, isolate="auto", **settings).isolated


def test_another_word_is_refused(model: Path) -> None:
    with pytest.raises(OptionError, match="choose auto, on or off"):
        _load(model, isolate="yes")


def test_our_own_backend_needs_no_wall(tmp_path: Path) -> None:
    with _load(write_gguf(tmp_path / "m.gguf"), backend="native") as engine:
        assert not engine.plan.isolated and engine.plan.backend == "native"


HOSTILE: dict[str, Any] = {
    "no object": [1, 2],
    "an error that is none": {"error": "__loader__", "message": 3},
    "an error of Python's": {"error": "annotations"},
    "another number of rows": {"found": 7},
    "rows below none": {"found": -1},
    "no number": {"found": "all"},
    "nothing": {},
}


@pytest.mark.parametrize("case", HOSTILE)
def test_answers_of_an_engine_that_was_taken_over(
    case: str, engine: edgespec.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = _target(engine)
    real = target._child.ask

    def ask(question: Any) -> Any:
        answer = real(question)
        return HOSTILE[case] if question[0] == "forward" else answer

    with monkeypatch.context() as patch:
        patch.setattr(target._child, "ask", ask)
        with pytest.raises(BackendError):
            engine.generate("the cat", **PLAIN)
    assert engine.generate("the cat", max_tokens=2).stats.output_tokens == 2


CUT = """
import os, sys
import numpy as np
from edgespec.backends.isolated.rows import SharedRows
from edgespec.system.lost_pages import guard
guard()
rows = SharedRows(64, 4096)
os.truncate(rows.path, 0)
assert rows.values.sum() == 0
print("alive")
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="nothing is guarded elsewhere")
def test_rows_that_are_cut_read_as_zeros() -> None:
    """The engine's process shares them, and could end whoever reads them."""
    done = subprocess.run(
        [sys.executable, "-c", CUT], capture_output=True, text=True, env=environment(), check=False
    )
    assert done.stdout == "alive\n", done.stderr
