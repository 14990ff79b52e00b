"""The promise where the kernel holds us to it: a control group whose limit is the budget."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from tests.support import budget_runs
from tests.support.control_group import ControlGroup
from tests.support.gguf_models import write_gguf

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="control groups are Linux's"),
]

MIB = 1024**2


@pytest.fixture(scope="module", autouse=True)
def permitted() -> None:
    try:
        with ControlGroup(512 * MIB):
            pass
    except OSError as error:
        pytest.skip(f"this process may not make control groups: {error}")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    path = tmp_path_factory.mktemp("models") / "middle.gguf"
    write_gguf(path, type="Q8_0", dim=512, layers=6, heads=8, ffn=1408, vocab=8000, context=1024)
    yield str(path)
    path.unlink()


def test_nothing_is_killed_and_nothing_swapped(model: str) -> None:
    for row in budget_runs.measure(model, "native", [1.0, 1.5], 512, cold=False, cgroup=True):
        assert "error" not in row, row["error"]
        assert row["peak_bytes"] <= row["budget_bytes"]
        assert (row["kills"], row["swapped_bytes"]) == (0, 0)
        assert 0 < row["most_charged_bytes"] <= row["budget_bytes"]
        assert row["dropped_tokens"] > 0


def test_a_first_start_compiles_inside_the_limit(model: str) -> None:
    (row,) = budget_runs.measure(model, "native", [1.0], 512, cold=True, cgroup=True)
    assert "error" not in row, row["error"]
    assert row["peak_bytes"] <= row["budget_bytes"]
    assert row["kills"] == 0
