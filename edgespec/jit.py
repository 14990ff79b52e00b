"""The one place that says `njit`: every compiled function takes its options from here.

Kernels take arrays and scalars, fill buffers they were handed, allocate nothing and raise nothing.
Compiled code is cached on disk under a folder named after a hash of all kernel sources, because
Numba's own cache notices edits in a function's own file only.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import numba
from numba import njit

from edgespec.cache import kernel_folder

Function = TypeVar("Function", bound=Callable[..., Any])


def _prepare_cache() -> bool:
    """Point Numba at a writable cache folder; without one, say so once and compile in memory."""
    if numba.config.DISABLE_JIT:
        return False
    folder = kernel_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".probe-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        print(
            f"edgespec: cannot write compiled kernels to {folder} ({error.strerror}); compiling "
            "them anew in every process. Set EDGESPEC_CACHE to a writable folder.",
            file=sys.stderr,
        )
        return False
    numba.config.CACHE_DIR = str(folder)
    return True


CACHING = _prepare_cache()
_OPTIONS: dict[str, Any] = {
    "cache": CACHING,
    "nogil": True,
    "error_model": "numpy",
    "boundscheck": False,
}


def kernel(function: Function) -> Function:
    """Compile for one thread, every float operation in the order it is written."""
    compiled: Function = njit(**_OPTIONS)(function)
    return compiled


def inner_kernel(function: Function) -> Function:
    """Compile for calls from other kernels only: no reference counts, no wrapper for Python.

    Saves most of the compile time of functions that take many arrays.
    """
    compiled: Function = njit(
        _nrt=False, no_cpython_wrapper=True, no_cfunc_wrapper=True, **_OPTIONS
    )(function)
    return compiled


def inlined_kernel(function: Function) -> Function:
    """Compile into its callers: what is constant there, such as a layout, is constant here.

    For functions without loops only: LLVM optimises them before they are inlined and once more
    after, and llvmlite 0.50 makes an endless loop of some that it has unrolled the first time.
    """
    compiled: Function = njit(
        _nrt=False, no_cpython_wrapper=True, no_cfunc_wrapper=True, forceinline=True, **_OPTIONS
    )(function)
    return compiled
