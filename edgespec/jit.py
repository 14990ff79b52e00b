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


def _share_processors() -> None:
    """Let GNU OpenMP's threads, which run the kernels, wait some 0.5 milliseconds, then sleep.

    By default they spin for some 15 ms at the end of each parallel region: where other programs
    compete, each waits a time slice for the other. Measured: 2 tokens/s instead of 400. A tenth of
    this makes a small model's passes, a chain of short regions, 1.6 times as long on a quiet
    machine. Read when the library is loaded, at the first parallel region.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")


CACHING = _prepare_cache()
_share_processors()
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


def parallel_kernel(function: Function) -> Function:
    """Compile with `prange` regions; each thread writes elements of its own, so the result has one
    order.
    """
    compiled: Function = njit(parallel=True, _nrt=False, **_OPTIONS)(function)
    return compiled
