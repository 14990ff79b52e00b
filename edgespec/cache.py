"""The cache folder: what EdgeSpec can make again, and the key that keeps stale code out of it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path

from platformdirs import user_cache_path

from edgespec.models.spec import TensorType


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
        named = path.name in ("jit.py", "base.py")  # options, and a constant that is compiled in
        if b"edgespec.jit" in source or named or "kernels" in path.parts:
            digest.update(path.name.encode() + b"\0" + source)
    digest.update(version("numba").encode())
    return digest.hexdigest()


def kernel_folder() -> Path:
    """Where this version's compiled kernels are."""
    return cache_folder() / "kernels" / source_hash()


def kernels_are_cached(backend: str, kinds: Iterable[TensorType]) -> bool:
    """Whether an earlier process has compiled all that these weight types need."""
    return _marker(backend, kinds).exists()


def cached_kernels() -> tuple[str, ...]:
    """Backend and weight types of all that is compiled for some processor: "native.Q8_0"."""
    markers = kernel_folder().glob("ready.*")
    names = {path.name.removeprefix("ready.").rpartition(".")[0] for path in markers}
    return tuple(sorted(names))


def remember_kernels(backend: str, kinds: Iterable[TensorType]) -> None:
    """Note that all is compiled; a folder that cannot be written has nothing in it to note."""
    with suppress(OSError):
        _marker(backend, kinds).touch()


def _marker(backend: str, kinds: Iterable[TensorType]) -> Path:
    """Of another processor, or an instruction set that was forced, nothing is compiled yet."""
    from edgespec.memory.hardware import hardware

    cpu = hardware()
    key = repr((cpu.cpu_name, cpu.isa, os.environ.get("EDGESPEC_ISA")))
    digest = hashlib.blake2b(key.encode(), digest_size=4).hexdigest()
    return kernel_folder() / ".".join(
        ["ready", backend, *sorted({kind.name for kind in kinds}), digest]
    )
