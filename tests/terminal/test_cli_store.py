"""`edgespec store` as it is typed."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.command_line import edgespec


def test_build_and_info(tmp_path: Path, bundled_model: Path) -> None:
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("a red ball and a red box\n" * 20)
    out = tmp_path / "s.store"
    built = edgespec(
        "store", "build", tmp_path / "texts", "--vocab", bundled_model, "--out", out,
        "--max-bytes", "1MiB", "--json",
    )  # fmt: skip
    assert built.code == 0, built.err
    facts = json.loads(built.out)
    assert facts["files"] == 1 and facts["tokens"] > 20 and facts["bytes"] <= 2**20
    told = json.loads(edgespec("store", "info", out, "--json").out)
    assert told["bytes"] == facts["bytes"] == out.stat().st_size
    assert told["tokens"] == facts["tokens"] and told["files"] == 1
    assert "checked" in edgespec("store", "info", out).out


def test_what_goes_wrong_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "not.store").write_text("no store")
    path = tmp_path / "not.store"
    edgespec("store", "info", path).assert_refused(1, "is not a datastore", "store build")
    edgespec("run", "hi", "--store", path).assert_refused(2, "--drafters hierarchy")
    asked = ("run", "hi", "--drafters", "hierarchy", "--store", path)
    edgespec(*asked).assert_refused(1, "is not a datastore")
    edgespec("store", "build", tmp_path / "none", "--out", path).assert_refused(1, "no such folder")
