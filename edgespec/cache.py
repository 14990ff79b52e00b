"""The cache folder: what EdgeSpec can make again, and the key that keeps stale code out of it."""

from __future__ import annotations

import hashlib
import os
from functools import cache
from importlib.metadata import version
from pathlib import Path

from platformdirs import user_cache_path


def cache_folder() -> Path:
    """`EDGESPEC_CACHE`, or the user's cache folder."""
    override = os.environ.get("EDGESPEC_CACHE")
    return Path(override) if override else user_cache_path("edgespec", appauthor=False)


@cache
def source_hash() -> str:
    """A hash of all sources that compiled code depends on, and of Numba's version."""
    digest = hashlib.blake2b(digest_size=10)
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        source = path.read_bytes()
        if b"edgespec.jit" in source or path.name == "jit.py" or "kernels" in path.parts:
            digest.update(path.name.encode() + b"\0" + source)
    digest.update(version("numba").encode())
    return digest.hexdigest()


def kernel_folder() -> Path:
    """Where this version's compiled kernels are."""
    return cache_folder() / "kernels" / source_hash()


def kernels_are_cached() -> bool:
    """Whether an earlier process has compiled the model's main loop."""
    return any(kernel_folder().glob("**/forward.run-*.nbi"))
