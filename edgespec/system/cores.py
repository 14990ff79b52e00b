"""Which cores are fast and which are slow, where a machine has both, and staying on some of them.

Linux tells by `cpu_capacity` (Arm), by the devices `cpu_core` and `cpu_atom` (Intel), or else by
the highest clock, where that differs by more than the turbo of single cores does. Other systems do
not let threads choose processors, so nothing is asked of them: all cores count as equal there, and
macOS and Windows themselves keep threads that compute all the time on the fast ones.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from edgespec.system.records import dataclass

_DIFFERENT = 0.8
"""A core is slow when its capacity or clock is at most this part of the fastest one's."""
_LITTLE = 0.5
"""An Arm core is little when its capacity is at most this part of the fastest one's ..."""
_LITTLE_CLOCK = 0.7
"""... or its clock, where capacities are not told: little cores do less at the same clock, too."""


@dataclass(frozen=True, slots=True)
class Cores:
    """The logical processors this process may use, by kind; all are fast where there is one."""

    fast: frozenset[int]
    slow: frozenset[int]

    @property
    def unequal(self) -> bool:
        return bool(self.fast and self.slow)


def cores(root: Path = Path("/")) -> Cores:
    """Look at this machine's processors; `root` replaces the file system's for /sys."""
    if not hasattr(os, "sched_getaffinity"):
        return Cores(frozenset(), frozenset())
    allowed = frozenset(os.sched_getaffinity(0))
    slow = _atoms(root) & allowed
    if not slow:
        strength = _capacities(root, allowed) or _clocks(root, allowed)
        most = max(strength.values(), default=0)
        slow = frozenset(cpu for cpu in strength if strength[cpu] <= _DIFFERENT * most)
    return Cores(allowed - slow, slow)


def little_cores(root: Path = Path("/")) -> frozenset[int]:
    """Arm's little cores among those this process may use: threads on them hold the others up."""
    if not hasattr(os, "sched_getaffinity"):
        return frozenset()
    allowed = frozenset(os.sched_getaffinity(0))
    strength, part = _capacities(root, allowed), _LITTLE
    if not strength and platform.machine().lower().startswith(("arm", "aarch64")):
        strength, part = _clocks(root, allowed), _LITTLE_CLOCK
    most = max(strength.values(), default=0)
    return frozenset(cpu for cpu in strength if strength[cpu] <= part * most)


@contextmanager
def staying_on(processors: frozenset[int]) -> Iterator[None]:
    """Keep the calling thread on these processors for a while; with none, it stays free."""
    before = stay_on(processors)
    try:
        yield
    finally:
        stay_on(before)


def stay_on(processors: frozenset[int]) -> frozenset[int]:
    """Keep the calling thread on these processors; returns those it could be on before. With none,
    or where the system refuses, nothing changes and none are returned.
    """
    if not processors or not hasattr(os, "sched_setaffinity"):
        return frozenset()
    before = frozenset(os.sched_getaffinity(0))
    try:
        os.sched_setaffinity(0, processors)
    except OSError:  # taken away since: a hint, not a need
        return frozenset()
    return before


def _atoms(root: Path) -> frozenset[int]:
    """Intel's efficiency cores, where there are performance cores beside them."""
    if not (root / "sys/devices/cpu_core/cpus").exists():
        return frozenset()
    try:
        return _numbers((root / "sys/devices/cpu_atom/cpus").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return frozenset()


def _numbers(text: str) -> frozenset[int]:
    """The numbers of a list such as "0-3,8"."""
    found: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)


def _capacities(root: Path, allowed: frozenset[int]) -> dict[int, int]:
    return _each(root, allowed, "cpu_capacity")


def _clocks(root: Path, allowed: frozenset[int]) -> dict[int, int]:
    return _each(root, allowed, "cpufreq/cpuinfo_max_freq")


def _each(root: Path, allowed: frozenset[int], name: str) -> dict[int, int]:
    """A number of every processor; none when one of them does not tell."""
    found = {}
    for cpu in allowed:
        try:
            path = root / f"sys/devices/system/cpu/cpu{cpu}" / name
            found[cpu] = int(path.read_text(encoding="ascii"))
        except (OSError, ValueError):
            return {}
    return found
