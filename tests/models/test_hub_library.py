"""Where downloads lie, and what is said where the hub's package is missing."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from edgespec.errors import HubError
from edgespec.models.hub import library
from edgespec.models.hub.download import download
from edgespec.models.hub.kept import kept_models
from edgespec.models.hub.listing import HubFile, HubModel
from tests.support.command_line import environment


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"XDG_CACHE_HOME": "/x/cache"},
        {"HF_HOME": "~/models"},
        {"HF_HOME": "/x/home", "HUGGINGFACE_HUB_CACHE": "/x/older"},
        {"HF_HOME": "/x/home", "HUGGINGFACE_HUB_CACHE": "/x/older", "HF_HUB_CACHE": "$HOME/hub"},
    ],
    ids=lambda variables: "+".join(variables) or "none",
)
def test_the_cache_is_the_hubs_own(
    variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("XDG_CACHE_HOME", "HF_HOME", "HUGGINGFACE_HUB_CACHE", "HF_HUB_CACHE")
    for name in names:
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    code = "from huggingface_hub import constants; print(constants.HF_HUB_CACHE)"
    own = {name: value for name, value in environment().items() if name not in names}
    told = subprocess.run(
        [sys.executable, "-c", code],
        env=own | variables,
        capture_output=True,
        text=True,
        check=True,
    )
    assert library.cache_folder() == Path(told.stdout.strip())


def test_without_the_package_a_sentence_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(HubError, match=r"pip install 'edgespec\[hub\]'"):
        library.library()


def test_what_a_link_leads_to_outside_the_cache_is_not_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    mine, link = tmp_path / "mine.gguf", tmp_path / "hub/models--org--repo/snapshots/c/m.gguf"
    mine.write_bytes(b"mine")
    link.parent.mkdir(parents=True)
    try:
        link.symlink_to(mine)
    except OSError as error:
        pytest.skip(f"this user may not make links: {error}")
    (kept,) = kept_models()
    assert kept.remove() == 0
    assert mine.read_bytes() == b"mine" and not os.path.lexists(link)


@pytest.mark.parametrize("name", ["a.gguf/b.gguf", f"{'long' * 80}.gguf"], ids=["below", "long"])
def test_a_name_that_cannot_be_written_is_a_sentence(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    digest, commit = hashlib.sha256(b"x").hexdigest(), "0" * 40
    blob = tmp_path / "hub/models--org--repo/blobs" / digest
    blob.parent.mkdir(parents=True)
    blob.write_bytes(b"x")
    download(HubModel((HubFile("org/repo", commit, "a.gguf", 1, digest),)))
    with pytest.raises(HubError, match="cannot write .*HF_HOME"):
        download(HubModel((HubFile("org/repo", commit, name, 1, digest),)))
