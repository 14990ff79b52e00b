"""onnxruntime, imported when it is first needed, with its words kept off the terminal."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from edgespec.errors import BackendError

PACKAGE = "onnxruntime"
OLDEST = (1, 23)
INSTALL = "pip install 'edgespec[onnx]'"
_FATAL = 4
_VERSION = re.compile(r"^__version__ = \"([^\"]+)\"", re.M)
_ONCE = threading.Lock()


def missing() -> str:
    """Why ONNX Runtime cannot be used here and what to type, "" when it is installed."""
    if find_spec(PACKAGE) is None:
        return f"{PACKAGE} is not installed: {INSTALL}"
    if version() and version_numbers() < OLDEST:
        wanted = ".".join(map(str, OLDEST))
        return f"{PACKAGE} {version()} is too old, {wanted} is the oldest that works: {INSTALL}"
    return ""


@cache
def version() -> str:
    """The version that is installed, by whichever package; "" when it does not say."""
    found = find_spec(PACKAGE)
    if found is None or found.origin is None:
        return ""
    with suppress(OSError):
        said = _VERSION.search(Path(found.origin).read_text("utf-8"))
        return said[1] if said else ""
    return ""


def version_numbers() -> tuple[int, ...]:
    """Its first two numbers; of one that does not say, those of the oldest that works."""
    return tuple(int(part) for part in re.findall(r"\d+", version())[:2]) or OLDEST


def library() -> Any:
    """The module; raises BackendError when it cannot be imported."""
    with _ONCE:
        return _import()


@cache
def _import() -> Any:
    why = missing()
    if why:
        raise BackendError(f"the onnx backend was asked for and {why}")
    try:
        with _silence():
            found = import_module(PACKAGE)
    except Exception as error:  # a shared library that does not load says so in many ways
        raise BackendError(
            f"{PACKAGE} {version()} cannot be imported: {words(error)}; install it anew: "
            f"pip install --force-reinstall {PACKAGE}"
        ) from None
    found.set_default_logger_severity(_FATAL)
    return found


def settings(module: Any, threads: int, folder: str) -> Any:
    """Options of a session: one pass at a time on so many threads, memory given back after each.

    Weights in files of their own are looked for in `folder`.
    """
    options = module.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = _FATAL
    options.enable_cpu_mem_arena = options.enable_mem_pattern = False  # no slower, and no growth
    options.add_session_config_entry("session.force_spinning_stop", "1")
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", folder)
    return options


@cache
def words(error: BaseException) -> str:
    """What the library said, without its places in code."""
    text = re.sub(r"\[ONNXRuntimeError\] : \d+ : \w+ : ", "", " ".join(str(error).split()))
    return text[:300] or type(error).__name__


@contextmanager
def _silence() -> Iterator[None]:
    """Nothing reaches standard error: on import it looks for devices and tells of none."""
    try:
        kept = os.dup(2)
    except OSError:  # there is none
        yield
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
