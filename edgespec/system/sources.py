"""Which of the package's files compiled code depends on, and their hash."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

_COMPILED_IN = (
    "system/entries.py",
    "system/jit.py",
    "system/library.c",
    "system/numba_addresses.py",
    "system/numba_compiler.py",
    "system/numba_entries.py",
    "system/precompile.py",
    "system/precompiled.py",
    "backends/passes.py",
    "memory/kv/arena.py",
    "memory/plan/settings.py",
    "memory/plan/state_layout.py",
    "system/size.py",
    "models/gguf/codebooks.py",
    "models/spec.py",
)
"""Files without kernels whose options or constants are compiled in."""
PACKED = "_kernels.sources"
"""The file beside the library that `packed_hash` reads; `hatch_build.py` puts it there."""


@cache
def source_hash() -> str:
    """A hash of all sources that compiled code depends on."""
    package = Path(__file__).parents[1]
    digest = hashlib.blake2b(digest_size=10)
    for path in sorted((*package.rglob("*.py"), *package.glob("system/library.c"))):
        name, source = path.relative_to(package), path.read_bytes()
        if is_compiled(name, source):
            digest.update(f"{name.as_posix()}\0".encode() + source + b"\0")
    return digest.hexdigest()


def packed_hash() -> str:
    """What a wheel with precompiled kernels says its sources' hash is, "" elsewhere: reading them
    all again takes as long as a short reply.
    """
    try:
        return Path(__file__).with_name(PACKED).read_text("ascii")
    except OSError:
        return ""


def is_compiled(name: Path, source: bytes) -> bool:
    """Whether compiled code may depend on this file of the package: on its kernels, on the options
    they are compiled with, or on a constant that is compiled in.
    """
    return (
        name.as_posix() in _COMPILED_IN
        or b"edgespec.system.jit" in source
        or "kernels" in name.parts
    )
