"""A control group for one run: a memory limit that the kernel enforces (Linux, as root)."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

_V1, _V2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")


class ControlGroup:
    """A group below this process's own with `limit_bytes` of memory and no swap; a context manager.

    Raises OSError where that is not permitted. Version 1 and version 2 of the kernel's interface.
    """

    def __init__(self, limit_bytes: int) -> None:
        own = dict(_own_groups())
        self._is_v1 = "memory" in own
        root = _V1 if self._is_v1 else _V2
        self._folder = root / own.get("memory", own.get("", "/")).lstrip("/") / f"run-{os.getpid()}"
        self._limit_bytes = limit_bytes

    def __enter__(self) -> Self:
        self._folder.mkdir()
        try:
            names = (
                ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes")
                if self._is_v1
                else ("memory.max",)
            )
            for name in names:
                self._write(name, self._limit_bytes)
            if not self._is_v1:
                with suppress(OSError):
                    self._write("memory.swap.max", 0)
        except OSError:
            self._folder.rmdir()
            raise
        return self

    def enter(self) -> None:
        """Move the calling process, which is about to become another program, into the group."""
        self._write("cgroup.procs", os.getpid())

    def facts(self) -> dict[str, Any]:
        """The most that was charged, how often the kernel killed, and what lies in swap now."""
        if self._is_v1:
            most = self._number("memory.max_usage_in_bytes")
            kills = self._count("memory.oom_control", "oom_kill")
            swapped = self._count("memory.stat", "swap")
        else:
            most = self._number("memory.peak")
            kills = self._count("memory.events", "oom_kill")
            swapped = self._number("memory.swap.current")
        return {"most_charged_bytes": most, "kills": kills, "swapped_bytes": swapped}

    def __exit__(self, *_: object) -> None:
        for _attempt in range(50):  # the kernel takes a moment to see that the last process left
            with suppress(OSError):
                self._folder.rmdir()
                return
            time.sleep(0.02)

    def _write(self, name: str, value: int) -> None:
        (self._folder / name).write_text(str(value), encoding="ascii")

    def _number(self, name: str) -> int:
        try:
            return int((self._folder / name).read_text(encoding="ascii"))
        except (OSError, ValueError):
            return 0

    def _count(self, name: str, key: str) -> int:
        with suppress(OSError):
            for text in (self._folder / name).read_text(encoding="ascii").splitlines():
                if text.split()[0] == key:
                    return int(text.split()[1])
        return 0


def _own_groups() -> list[tuple[str, str]]:
    """(controller, path) of each group of this process; version 2 has no controller's name."""
    found: list[tuple[str, str]] = []
    for text in Path("/proc/self/cgroup").read_text(encoding="ascii").splitlines():
        _, controllers, path = text.split(":", 2)
        found.extend((name, path) for name in controllers.split(","))
    return found
