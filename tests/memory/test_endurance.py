"""Many requests in one process leave nothing behind: `lab.budget endurance` with fewer of them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.command_line import environment

pytestmark = pytest.mark.slow


def test_requests_leave_nothing_behind(bundled_model: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.endurance", str(bundled_model), "200"],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=600,
        check=False,
    )
    assert done.stdout, done.stderr
    found = json.loads(done.stdout)
    assert found["growth"] <= 0.02, found
    assert found["spilled_tokens"] > 0 and len(found["kinds"]) == 8, found
