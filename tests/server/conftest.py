"""One server for each module, of the bundled model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import edgespec
from edgespec.engine.engine import Engine
from tests.support.http_server import Served, serving


@pytest.fixture(scope="session")
def engine(bundled_model: Path) -> Iterator[Engine]:
    """Three replies at a time, and a short context."""
    with edgespec.load(bundled_model, threads=1, sequences=3, context=512) as opened:
        yield opened


@pytest.fixture(scope="module")
def served(engine: Engine) -> Iterator[Served]:
    with serving(engine) as found:
        yield found
