"""The library of functions that were compiled when the package was built (`precompile.py`), and
whether this process takes its code from there.

The library is an extension module for every Python from 3.11 on, with all instruction sets of one
kind of processor inside. It knows the hash of the sources it was made from, so that it is never
used with others. `EDGESPEC_KERNELS` forces a source: "library" or "jit".
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any, Literal

from edgespec.errors import BackendError, OptionError
from edgespec.system.entries import CODES, Signature
from edgespec.system.records import dataclass
from edgespec.system.sources import packed_hash, source_hash

Source = Literal["library", "numba", "python"]
MODULE = "edgespec.system._kernels"
BASELINE = {"x86_64": frozenset({"fma", "f16c"})}
"""Features of a processor that all code of the library takes for granted; ARM's has none."""


class Library:
    """The functions of the extension module, by name."""

    def __init__(self, module: ModuleType) -> None:
        import numpy as np

        self._module = module
        module.prepare(np.ndarray, {ord(CODES[name]): np.dtype(name) for name in CODES})

    @property
    def features(self) -> tuple[str, ...]:
        """What an x86 processor can do and the system lets programs use, by LLVM's names."""
        return tuple(self._module.features())

    def find(self, name: str) -> int:
        """The address of a function, 0 when there is none of this name."""
        return int(self._module.find(name))

    def address(self, name: str) -> int:
        """The same, or BackendError."""
        found = self.find(name)
        if not found:
            raise BackendError(
                f"the precompiled kernels lack {name!r}; install edgespec[jit] and set "
                "EDGESPEC_KERNELS=jit"
            )
        return found

    def kernel(self, name: str, signature: Signature) -> Callable[..., Any]:
        """The kernel of this name, to be called from Python; the GIL is released meanwhile."""
        made: Callable[..., Any] = self._module.kernel(name, self.address(name), signature.letters)
        return made


@dataclass(frozen=True, slots=True)
class Choice:
    """Where this process's machine code comes from, and why."""

    source: Source
    why: str


@cache
def chosen() -> Choice:
    """What is asked for, or the library where it can be used.

    Raises OptionError for a source that means nothing, BackendError for one that is not there.
    """
    if os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0"):
        return Choice("python", "NUMBA_DISABLE_JIT is set")
    asked = os.environ.get("EDGESPEC_KERNELS") or "auto"
    if asked not in ("auto", "library", "jit"):
        raise OptionError(
            f"EDGESPEC_KERNELS asks for {asked!r}; set it to library or jit, or unset it"
        )
    if asked == "jit":
        return _compiled("EDGESPEC_KERNELS asks for the compiler")
    why_not = refusal()
    if not why_not:
        return Choice("library", "as EDGESPEC_KERNELS asks" if asked == "library" else "it is here")
    if asked == "library":
        raise BackendError(f"EDGESPEC_KERNELS asks for precompiled kernels, but {why_not}")
    return _compiled(why_not)


def _compiled(why: str) -> Choice:
    if find_spec("numba") is None:
        raise BackendError(
            f"precompiled kernels are not used: {why}; and Numba, which would compile them, is not "
            "installed: pip install 'edgespec[jit]'"
        )
    return Choice("numba", why)


def library_hash() -> str:
    """The hash of the sources that the library in use was made from, "" where none is used."""
    try:
        used = chosen().source == "library"
    except BackendError:
        return ""
    return str(import_module(MODULE).source_hash()) if used else ""


@cache
def refusal() -> str:
    """Why the library cannot be used, "" when it can."""
    if find_spec(MODULE) is None:
        return "this installation has none"
    try:
        module = import_module(MODULE)
    except ImportError as error:
        return f"they cannot be loaded: {error}"
    if module.source_hash() != (packed_hash() or source_hash()):
        return "they were made from other sources"
    lacking = BASELINE.get(module.machine(), frozenset()) - set(module.features())
    if lacking:
        return f"this processor lacks {', '.join(sorted(lacking))}"
    return ""


@cache
def library() -> Library:
    """The library; only where `refusal` says nothing."""
    return Library(import_module(MODULE))
