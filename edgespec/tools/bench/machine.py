"""What a benchmark ran on, and how much of it other programs used meanwhile."""

from __future__ import annotations

import os
import platform
import time
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import psutil

from edgespec.system.hardware import hardware
from edgespec.system.records import dataclass
from edgespec.version import __version__

_PACKAGES = ("llvmlite", "numba", "numpy")
BUSY = 0.1
"""Share of the processors that others may use before a benchmark says so."""


@dataclass(frozen=True, slots=True)
class Machine:
    """The processor, the system and the versions of what was measured."""

    processor: str
    cores: int
    system: str
    versions: dict[str, str]
    load_average: float | None
    """Programs that ran or waited in the minute before; None where the system does not tell."""

    @classmethod
    def here(cls) -> Machine:
        cpu = hardware()
        found = {name: package_version(name) for name in _PACKAGES}
        versions = {"edgespec": __version__, "python": platform.python_version()}
        versions |= {name: text for name, text in found.items() if text}
        load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
        system = f"{platform.system()} {platform.release()}"
        return cls(cpu.cpu_name, cpu.physical_cores, system, versions, load)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def package_version(name: str) -> str:
    """The version of an installed package, "" when there is none."""
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


class Others:
    """How many processors programs other than this one and its children kept busy since it was
    made.
    """

    def __init__(self) -> None:
        self._start = time.monotonic(), _all_busy_s(), _own_busy_s()

    def processors(self) -> float:
        """Their mean number; ask before the children end."""
        then, everyone, own = self._start
        passed = max(time.monotonic() - then, 1e-9)
        return max(0.0, (_all_busy_s() - everyone - (_own_busy_s() - own)) / passed)


def _all_busy_s() -> float:
    times = psutil.cpu_times()
    waiting = times.idle + getattr(times, "iowait", 0.0)
    counted_twice = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)
    return float(sum(times) - waiting - counted_twice)


def _own_busy_s() -> float:
    """This process and its children, those that ended too."""
    own = os.times()
    total = own.user + own.system + own.children_user + own.children_system
    for child in psutil.Process().children(recursive=True):
        try:
            times = child.cpu_times()
        except psutil.Error:  # it has just ended
            continue
        total += times.user + times.system
    return total
