"""The cache folder: what EdgeSpec can make again, and the key that keeps stale code out of it."""

from __future__ import annotations

import atexit
import errno
import hashlib
import json
import os
import platform
import struct
import sys
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from platformdirs import user_cache_path

from edgespec.system import precompiled
from edgespec.system.ownership import is_own, why_shared
from edgespec.system.sources import source_hash
from edgespec.system.user_data import make_private, write_private
from edgespec.version import __version__

PROMPTS, SPILL = "prompts", "spill"
"""Folders of the cache that hold what people wrote."""
_DIGEST_BYTES = 32
_ELF, _RELOCATABLE = struct.Struct("<16sH22xQ10xHHxx"), 1
"""Of its head: the kind, where sections are told of, in how many bytes each, how many."""
_MOST_JSON_BYTES = 1 << 16
_READ = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
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
    """The chosen folder, or one that ends with this process where that cannot be written, or where
    others could put code of theirs.
    """
    return _usable(chosen_folder())


@cache
def _usable(folder: Path) -> Path:
    """A temporary folder instead, said once: what is compiled in this process itself, and not in
    its children, leaves more memory behind than was planned.
    """
    why = unusable(folder)
    if not why:
        return folder
    import tempfile

    try:
        own = tempfile.mkdtemp(prefix="edgespec-")
    except OSError:
        return folder  # then nothing is kept, which is said where it is compiled
    atexit.register(_remove, own, os.getpid())
    print(
        f"edgespec: the cache folder {folder} cannot be used ({why}); what is compiled and "
        "measured is gone with this process. Set EDGESPEC_CACHE to a folder of your own.",
        file=sys.stderr,
    )
    return Path(own)


def unusable(folder: Path) -> str:
    """Why a folder is no place for code, "" where it is: it cannot be written, or others can."""
    return unwritable(folder) or why_shared(folder)


def unwritable(folder: Path) -> str:
    """Why nothing can be written to a folder, which is made for it; "" where it can."""
    probe = folder / f".probe-{os.getpid()}"
    try:
        make_private(folder)
        probe.touch()
        probe.unlink(missing_ok=True)  # another thread may have asked the same
    except OSError as error:
        return error.strerror or type(error).__name__
    return ""


def _remove(folder: str, process: int) -> None:
    if os.getpid() == process:  # not in a fork of it
        import shutil

        shutil.rmtree(folder, ignore_errors=True)


@cache
def code_key() -> str:
    """A hash of all that compiled code depends on: the sources, the compilers, the processor.

    And of where the sources are, because Numba keeps the code of every place apart.
    """
    built = precompiled.library_hash()
    versions = [__version__, sys.implementation.cache_tag]
    if not built:
        versions += map(_version, _COMPILERS)
    place = str(Path(__file__).parents[1])
    parts = repr([built or source_hash(), place, versions, processor()])
    return hashlib.blake2b(parts.encode(), digest_size=10).hexdigest()


def _version(package: str) -> str:
    from importlib import metadata

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


def cached_facts() -> list[Path]:
    """What a process behind the wall may read of the cache: code and measurements, no texts."""
    return [path for path in cache_folder().glob("*") if path.name not in (PROMPTS, SPILL)]


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


def open_own(path: Path) -> BinaryIO:
    """Open a file that is the user's and that nobody else may write; raises OSError."""
    file = open(os.open(path, _READ), "rb")  # noqa: SIM115 - the caller closes it
    if not is_own(os.fstat(file.fileno())):
        file.close()
        raise PermissionError(errno.EPERM, "others could have written it", str(path))
    return file


def load_checked(path: Path) -> bytes | None:
    """What `store_checked` wrote under this name; None when there is no such file, it is damaged,
    or somebody else could have written it.
    """
    try:
        with open_own(path) as file:
            data = file.read()
    except OSError:
        return None
    content, digest = data[:-_DIGEST_BYTES], data[-_DIGEST_BYTES:]
    return content if content and _digest(path, content) == digest else None


def store_checked(path: Path, content: bytes) -> None:
    """Keep bytes in a file that a reader sees whole or not at all; a folder that cannot be written
    only costs making them again.
    """
    with suppress(OSError):
        make_private(path.parent)
        write_private(path, [content, _digest(path, content)], lasting=False)


def is_object_code(data: bytes) -> bool:
    """Whether bytes begin as an object file does: ELF with all its sections, Mach-O, COFF of
    x86-64, ARM64 or x86. LLVM does not ask.
    """
    if data.startswith(b"\x7fELF") and len(data) >= _ELF.size:
        _, kind, sections, size, count = _ELF.unpack_from(data)
        return bool(kind == _RELOCATABLE and count and sections + size * count <= len(data))
    return data.startswith((b"\xcf\xfa\xed\xfe", b"\x64\x86", b"\x64\xaa", b"L\x01"))


def file_identity(path: Path) -> list[Any]:
    """Which file it is, as it is now: another one, or the same one changed, has another."""
    status = path.stat()
    return [str(path.resolve()), status.st_size, status.st_mtime_ns]


def fact_path(kind: str, *parts: object) -> Path:
    """Where a fact of a kind, for `keep_json`, that holds for these circumstances only is kept."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=12).hexdigest()
    return cache_folder() / kind / f"{digest}.json"


def kept_json(path: Path) -> Any:
    """What `keep_json` wrote; None when there is no such file, or it is damaged or far too long."""
    try:
        with open(os.open(path, _READ), "rb") as file:
            text = file.read(_MOST_JSON_BYTES + 1)
        return json.loads(text) if len(text) <= _MOST_JSON_BYTES else None
    except (OSError, ValueError, RecursionError):
        return None


def keep_json(path: Path, value: object) -> None:
    """Keep plain values in a file; a folder that cannot be written keeps none."""
    with suppress(OSError):
        make_private(path.parent)
        write_private(path, [json.dumps(value).encode()], lasting=False)


def _digest(path: Path, content: bytes) -> bytes:
    """Of a file's name, too: what was written under another is not looked for here."""
    name = hashlib.sha256(path.name.encode()).digest()
    return hashlib.sha256(name + content).digest()
