"""The cache folder: what EdgeSpec can make again, and the key that keeps stale code out of it."""

from __future__ import annotations

import atexit
import hashlib
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Protocol

from platformdirs import user_cache_path

from edgespec.system import precompiled
from edgespec.system.sources import source_hash
from edgespec.version import __version__

_DIGEST_BYTES = 32
_COMPILERS = ("numba", "llvmlite", "numpy")
"""Packages whose version decides what a source is compiled to."""


class Named(Protocol):
    """A type of weights, by the name that its kernels are cached under."""

    @property
    def name(self) -> str: ...


def chosen_folder() -> Path:
    """`EDGESPEC_CACHE`, or the user's cache folder."""
    override = os.environ.get("EDGESPEC_CACHE")
    return Path(override) if override else user_cache_path("edgespec", appauthor=False)


def cache_folder() -> Path:
    """The chosen folder, or one that ends with this process where that cannot be written."""
    return _writable(chosen_folder())


@cache
def _writable(folder: Path) -> Path:
    """A temporary folder instead, said once: what is compiled in this process itself, and not in
    its children, leaves more memory behind than was planned.
    """
    why = unwritable(folder)
    if not why:
        return folder
    try:
        own = tempfile.mkdtemp(prefix="edgespec-")
    except OSError:
        return folder  # then nothing is kept, which is said where it is compiled
    atexit.register(_remove, own, os.getpid())
    print(
        f"edgespec: cannot write to the cache folder {folder} ({why}); what is compiled and "
        "measured is gone with this process. Set EDGESPEC_CACHE to a writable folder.",
        file=sys.stderr,
    )
    return Path(own)


def unwritable(folder: Path) -> str:
    """Why nothing can be written to a folder, which is made for it; "" where it can."""
    probe = folder / f".probe-{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink(missing_ok=True)  # another thread may have asked the same
    except OSError as error:
        return error.strerror or type(error).__name__
    return ""


def _remove(folder: str, process: int) -> None:
    if os.getpid() == process:  # not in a fork of it
        shutil.rmtree(folder, ignore_errors=True)


@cache
def code_key() -> str:
    """A hash of all that compiled code depends on: the sources, the compilers, the processor.

    And of where the sources are, because Numba keeps the code of every place apart.
    """
    versions = [__version__, sys.implementation.cache_tag, *map(_version, _COMPILERS)]
    place = str(Path(__file__).parents[1])
    parts = repr([source_hash(), place, versions, processor()])
    return hashlib.blake2b(parts.encode(), digest_size=10).hexdigest()


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:  # programs that are one file may leave this out
        return ""


def processor() -> str:
    """The processor and its extensions, as far as the system tells without a compiler's help."""
    told = []
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
        for line in lines:
            name, _, value = line.partition(":")
            if name.strip() in ("model name", "CPU implementer", "CPU part", "flags", "Features"):
                told.append(value.strip())
            if told and not line.strip():
                break  # one of them speaks for all: LLVM, too, looks at one
    return "\0".join([platform.machine(), *(told or [platform.processor()])])


def kernel_folder() -> Path:
    """Where the kernels of this version, compiled for this machine, are."""
    return cache_folder() / _kernels()


def _kernels() -> Path:
    return Path("kernels") / code_key()


def kernels_are_cached(
    backend: str, kinds: Iterable[Named], drafters: Iterable[str] = (), kv_type: str = ""
) -> bool:
    """Whether an earlier process has compiled all that these weight types and drafters need, and
    KV of a type that is not compiled for unasked; or the package has it all.
    """
    if precompiled.chosen().source == "library":
        return True
    drafted = all(drafter_is_cached(name) for name in drafters)
    return drafted and _marker(backend, kinds, kv_type).exists()


def drafter_is_cached(name: str) -> bool:
    """Whether an earlier process has compiled what a drafter needs."""
    return _drafter_marker(name).exists()


def cached_kernels() -> tuple[str, ...]:
    """Backend and weight types of all that is compiled: "native.Q8_0"."""
    markers = (chosen_folder() / _kernels()).glob("ready.*")
    return tuple(sorted(path.name.removeprefix("ready.") for path in markers))


def remember_kernels(
    backend: str, kinds: Iterable[Named], drafters: Iterable[str] = (), kv_type: str = ""
) -> None:
    """Note that all is compiled; a folder that cannot be written has nothing in it to note."""
    with suppress(OSError):
        for marker in (_marker(backend, kinds, kv_type), *map(_drafter_marker, drafters)):
            marker.touch()


def _marker(backend: str, kinds: Iterable[Named], kv_type: str = "") -> Path:
    names = sorted({kind.name for kind in kinds})
    if kv_type:
        names.append(f"kv-{kv_type}")
    forced = os.environ.get("EDGESPEC_ISA", "")
    return kernel_folder() / ".".join(["ready", backend, *names, forced]).rstrip(".")


def _drafter_marker(name: str) -> Path:
    return kernel_folder() / f"drafter.{name}"


def load_checked(path: Path) -> bytes | None:
    """What `store_checked` wrote; None when there is no such file or it is damaged."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    content, digest = data[:-_DIGEST_BYTES], data[-_DIGEST_BYTES:]
    return content if content and hashlib.sha256(content).digest() == digest else None


def store_checked(path: Path, content: bytes) -> None:
    """Write under another name first, so that a reader sees the whole file or none; a folder that
    cannot be written only costs making it again.
    """
    partial = path.with_suffix(f".{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(content + hashlib.sha256(content).digest())
        partial.replace(path)
    except OSError:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
