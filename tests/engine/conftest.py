"""Engines on tiny random models, one for each module."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import edgespec
from edgespec.engine.burst import Burst
from edgespec.engine.engine import Engine
from tests.support.gguf_models import CHATML, write_gguf


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two layers, 300 tokens, a context of 512, a chat template."""
    return write_gguf(tmp_path_factory.mktemp("engine") / "tiny.gguf", template=CHATML)


@pytest.fixture(scope="module")
def shared_engine(model: Path) -> Iterator[Engine]:
    with edgespec.load(model, threads=1) as opened:
        yield opened


@pytest.fixture
def engine(shared_engine: Engine) -> Engine:
    """An engine whose cache is empty."""
    shared_engine.scheduler.target.own.truncate(0)
    shared_engine.scheduler.idle.close()
    return shared_engine


@pytest.fixture
def step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """No bursts: readers see each step, and what it calls can be replaced."""
    monkeypatch.setattr(Burst, "write", lambda *_: None)
