"""A folder whose files are drafted from: the nearest last, each again only when it has changed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import edgespec
from edgespec.engine.repository import MOST_BYTES, Repository
from edgespec.errors import OptionError


def write(path: Path, text: str | bytes, changed: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    os.utime(path, ns=(changed, changed))


def test_the_nearest_files_come_last_and_unchanged_ones_once(tmp_path: Path) -> None:
    for number, name in enumerate(("a/b/one.py", "a/two.py", "c/three.py", "a/b/four.py")):
        write(tmp_path / name, name, number)
    write(tmp_path / "a/b/edited.py", "edited", 9)
    write(tmp_path / ".hidden/five.py", "hidden", 9)
    write(tmp_path / "noise", b"\xff\xfe", 9)
    write(tmp_path / "zeros", b"a\0b", 9)
    repository = Repository(tmp_path)
    read = list(repository.news("a/b/edited.py"))
    assert read == ["c/three.py", "a/two.py", "a/b/one.py", "a/b/four.py"]
    assert list(repository.news("a/b/edited.py")) == []
    write(tmp_path / "a/two.py", "two, changed", 10)
    assert list(repository.news("a/b/edited.py")) == ["two, changed"]
    assert list(repository.news()) == ["edited"]


def test_of_a_large_folder_the_nearest_are_read(tmp_path: Path) -> None:
    write(tmp_path / "near/large", "x" * (MOST_BYTES + 1), 1)
    write(tmp_path / "near/small", "small", 1)
    write(tmp_path / "far/half", "h" * (MOST_BYTES // 2 + 9), 2)
    write(tmp_path / "far/other", "o" * (MOST_BYTES // 2 + 9), 1)
    read = [text[:5] for text in Repository(tmp_path).news("near/edited")]
    assert read == ["hhhhh", "small"]


def test_links_lead_nowhere(tmp_path: Path) -> None:
    write(tmp_path / "outside/secret", "secret", 1)
    write(tmp_path / "inside/file", "file", 1)
    try:
        (tmp_path / "inside/link").symlink_to(tmp_path / "outside/secret")
        (tmp_path / "inside/folder").symlink_to(tmp_path / "outside")
    except OSError:
        pytest.skip("links cannot be made here")
    assert list(Repository(tmp_path / "inside").news()) == ["file"]


def test_an_engine_drafts_from_a_folder(bundled_model: Path, tmp_path: Path) -> None:
    prompt = "Tell me a story about a dog."
    with edgespec.load(bundled_model, threads=1, max_nodes=8) as engine:
        plain = engine.generate(prompt, max_tokens=80, temperature=0.0, speculation=False)
        write(tmp_path / "story.txt", plain.text, 1)
        assert engine.remember_folder(tmp_path) == 1
        assert engine.remember_folder(tmp_path) == 0
        reply = engine.generate(prompt, max_tokens=80, temperature=0.0)
        assert reply.token_ids == plain.token_ids
        assert reply.stats.accepted >= 0.2 * len(plain.token_ids)
        with pytest.raises(OptionError, match="no such folder"):
            engine.remember_folder(tmp_path / "none")
