from __future__ import annotations

import json
from pathlib import Path

import pytest

import edgespec
from edgespec.system.disk_cache import cache_folder
from tests.support.gguf_models import write_gguf


@pytest.mark.parametrize("factor", [100.0, 0.01], ids=["busy", "another machine"])
def test_a_curve_that_is_no_longer_true_is_measured_again(tmp_path: Path, factor: float) -> None:
    model = write_gguf(tmp_path / "model.gguf", context=128)
    with edgespec.load(model, threads=1) as engine:
        measured = engine.cost_curve()
    folder = cache_folder() / "curves"
    (newest,) = sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime)[-1:]
    newest.write_text(json.dumps({size: factor * s for size, s in measured.items()}))
    with edgespec.load(model, threads=1) as engine:
        again = engine.cost_curve()
    assert 0.05 < again[1] / measured[1] < 20.0
