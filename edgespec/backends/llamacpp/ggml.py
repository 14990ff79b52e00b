"""ggml's devices, which llama-cpp-python does not wrap, called in its shared libraries.

Needs the standard library alone, so that the process of a worker holds nothing else: run as a
program, `python ggml.py FOLDER PORT THREADS DEVICE`, it serves a device on the loopback address
until its standard input ends.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import sys
import threading
from pathlib import Path
from typing import Any, NamedTuple

_KINDS = {0: "cpu", 1: "gpu", 2: "igpu", 3: "accelerator", 4: "meta"}
"""ggml_backend_dev_type; an "igpu" computes in the machine's own memory."""
_MOST_OPERATIONS = 128
_LAST_OPERATION = "GLU"
"""ggml does not tell how many operations it has; this one has always been the last."""
_SUFFIXES = {"darwin": ".dylib", "win32": ".dll"}


class GgmlDevice(NamedTuple):
    """What ggml says of a device; sizes in bytes."""

    name: str
    description: str
    kind: str
    free_bytes: int
    total_bytes: int


def library_file(folder: Path, name: str) -> Path | None:
    """A shared library of the build in a folder, None where it was built without."""
    suffix = _SUFFIXES.get(sys.platform, ".so")
    for prefix in ("lib", ""):
        path = folder / f"{prefix}{name}{suffix}"
        if path.exists():
            return path
    return None


def operation_names(folder: Path) -> list[str]:
    """What the build in a folder can compute, in the order of its numbers; raises OSError."""
    path = library_file(folder, "ggml-base")
    if path is None:
        raise OSError(f"{folder} holds no library ggml-base")
    base = ctypes.CDLL(str(path))
    base.ggml_op_name.restype = ctypes.c_char_p
    found: list[str] = []
    while len(found) < _MOST_OPERATIONS and found[-1:] != [_LAST_OPERATION]:
        name: bytes = base.ggml_op_name(len(found))
        found.append(name.decode())
    return found


class Ggml:
    """The functions; raises OSError where the libraries cannot be loaded."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._base = self._open("ggml-base")
        self._registry = self._open("ggml")
        self._rpc: Any = None
        handle, size = ctypes.c_void_p, ctypes.c_size_t
        pointer = ctypes.POINTER(size)
        for library, name, result, arguments in (
            (self._registry, "ggml_backend_dev_count", size, ()),
            (self._registry, "ggml_backend_dev_get", handle, (size,)),
            (self._registry, "ggml_backend_dev_by_name", handle, (ctypes.c_char_p,)),
            (self._base, "ggml_backend_dev_name", ctypes.c_char_p, (handle,)),
            (self._base, "ggml_backend_dev_description", ctypes.c_char_p, (handle,)),
            (self._base, "ggml_backend_dev_type", ctypes.c_int, (handle,)),
            (self._base, "ggml_backend_dev_memory", None, (handle, pointer, pointer)),
            (self._base, "ggml_backend_dev_buffer_type", handle, (handle,)),
            (self._base, "ggml_backend_buft_name", ctypes.c_char_p, (handle,)),
            (self._base, "ggml_backend_cpu_buffer_type", handle, ()),
            (self._base, "ggml_backend_reg_dev_get", handle, (handle, size)),
        ):
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments

    def _open(self, name: str) -> Any:
        path = library_file(self._folder, name)
        if path is None:
            raise OSError(f"{self._folder} holds no library {name}")
        return ctypes.CDLL(str(path))

    def devices(self) -> list[GgmlDevice]:
        """Those of this build on this machine; drivers may end the process."""
        registry = self._registry
        return [
            self.describe(registry.ggml_backend_dev_get(place))
            for place in range(registry.ggml_backend_dev_count())
        ]

    def describe(self, device: Any) -> GgmlDevice:
        """One device, with the memory that is free now."""
        base = self._base
        free, total = self.memory(device)
        return GgmlDevice(
            base.ggml_backend_dev_name(device).decode("utf-8", "replace"),
            base.ggml_backend_dev_description(device).decode("utf-8", "replace"),
            _KINDS.get(base.ggml_backend_dev_type(device), "unknown"),
            free,
            total,
        )

    def memory(self, device: Any) -> tuple[int, int]:
        """Free and total bytes."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._base.ggml_backend_dev_memory(device, ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    def by_name(self, name: str) -> Any:
        """A device's handle, None when there is none of that name."""
        return self._registry.ggml_backend_dev_by_name(name.encode())

    def buffer_name(self, device: Any) -> str:
        """What llama.cpp calls the device's buffers in its log lines."""
        kind = self._base.ggml_backend_dev_buffer_type(device)
        name: bytes = self._base.ggml_backend_buft_name(kind)
        return name.decode("utf-8", "replace")

    def processor_buffers(self) -> Any:
        """The type of buffers in this process's memory."""
        return self._base.ggml_backend_cpu_buffer_type()

    def remote(self, endpoint: str) -> Any:
        """The device of the RPC server at "127.0.0.1:port"; ends the process where none answers."""
        rpc = self._with_rpc()
        server = rpc.ggml_backend_rpc_add_server(endpoint.encode())
        return self._base.ggml_backend_reg_dev_get(server, 0) if server else None

    def serve(self, endpoint: str, device: Any, threads: int) -> None:
        """Serve a device to RPC clients, one after the other; returns only when it cannot."""
        devices = (ctypes.c_void_p * 1)(device)
        self._with_rpc().ggml_backend_rpc_start_server(endpoint.encode(), None, threads, 1, devices)

    def _with_rpc(self) -> Any:
        if self._rpc is None:
            rpc = self._open("ggml-rpc")
            rpc.ggml_backend_rpc_add_server.restype = ctypes.c_void_p
            rpc.ggml_backend_rpc_add_server.argtypes = (ctypes.c_char_p,)
            rpc.ggml_backend_rpc_start_server.restype = None
            rpc.ggml_backend_rpc_start_server.argtypes = (
                ctypes.c_char_p,
                ctypes.c_char_p,
                ctypes.c_size_t,
                ctypes.c_size_t,
                ctypes.POINTER(ctypes.c_void_p),
            )
            self._rpc = rpc
        return self._rpc


def _end_with_input() -> None:
    """Whoever started this process holds its standard input open."""
    os.read(0, 1)
    os._exit(0)


def _enclose(wall: str, folder: str, port: int) -> None:
    """Keep this process to its libraries and its port, where the system has such walls; by the
    module's file, because nothing else of the package is imported here.
    """
    spec = importlib.util.spec_from_file_location("wall", wall)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.enclose([Path(folder)], port=port)


def main(folder: str, port: str, threads: str, name: str, wall: str) -> None:
    """Serve until standard input ends."""
    if name == "CPU":  # drivers of other devices need more than files
        _enclose(wall, folder, int(port))
    threading.Thread(target=_end_with_input, daemon=True).start()
    ggml = Ggml(Path(folder))
    device = ggml.by_name(name)
    if device is None:
        found = ", ".join(device.name for device in ggml.devices())
        raise SystemExit(f"no device is called {name!r}; there are {found}")
    ggml.serve(f"127.0.0.1:{port}", device, int(threads))
    raise SystemExit(f"port {port} of the loopback address cannot be served")


if __name__ == "__main__":
    main(*sys.argv[1:])
