"""What the Linux control groups of this process allow: memory and processor time.

A limit anywhere between the process's own group and the root binds, so every level is read and the
tightest wins. Files that are absent (other systems, the root group, no permission) limit nothing.
Source: the kernel's cgroup-v2 and cgroup-v1/memory documents.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from edgespec.system.records import dataclass

_V2 = ("sys/fs/cgroup", "sys/fs/cgroup/unified")
_V1_MEMORY = ("sys/fs/cgroup/memory",)
_V1_CPU = ("sys/fs/cgroup/cpu", "sys/fs/cgroup/cpu,cpuacct")
_UNLIMITED = 2**60
"""cgroup v1 writes "no limit" as a huge number, a little under 2^63."""


@dataclass(frozen=True, slots=True)
class CgroupMemory:
    """The tightest memory group: its limit and what its processes hold, in bytes."""

    limit_bytes: int
    used_bytes: int
    held_bytes: int
    """What is left of it when the kernel has taken all file pages back: nothing else is certain."""


def cgroup_memory(root: Path = Path("/")) -> CgroupMemory | None:
    """The level with the least room left, or None without a limit; `root` is for invented trees.

    `memory.high` counts as a limit: past it the kernel throttles. File pages that nobody used
    lately (`inactive_file`) are not counted as used: the kernel gives them back on demand.
    """
    levels = [
        *(_memory_v2(level) for level in _levels(root, "", _V2)),
        *(_memory_v1(level) for level in _levels(root, "memory", _V1_MEMORY)),
    ]
    found = [level for level in levels if level is not None]
    return min(found, key=lambda level: level.limit_bytes - level.used_bytes, default=None)


def cgroup_cpus(root: Path = Path("/")) -> float | None:
    """Processors' worth of time the group may use (1.5 is one and a half), None without a limit."""
    quotas = [
        *(_quota_v2(level) for level in _levels(root, "", _V2)),
        *(_quota_v1(level) for level in _levels(root, "cpu", _V1_CPU)),
    ]
    return min((quota for quota in quotas if quota is not None), default=None)


def _levels(root: Path, controller: str, mounts: tuple[str, ...]) -> Iterator[Path]:
    """Folders from the process's own group up to the mount, those that exist; v2 is ""."""
    group = PurePosixPath(_own_group(root, controller) or "/")
    parts = () if ".." in group.parts else group.parts[1:]
    for mount in mounts:
        for depth in range(len(parts), -1, -1):
            folder = root.joinpath(mount, *parts[:depth])
            if folder.is_dir():
                yield folder


def _own_group(root: Path, controller: str) -> str | None:
    text = _read(root / "proc/self/cgroup")
    for line in (text or "").splitlines():
        number, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if (number == "0" and not names) if not controller else controller in names.split(","):
            return path
    return None


def _memory_v2(folder: Path) -> CgroupMemory | None:
    limits = [_number(folder / name) for name in ("memory.max", "memory.high")]
    limit = min((value for value in limits if value is not None), default=None)
    if limit is None:
        return None
    return _memory(folder, limit, "memory.current", "")


def _memory_v1(folder: Path) -> CgroupMemory | None:
    limit = _number(folder / "memory.limit_in_bytes")
    if limit is None or limit >= _UNLIMITED:
        return None
    return _memory(folder, limit, "memory.usage_in_bytes", "total_")


def _memory(folder: Path, limit: int, current: str, prefix: str) -> CgroupMemory:
    """`prefix` is of the counters that include the groups below: version 1 has two of each."""
    used = held = _number(folder / current) or 0
    for line in (_read(folder / "memory.stat") or "").splitlines():
        key, _, value = line.partition(" ")
        if not value.isdecimal() or not key.startswith(prefix):
            continue
        if key.removeprefix(prefix) == "inactive_file":
            used -= min(used, int(value))
        if key.removeprefix(prefix) in ("inactive_file", "active_file"):
            held -= min(held, int(value))
    return CgroupMemory(limit, used, held)


def _quota_v2(folder: Path) -> float | None:
    words = (_read(folder / "cpu.max") or "").split()
    return _quota(words[0], words[1]) if len(words) == 2 else None


def _quota_v1(folder: Path) -> float | None:
    quota, period = _read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")
    return _quota(quota.strip(), period.strip()) if quota and period else None


def _quota(quota: str, period: str) -> float | None:
    if not (quota.isdecimal() and period.isdecimal()) or int(period) == 0:
        return None  # "max", or -1 in v1
    return int(quota) / int(period)


def _number(path: Path) -> int | None:
    text = (_read(path) or "").strip()
    return int(text) if text.isdecimal() else None


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
