"""ggml's RPC server as a process."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import psutil

from edgespec.backends.llamacpp import ggml
from edgespec.backends.llamacpp.library import sleep_soon
from edgespec.backends.llamacpp.remote.buffers import Operations
from edgespec.errors import BackendError
from edgespec.system import wall

_START_S = 20.0


class RpcServer:
    """ggml's server as a process, on a loopback port of its own; raises BackendError."""

    def __init__(self, folder: Path, threads: int, device: str = "CPU") -> None:
        self._folder, self._threads, self._device = str(folder), str(threads), device
        self._process: subprocess.Popen[bytes] | None = None
        self._told: psutil.Process | None = None
        self.port = 0

    def start(self) -> None:
        """Start the process unless it runs."""
        if self.runs():
            return
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        script = [sys.executable, "-I", "-S", ggml.__file__]
        sleep_soon()  # the server's threads, too
        self._process = subprocess.Popen(
            [*script, self._folder, str(self.port), self._threads, self._device, wall.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=os.environ | {"GGML_NO_BACKTRACE": "1", "OMP_NUM_THREADS": self._threads},
        )
        self._told = psutil.Process(self._process.pid)
        end = time.monotonic() + _START_S
        while time.monotonic() < end and self.runs():
            with suppress(OSError):
                self.connect().close()
                threading.Thread(target=self._drain, args=(self._process,), daemon=True).start()
                return
            time.sleep(0.02)
        self.stop()
        assert self._process.stderr is not None
        said = self._process.stderr.read().decode("utf-8", "replace").strip().split("\n")[-1]
        raise BackendError(f"ggml's RPC server does not start: {said or 'it does not say why'}")

    @staticmethod
    def _drain(process: subprocess.Popen[bytes]) -> None:
        assert process.stderr is not None
        with suppress(ValueError, OSError):
            while process.stderr.read(1 << 12):
                pass

    def operations(self) -> Operations:
        """What the build that serves can compute for clients."""
        return Operations(ggml.operation_names(Path(self._folder)))

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), 2.0)

    def runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def held_bytes(self) -> int:
        """What the process is resident in, 0 when it is gone."""
        if self._told is None:
            return 0
        try:
            return int(self._told.memory_info().rss)
        except psutil.Error:
            return 0

    def computed_s(self) -> float:
        """Seconds of processor time so far, 0 when it is gone."""
        try:
            times = self._told.cpu_times() if self._told is not None else None
        except psutil.Error:
            return 0.0
        return 0.0 if times is None else float(times.user + times.system)

    def is_halted(self) -> bool:
        """Whether somebody stopped the process without ending it."""
        try:
            return self._told is not None and self._told.status() == psutil.STATUS_STOPPED
        except psutil.Error:
            return False

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
