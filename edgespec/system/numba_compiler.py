"""Functions compiled by Numba in this process: the one place that says `njit`.

Compiled code is cached on disk under a folder named after a hash of all kernel sources, because
Numba's own cache notices edits in a function's own file only. Its files are ours too: Numba's have
no checksum, and an index that two processes can leave in disorder.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numba
from numba import njit, types
from numba.core.caching import FunctionCache
from numba.core.ccallback import CFunc
from numba.core.sigutils import normalize_signature

from edgespec.system.code_file import packed, rebuilt, unpacked
from edgespec.system.disk_cache import kernel_folder, load_checked, store_checked, unwritable
from edgespec.system.entries import Entry

Function = TypeVar("Function", bound=Callable[..., Any])


def _prepare_cache() -> bool:
    """Point Numba at a writable cache folder; without one, say so once and compile in memory."""
    if numba.config.DISABLE_JIT:
        return False
    folder = kernel_folder()
    if why := unwritable(folder):
        print(
            f"edgespec: cannot write compiled kernels to {folder} ({why}); compiling them anew in "
            "every process. Set EDGESPEC_CACHE to a writable folder.",
            file=sys.stderr,
        )
        return False
    numba.config.CACHE_DIR = str(folder)
    return True


CACHING = _prepare_cache()
_KEPT: list[Any] = []
"""Code that is called by address: Numba frees it with its object."""
_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "boundscheck": False}


class _Files:
    """A function's compiled variants on disk, a file each, where Numba's cache looks for them."""

    def __init__(self, function: Callable[..., Any], folder: str, name: str) -> None:
        self._function, self._folder, self._name = function, Path(folder), name

    def load(self, key: Any) -> Any:
        """What was saved under this key; None when nothing was, or it is damaged."""
        data = load_checked(self._path(key))
        if data is None:
            return None
        try:
            return unpacked(data, self._function, tuple(getattr(key[0], "args", key[0])))
        except ValueError:
            return None

    def save(self, key: Any, data: bytes) -> None:
        store_checked(self._path(key), data)

    def _path(self, key: object) -> Path:
        """The key names the argument types, the processor and its features."""
        digest = hashlib.blake2b(repr((numba.__version__, key)).encode(), digest_size=10)
        return self._folder / f"{self._name}.{digest.hexdigest()}.nbc"


class _Form(FunctionCache._impl_class):  # type: ignore[misc]  # Numba has no types
    """Compiled functions as bytes of our own, and back."""

    def reduce(self, result: Any) -> bytes:
        return packed(result)

    def rebuild(self, target_context: Any, parts: Any) -> Any:
        return rebuilt(target_context, parts)


class _Cache(FunctionCache):  # type: ignore[misc]  # as above
    _impl_class = _Form

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        self._cache_file = _Files(function, self._cache_path, self._impl.filename_base)

    def load_overload(self, sig: object, target_context: Any) -> Any:
        """Numba's own would first learn to compile: 0.1 s that finished code has no use for.

        Code that LLVM does not take is compiled anew.
        """
        try:
            return self._load_overload(sig, target_context)
        except ValueError:
            return None


class _Callback(CFunc):
    _pyfunc: Callable[..., Any]

    def enable_caching(self) -> None:
        self._cache = _Cache(self._pyfunc)


def _compile(function: Function, **options: Any) -> Function:
    compiled: Any = njit(**options, **_OPTIONS)(function)
    if CACHING and function.__module__.startswith("edgespec."):  # others are not in the key
        compiled._cache = _Cache(function)
    return compiled  # type: ignore[no-any-return]


def kernel(function: Function) -> Function:
    """Compile for one thread, every float operation in the order it is written."""
    return _compile(function, _nrt=False)


def inner_kernel(function: Function) -> Function:
    """Compile for calls from other kernels only: no reference counts, no wrapper for Python.

    Saves most of the compile time of functions that take many arrays.
    """
    return _compile(function, _nrt=False, no_cpython_wrapper=True, no_cfunc_wrapper=True)


def inlined_kernel(function: Function) -> Function:
    """Compile into its callers: what is constant there, such as a layout, is constant here.

    For functions without loops only: LLVM optimises them before they are inlined and once more
    after, and llvmlite 0.50 makes an endless loop of some that it has unrolled the first time.
    """
    return _compile(
        function, _nrt=False, no_cpython_wrapper=True, no_cfunc_wrapper=True, forceinline=True
    )


def entry_signature(entry: Entry) -> Any:
    """What Numba compiles a function for that is called by address."""
    result = types.intp if entry.gives else types.void
    return result(*[types.intp] * entry.num_arguments)


def callback_address(entry: Entry) -> int:
    """Compile a function to be called by address; the code stays."""
    compiled: Any = _Callback(
        entry.make(),
        normalize_signature(entry_signature(entry)),
        locals={},
        options={"error_model": "numpy", "boundscheck": False, "_nrt": False},
    )
    if CACHING:
        compiled.enable_caching()
    compiled.compile()
    _KEPT.append(compiled)
    address: int = compiled.address
    return address


def exported(function: Callable[..., Any], signature: Any) -> tuple[str, str]:
    """The LLVM text of a function with all that it calls, and what Numba calls it."""
    options = {**_OPTIONS, "_nrt": False, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    dispatcher = njit(**options)(function)
    dispatcher.compile(normalize_signature(signature)[0])
    result = dispatcher.overloads[normalize_signature(signature)[0]]
    text: str = result.library.get_llvm_str()
    return text, result.fndesc.llvm_func_name
