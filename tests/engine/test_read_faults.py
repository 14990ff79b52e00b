"""Files that cannot be opened or read, one place of the package after the other: an error or a
reply, and the next request works.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import edgespec
from edgespec.drafting.text.store_builder import build_store
from edgespec.engine.engine import Engine
from edgespec.errors import EdgeSpecError
from edgespec.models.open_model import open_model
from tests.support.gguf_models import CHATML, write_gguf

PACKAGE = str(Path(edgespec.__file__).parent)
SHORT: dict[str, Any] = {"max_tokens": 6, "seed": 1, "ignore_eos": True}
READERS = ((builtins, "open"), (io, "open"), (os, "open"), (os, "preadv"))
Site = tuple[str, int]
"""File and line."""


@contextmanager
def reads(refused: Site | None, monkeypatch: pytest.MonkeyPatch) -> Iterator[set[Site]]:
    """The disk fails at one line of the package, once; yields the lines that asked it."""
    seen: set[Site] = set()

    def watched(real: Callable[..., Any]) -> Callable[..., Any]:
        def read(*arguments: Any, **options: Any) -> Any:
            frame = sys._getframe(1)
            while frame.f_back is not None and "pathlib" in frame.f_code.co_filename:
                frame = frame.f_back
            site = (frame.f_code.co_filename, frame.f_lineno)
            if site[0].startswith(PACKAGE) and site not in seen:
                seen.add(site)
                if site == refused:
                    raise OSError(errno.EIO, os.strerror(errno.EIO))
            return real(*arguments, **options)

        return read

    with monkeypatch.context() as patch:
        for place, name in READERS:
            if hasattr(place, name):
                patch.setattr(place, name, watched(getattr(place, name)))
        yield seen


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EDGESPEC_DATA", str(tmp_path / "data"))
    monkeypatch.delenv("EDGESPEC_HISTORY", raising=False)
    return write_gguf(tmp_path / "tiny.gguf", template=CHATML, type="Q8_0")


def opened(model: Path) -> Engine:
    store = str(model.parent / "words.store")
    names = ("hierarchy", "suffix-automaton")
    return edgespec.load(model, threads=1, context=512, drafters=names, store=store, learn=True)


def work(model: Path) -> tuple[list[int], ...]:
    with opened(model) as engine:
        chats = [engine.chat(f"{text} " * 20) for text in ("hello", "why", "go on")]
        turns = [chat.send("and?", **SHORT).token_ids for chat in (*chats, chats[0])]
        return (*turns, engine.generate("hello", prefix="kept", **SHORT).token_ids)


def test_each_place_that_reads(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (model.parent / "texts").mkdir()
    (model.parent / "texts" / "one.txt").write_text("the cat and the hat " * 200)
    with open_model(model) as file:
        build_store(model.parent / "texts", file.tokenizer, model.parent / "words.store", 1 << 17)
    with opened(model) as engine:
        engine.save_prefix("kept", "be kind " * 40)
    expected = work(model)
    with reads(None, monkeypatch) as seen:
        assert work(model) == expected
    names = {Path(file).name for file, _ in seen}
    assert {"file_source.py", "saved_prefixes.py", "store.py", "kept_past.py"} <= names, names
    told = 0
    for site in sorted(seen):
        with reads(site, monkeypatch):
            try:
                assert work(model) == expected, site
            except EdgeSpecError as error:
                assert len(str(error)) < 1000
                told += 1
    assert told >= 3
    assert work(model) == expected
