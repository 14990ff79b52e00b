"""Facts that are kept for a file as it is, under circumstances that are told."""

from __future__ import annotations

import os
from pathlib import Path

from edgespec.system.disk_cache import fact_path, file_identity, keep_json, kept_json


def test_a_changed_file_is_another_one(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"one")
    before = file_identity(file)
    assert file_identity(tmp_path / "." / "model.gguf") == before
    os.utime(file, ns=(0, 0))
    touched = file_identity(file)
    file.write_bytes(b"other")
    assert len({tuple(each) for each in (before, touched, file_identity(file))}) == 3


def test_a_fact_is_found_again_only_where_it_holds(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"one")
    here = fact_path("tests", *file_identity(file), "native", 2)
    keep_json(here, {"known": True})
    assert kept_json(fact_path("tests", *file_identity(file), "native", 2)) == {"known": True}
    assert kept_json(fact_path("tests", *file_identity(file), "native", 1)) is None
    assert kept_json(fact_path("others", *file_identity(file), "native", 2)) is None
