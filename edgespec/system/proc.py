"""What Linux tells of memory and cores in files; None where it does not, and psutil is asked.

Importing psutil takes as long as four hundred lines of our own, and a start needs five numbers.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


class Memory(NamedTuple):
    """The machine's, in bytes."""

    total: int
    available: int
    swap_free: int


def resident_bytes(pid: int | str = "self", proc: Path = Path("/proc")) -> int | None:
    """What a process holds; raises ProcessLookupError for one that is not there any more."""
    try:
        return int((proc / str(pid) / "statm").read_bytes().split()[1]) * _PAGE_BYTES
    except FileNotFoundError:
        if (proc / "self").exists():
            raise ProcessLookupError(pid) from None
        return None
    except (OSError, ValueError, IndexError):
        return None


def memory(proc: Path = Path("/proc")) -> Memory | None:
    """What the machine has."""
    try:
        lines = (proc / "meminfo").read_text("ascii").splitlines()
        found = {name: int(rest.split()[0]) * 1024 for name, _, rest in _parts(lines)}
        return Memory(found["MemTotal"], found["MemAvailable"], found.get("SwapFree", 0))
    except (OSError, ValueError, KeyError, IndexError):
        return None


def _parts(lines: list[str]) -> list[tuple[str, str, str]]:
    return [line.partition(":") for line in lines]


def physical_cores(cpus: Path = Path("/sys/devices/system/cpu")) -> int | None:
    """Cores, of which each may be several logical processors."""
    try:
        names = [name for name in os.listdir(cpus) if name[:3] == "cpu" and name[3:].isdigit()]
        lists = {(cpus / name / "topology" / "core_cpus_list").read_bytes() for name in names}
    except OSError:
        return None
    return len(lists) or None


def idle_ticks(proc: Path = Path("/proc")) -> dict[int, tuple[int, int]] | None:
    """Of each logical processor, by its number: how long it was idle and how long it was there."""
    try:
        lines = [line.split() for line in (proc / "stat").read_text("ascii").splitlines()]
        # Guests' times, after the eighth, are in the users' already.
        times = {one[0]: list(map(int, one[1:9])) for one in lines if one and one[0][:3] == "cpu"}
        found = {
            int(name[3:]): (its[3] + its[4], sum(its)) for name, its in times.items() if name[3:]
        }
    except (OSError, ValueError, IndexError):
        return None
    return found or None
