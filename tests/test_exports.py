"""What `import edgespec` gives, and what it says in logs."""

from __future__ import annotations

import gc
import logging
import subprocess
import sys
from pathlib import Path

import pytest

import edgespec
from edgespec import errors
from tests.support.command_line import environment
from tests.support.gguf_models import write_gguf


def test_everything_that_is_exported_is_there() -> None:
    assert edgespec.__all__ == sorted(edgespec.__all__)
    assert set(edgespec.__all__) <= set(dir(edgespec))
    for name in edgespec.__all__:
        assert getattr(edgespec, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'lode'"):
        _ = edgespec.lode


def test_every_error_is_exported() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    assert {kind.__name__ for kind in kinds} <= set(edgespec.__all__)


def test_importing_brings_nothing_heavy() -> None:
    program = "import sys, edgespec; print({'numpy', 'numba', 'asyncio'} & set(sys.modules))"
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment()
    )
    assert found.stdout == "set()\n", found.stderr


def test_a_program_that_asks_sees_what_was_done(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    path = write_gguf(tmp_path / "tiny.gguf")
    for level, count in ((logging.DEBUG, 2), (logging.WARNING, 0)):
        caplog.clear()
        with caplog.at_level(level, "edgespec"), edgespec.load(path, threads=1) as engine:
            engine.generate("a", max_tokens=2)
        found = [one for one in caplog.records if one.name.startswith("edgespec.")]
        assert len(found) == count
        assert all(one.getMessage() for one in found)
    assert capfd.readouterr().err == ""


def test_collections_are_as_they_were_after_loading(bundled_model: Path) -> None:
    before = gc.get_threshold()
    with edgespec.load(bundled_model, backend="reference"):
        assert gc.get_threshold() == before
