"""What this machine's processor can do, by LLVM's names for it."""

from __future__ import annotations

import ctypes
import platform
import sys
from functools import cache
from typing import NamedTuple

from edgespec.system import precompiled
from edgespec.system.jit import SOURCE


class _Asked(NamedTuple):
    """How operating systems are asked for a feature of 64-bit ARM processors."""

    linux: tuple[int, int]
    """Which word of the auxiliary vector (AT_HWCAP, AT_HWCAP2), and which bit of it."""
    macos: bytes
    windows: int


_ARM = {
    "dotprod": _Asked((16, 20), b"hw.optional.arm.FEAT_DotProd", 43),
    "i8mm": _Asked((26, 13), b"hw.optional.arm.FEAT_I8MM", 66),
}


def host_features() -> frozenset[str]:
    """Features that the processor has and the system lets programs use: "avx512vnni", ..."""
    return frozenset(name for name, present in known_features().items() if present)


@cache
def known_features() -> dict[str, bool]:
    """All features that are looked for, and whether they are there.

    On x86, both who are asked also look whether the system saves the registers. On ARM, LLVM does
    not tell all.
    """
    features = (
        dict.fromkeys(precompiled.library().features, True) if SOURCE == "library" else _llvm()
    )
    if platform.machine().lower() in ("aarch64", "arm64"):
        features |= {name: _arm_has(asked) for name, asked in _ARM.items()}
    return features


def _llvm() -> dict[str, bool]:
    import llvmlite.binding as llvm

    try:
        return dict(llvm.get_host_cpu_features())
    except RuntimeError:  # none are known for this kind of processor
        return {}


def _arm_has(asked: _Asked) -> bool:
    if sys.platform == "win32":
        return bool(ctypes.windll.kernel32.IsProcessorFeaturePresent(asked.windows))
    library = ctypes.CDLL(None)
    if sys.platform == "darwin":
        value, size = ctypes.c_int(0), ctypes.c_size_t(4)
        found = library.sysctlbyname(
            asked.macos, ctypes.byref(value), ctypes.byref(size), None, ctypes.c_size_t(0)
        )
        return found == 0 and value.value != 0
    if not hasattr(library, "getauxval"):
        return False
    library.getauxval.restype, library.getauxval.argtypes = ctypes.c_ulong, [ctypes.c_ulong]
    word, bit = asked.linux
    return bool(library.getauxval(word) >> bit & 1)
