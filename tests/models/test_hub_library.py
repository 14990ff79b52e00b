"""Where downloads lie, and what is said where the hub's package is missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from edgespec.errors import HubError
from edgespec.models.hub import library
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
