"""huggingface_hub, brought in when a hub is used and never before."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from edgespec.errors import HubError


def library() -> Any:
    """The package; it reads HF_ENDPOINT, HF_TOKEN, HF_HOME and HF_HUB_CACHE.

    Raises HubError where it is not installed.
    """
    try:
        import huggingface_hub
    except ModuleNotFoundError:
        raise HubError(
            "downloads need huggingface_hub, which is not installed: pip install 'edgespec[hub]'; "
            "or download the .gguf file by hand and give its path"
        ) from None
    return huggingface_hub


def cache_folder() -> Path:
    """Where it and other programs keep what they downloaded, whether or not it is installed.

    Source: huggingface_hub, "Environment variables".
    """
    caches = os.environ.get("XDG_CACHE_HOME", "~/.cache")
    home = os.environ.get("HF_HOME", f"{caches}/huggingface")
    before = os.environ.get("HUGGINGFACE_HUB_CACHE", f"{home}/hub")  # its older name
    folder = os.environ.get("HF_HUB_CACHE", before)
    return Path(os.path.expandvars(folder)).expanduser()


def sentence(error: BaseException) -> str:
    """What a library says over several lines, in one."""
    return " ".join(str(error).split())[:300] or type(error).__name__
