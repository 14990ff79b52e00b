"""Commands killed while they write: `lab.kills` with fewer kills."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.killed_work import KINDS, write_model
from tests.support.kills import Work, interrupted, killed
from tests.support.targets import missing

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.name != "posix", reason="kill -9 is POSIX's"),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_nothing_acknowledged_is_lost(kind: type[Work], model: Path, tmp_path: Path) -> None:
    if kind.name.startswith("export") and missing("onnx"):
        pytest.skip(missing("onnx"))
    work = kind(tmp_path / "work", model)
    try:
        found = killed(work, 2, seed=1)
    finally:
        work.close()
    assert found.lost == [] and found.kills == 2


@pytest.mark.parametrize("kind", KINDS[:3], ids=lambda kind: kind.name)
def test_whoever_stops_a_command_reads_no_traceback(
    kind: type[Work], model: Path, tmp_path: Path
) -> None:
    assert interrupted(kind(tmp_path / "work", model), 2, seed=1).lost == []
