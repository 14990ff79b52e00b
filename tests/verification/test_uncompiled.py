"""Sampling gives the same with the JIT off, where one can step through it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from numba import config

HERE = Path(__file__).parent


@pytest.mark.skipif(bool(config.DISABLE_JIT), reason="is what this test starts")
def test_suite_passes_with_the_jit_off() -> None:
    """The tests of rows, sums and samplers once more, uncompiled, but for wrong samplers."""
    tests = [str(HERE / name) for name in ("test_rows.py", "test_nucleus.py")]
    tests += map(str, sorted(HERE.glob("test_rejection*.py")))
    found = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-k",
            "not noticed",
            *tests,
        ],
        capture_output=True,
        text=True,
        cwd=HERE.parents[1],
        env=os.environ | {"NUMBA_DISABLE_JIT": "1"},
        check=False,
    )
    assert found.returncode == 0, found.stdout[-3000:] + found.stderr[-1000:]
