"""A process that forks after a model was loaded: it works in the child, or is told."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from edgespec.tools.export.export import export
from tests.support.command_line import environment
from tests.support.gguf_models import write_gguf
from tests.support.targets import missing

FORK = """
import os, signal, sys
import edgespec
path, backend, isolate = sys.argv[1:]
with edgespec.load(
    path, backend=backend, threads=2, context=128, isolate="on" if isolate else "off"
) as engine:
    expected = engine.generate("the cat", max_tokens=4, temperature=0).token_ids
    child = os.fork()
    if not child:
        signal.alarm(30)
        try:
            same = engine.generate("the cat", max_tokens=4, temperature=0).token_ids == expected
        except edgespec.EdgeSpecError as error:
            same = "load it in the child" in str(error)
        os._exit(not same)
    assert os.waitpid(child, 0)[1] == 0
    assert engine.generate("the cat", max_tokens=4, temperature=0).token_ids == expected
"""


@pytest.mark.skipif(sys.platform in ("win32", "darwin"), reason="forks with threads are Linux's")
@pytest.mark.parametrize("backend", ["native", "llamacpp", "onnx", "llamacpp isolated"])
def test_a_fork_after_loading_works_or_is_told(backend: str, tmp_path: Path) -> None:
    name, _, isolated = backend.partition(" ")
    if missing(name):
        pytest.skip(missing(name))
    model = write_gguf(tmp_path / "m.gguf")
    if name == "onnx":
        model = export(model, tmp_path / "m", check=False).path.parent
    done = subprocess.run(
        [sys.executable, "-c", FORK, str(model), name, isolated],
        capture_output=True, text=True, env=environment(), timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
