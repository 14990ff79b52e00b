"""Mapped files that are cut while something reads them: an error, and the process lives on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.command_line import environment
from tests.support.gguf_models import write_gguf
from tests.support.targets import missing

linux = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="nothing is guarded elsewhere"
)

CUT = """
import mmap, os, sys, threading
import numpy as np
from edgespec.system.lost_pages import guard, num_lost_pages
path = sys.argv[1]
with open(path, "r+b") as file:
    pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    values = np.frombuffer(pages, np.uint8)
    if len(sys.argv) > 2:
        guard()
    os.truncate(path, 4096)
    assert values[:4096].sum() == 4096
    other = threading.Thread(target=lambda: values[-8192:].sum())
    other.start()
    other.join()
    assert values[4096:].sum() == 0 and num_lost_pages() == 15
    print("alive")
"""


def _run(program: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        capture_output=True, text=True, env=environment(), check=False,
    )  # fmt: skip


@linux
def test_pages_that_are_gone_read_as_zeros(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"\1" * 65536)
    assert _run(CUT, path).returncode < 0  # without the guard
    path.write_bytes(b"\1" * 65536)
    done = _run(CUT, path, "guarded")
    assert done.stdout == "alive\n", done.stderr


LLAMA = """
import os, sys
import edgespec
path = sys.argv[1]
with edgespec.load(path, backend="llamacpp", drafters="early-exit", threads=1,
                   context=128) as engine:
    assert engine.plan.mapped
    engine.generate("hello", max_tokens=2, speculation=False)
    os.truncate(path.replace("00001-of", "00002-of"), 4096)
    try:
        engine.generate("another", max_tokens=2, speculation=False)
    except edgespec.EdgeSpecError as error:
        print(error)
"""


@linux
@pytest.mark.skipif(bool(missing("llamacpp")), reason=missing("llamacpp"))
def test_a_mapped_model_that_is_cut_ends_the_reply_alone(tmp_path: Path) -> None:
    whole = write_gguf(tmp_path / "m.gguf", dim=256, layers=4, ffn=512, type="F16")
    out = tmp_path / "two.gguf"
    made = _run(
        "import sys; from edgespec.__main__ import main; main()",
        "prepare", whole, out, "--exit-layer", 2,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    first = next(iter(sorted(tmp_path.glob("*00001-of*"))))
    done = _run(LLAMA, first)
    assert "was cut while" in done.stdout, (done.returncode, done.stderr[-2000:])
