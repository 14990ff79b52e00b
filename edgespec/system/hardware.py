"""What this machine has: memory, processors, and how much of both this process may use."""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from pathlib import Path

from edgespec.system import proc
from edgespec.system.cgroup import cgroup_cpus, cgroup_memory
from edgespec.system.cores import little_cores
from edgespec.system.records import dataclass
from edgespec.system.resident_memory import process_bytes

_ISA_FLAGS = (
    "avx2", "fma", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8",
    "asimd", "asimddp", "i8mm", "sve",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class MemorySnapshot:
    """Memory at one moment, in bytes; swap is told but never planned with."""

    total_bytes: int
    available_bytes: int
    """What can be had without swapping, as the system estimates it."""
    cgroup_limit_bytes: int | None
    cgroup_used_bytes: int
    """Held by all processes of the limiting group, this one included; 0 without a limit."""
    swap_bytes: int
    process_resident_bytes: int

    @property
    def usable_bytes(self) -> int:
        """The whole that percentages refer to: the machine's memory or the group's limit."""
        limit = self.cgroup_limit_bytes
        return self.total_bytes if limit is None else min(self.total_bytes, limit)

    @property
    def free_bytes(self) -> int:
        """What this process may still grow by."""
        if self.cgroup_limit_bytes is None:
            return self.available_bytes
        return max(0, min(self.available_bytes, self.cgroup_limit_bytes - self.cgroup_used_bytes))

    @property
    def reachable_bytes(self) -> int:
        """The most this process can be resident in: what is free and what it holds already."""
        return min(self.usable_bytes, self.free_bytes + self.process_resident_bytes)


def snapshot(root: Path = Path("/")) -> MemorySnapshot:
    """Look at this machine's memory now; `root` replaces the file system's for control groups."""
    memory, group = proc.memory() or _asked_memory(), cgroup_memory(root)
    return MemorySnapshot(
        total_bytes=memory.total,
        available_bytes=memory.available,
        cgroup_limit_bytes=group.limit_bytes if group else None,
        cgroup_used_bytes=group.used_bytes if group else 0,
        swap_bytes=memory.swap_free,
        process_resident_bytes=process_bytes(),
    )


def _asked_memory() -> proc.Memory:
    import psutil

    memory = psutil.virtual_memory()
    try:
        swap_free = int(psutil.swap_memory().free)
    except (OSError, RuntimeError):  # some containers and systems do not tell
        swap_free = 0
    return proc.Memory(int(memory.total), int(memory.available), swap_free)


@dataclass(frozen=True, slots=True)
class Hardware:
    """The processors of this machine and those this process may use."""

    cpu_name: str
    physical_cores: int
    logical_cores: int
    allowed_logical: int
    """Logical processors in this process's affinity mask."""
    allowed_physical: int
    """Physical cores that have at least one of them."""
    cpu_quota: float | None
    """Processors' worth of time its control group allows, None without a limit."""
    isa: tuple[str, ...]
    """A hint for people: vector extensions by the kernel's names. Backends ask LLVM instead."""
    little_cores: int = 0
    """Of the allowed physical cores, Arm's little ones."""

    def usable_threads(self) -> int:
        """Threads worth starting: a physical core each, but no little one where there are others,
        and no more than the quota's whole ones.

        Two threads on one core share its vector units and its bandwidth: nothing to win here. And a
        stage of a pass ends when its last thread does.
        """
        quota = self.allowed_physical if self.cpu_quota is None else int(self.cpu_quota)
        return max(1, min(self.allowed_physical - self.little_cores, quota))


def hardware(root: Path = Path("/")) -> Hardware:
    """Look at this machine's processors; `root` replaces the file system's for /proc and /sys."""
    logical = os.cpu_count() or 1
    physical = min(_physical_cores() or logical, logical)
    allowed = _affinity(logical)
    name, isa = _cpu_info(root)
    return Hardware(
        cpu_name=name,
        physical_cores=physical,
        logical_cores=logical,
        allowed_logical=len(allowed),
        allowed_physical=_count_cores(allowed, root) or min(physical, len(allowed)),
        cpu_quota=cgroup_cpus(root),
        isa=isa,
        little_cores=len(little_cores(root)),
    )


def _physical_cores() -> int:
    """How many the machine has, 0 when the system does not tell."""
    found = proc.physical_cores()
    if found is None:
        import psutil

        with suppress(OSError):  # Android may hide what tells
            found = psutil.cpu_count(logical=False)
    return found or 0


def _affinity(logical: int) -> frozenset[int]:
    affinity = getattr(os, "sched_getaffinity", None)  # Linux and some BSDs
    return frozenset(range(logical) if affinity is None else affinity(0))


def _count_cores(logical: frozenset[int], root: Path) -> int:
    """Distinct physical cores of these logical processors, 0 when the system does not tell."""
    cores: set[tuple[str, str]] = set()
    for number in logical:
        topology = root / f"sys/devices/system/cpu/cpu{number}/topology"
        try:
            package = (topology / "physical_package_id").read_text(encoding="ascii").strip()
            core = (topology / "core_id").read_text(encoding="ascii").strip()
        except OSError:
            return 0
        cores.add((package, core))
    return len(cores)


def _cpu_info(root: Path) -> tuple[str, tuple[str, ...]]:
    """The processor's name and the extensions worth naming, as far as /proc/cpuinfo tells."""
    name, flags = "", set[str]()
    try:
        lines = (root / "proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    for line in lines:
        key, _, value = (part.strip() for part in line.partition(":"))
        if key in ("model name", "Model", "Hardware"):
            name = name or value
        elif key in ("flags", "Features") and not flags:
            flags = set(value.split())
    name = name or platform.processor() or platform.machine() or "unknown processor"
    return name, tuple(flag for flag in _ISA_FLAGS if flag in flags)
