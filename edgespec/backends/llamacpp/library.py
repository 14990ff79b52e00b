"""llama-cpp-python, imported when it is first needed, with its log lines kept in memory."""

from __future__ import annotations

import ctypes
import os
import re
import threading
from collections import deque
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from edgespec.backends.llamacpp.ggml import library_file
from edgespec.errors import BackendError
from edgespec.system.resident_memory import give_back_blocks
from edgespec.system.size import MIB

PACKAGE = "llama-cpp-python"
OLDEST = (0, 3, 36)
INSTALL = "pip install 'edgespec[llamacpp]'"
_INFO, _WARNING, _ERROR = 2, 3, 4
_KEPT_LINES = 200
_SPINS = "1000"
"""How often its threads (GNU OpenMP) look whether the others are done before they sleep: tens of
microseconds. Left alone they look 300,000 times, and where another program has a processor, passes
take fifty times as long.
"""
_ONCE = threading.Lock()


def missing() -> str:
    """Why llama.cpp cannot be used here and what to type, "" when it is installed."""
    folder = package_folder()
    if folder is None:
        return f"{PACKAGE} is not installed: {INSTALL}"
    found = version()
    numbers = tuple(int(part) for part in re.findall(r"\d+", found)[:3])
    if numbers < OLDEST:
        wanted = ".".join(map(str, OLDEST))
        return f"{PACKAGE} {found} is too old, {wanted} is the oldest that works: {INSTALL}"
    return ""


def package_folder() -> Path | None:
    """Where the package lies; looked up without importing it."""
    found = find_spec("llama_cpp")
    return None if found is None or found.origin is None else Path(found.origin).parent


def version() -> str:
    """The version that is installed, "0" when none is."""
    from importlib import metadata

    try:
        return metadata.version(PACKAGE)
    except metadata.PackageNotFoundError:
        return "0"


RPC_INSTALL = (
    f'CMAKE_ARGS="-DGGML_RPC=ON" pip install --force-reinstall --no-cache-dir '
    f"--no-binary {PACKAGE} {PACKAGE}"
)


def shared_folder() -> Path:
    """Where the package keeps its shared libraries; it must be installed."""
    folder = package_folder()
    assert folder is not None
    return folder / "lib"


def missing_rpc() -> str:
    """Why workers cannot be used with the build that is installed, "" when they can."""
    if library_file(shared_folder(), "ggml-rpc") is not None:
        return ""
    return f"this {PACKAGE} was built without RPC; build it with: {RPC_INSTALL}"


class _Lines(threading.local):
    """Level and text of what was said last, for each thread that called."""

    def __init__(self) -> None:
        self.kept: deque[tuple[int, str]] = deque(maxlen=_KEPT_LINES)


class Library:
    """The module of C functions, and what it said last."""

    def __init__(self, api: Any) -> None:
        """Have all log lines come here instead of to the terminal."""
        self.api = api
        self._said = _Lines()
        self._callback = api.llama_log_callback(self._keep)  # held as long as it may be called
        api.llama_log_set(self._callback, ctypes.c_void_p(0))
        api.llama_backend_init()

    def _keep(self, level: int, text: bytes, _: Any) -> None:
        if level in (_INFO, _WARNING, _ERROR):
            self._said.kept.append((level, text.decode("utf-8", "replace").strip()))

    def forget(self) -> None:
        """Drop the lines of before, so that the next ones belong to the next call."""
        self._said.kept.clear()

    def lines(self) -> list[str]:
        """What was said since `forget`."""
        return [text for _, text in self._said.kept]

    def complaint(self) -> str:
        """The first error since `forget`, which names the cause; those after it repeat it."""
        errors = [text for level, text in self._said.kept if level == _ERROR and text]
        return " ".join(errors[0].split()) if errors else "it does not say why"


def library() -> Library:
    """Import the library, once; raises BackendError when that fails."""
    with _ONCE:  # a second log callback would free the first
        return _import()


def sleep_soon() -> None:
    """Have threads of OpenMP that wait leave the processor to others, unless the user said how they
    are to wait; to be called before the library is loaded.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", _SPINS)


@cache
def _import() -> Library:
    why = missing()
    if why:
        raise BackendError(f"the llamacpp backend was asked for and {why}")
    os.environ.setdefault("GGML_NO_BACKTRACE", "1")  # no debugger, and nothing on standard output
    sleep_soon()
    try:
        api = import_module("llama_cpp.llama_cpp")
    except Exception as error:  # a shared library that does not load says so in many ways
        reason = " ".join(str(error).split())
        raise BackendError(
            f"{PACKAGE} {version()} cannot be imported: {reason}; build it for this machine: "
            f"pip install --force-reinstall --no-binary {PACKAGE} {PACKAGE}"
        ) from None
    give_back_blocks(MIB)  # its scratch grows with what is attended to
    return Library(api)
