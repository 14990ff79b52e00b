"""llama.cpp's own test data, from its source archive, where that is at hand."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

_BUILT = Path(__file__).parents[2] / "build" / "llama"


def llama_models() -> Path:
    """The folder `models` of llama.cpp's sources: vocabularies, their vectors, chat templates.

    `make parity` unpacks it; LLAMA_CPP_SOURCE names another copy of the sources. Skips without.
    """
    root = Path(os.environ.get("LLAMA_CPP_SOURCE") or _BUILT / "vendor" / "llama.cpp")
    if not (root / "models").is_dir():
        pytest.skip("no sources of llama.cpp; `make parity` or LLAMA_CPP_SOURCE brings them")
    return root / "models"
