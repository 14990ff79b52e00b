"""huggingface_hub, brought in when a hub is used and never before."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def library() -> Any:
    """The package; it reads HF_ENDPOINT, HF_TOKEN, HF_HOME and HF_HUB_CACHE."""
    import huggingface_hub

    return huggingface_hub


def cache_folder() -> Path:
    """Where it and other programs keep what they downloaded."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def sentence(error: BaseException) -> str:
    """What a library says over several lines, in one."""
    return " ".join(str(error).split())[:300] or type(error).__name__
