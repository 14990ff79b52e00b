from __future__ import annotations

from pathlib import Path

import pytest

from edgespec.system.hardware import Hardware, MemorySnapshot, hardware, snapshot
from tests.support.machines import BOARD, CI, CONTAINER, GIB, LAPTOP, MIB, cores, memory


@pytest.mark.parametrize(
    ("machine", "usable", "free", "reachable"),
    [
        (LAPTOP, 8 * GIB, 5 * GIB, 5 * GIB + 40 * MIB),
        (BOARD, 2 * GIB, 1400 * MIB, 1440 * MIB),
        (CONTAINER, 512 * MIB, 452 * MIB, 492 * MIB),
        (CI, 7 * GIB, 4 * GIB, 4 * GIB + 40 * MIB),
        (memory(GIB, 2 * GIB), GIB, 2 * GIB, GIB),
        (memory(4 * GIB, GIB, limit=8 * GIB), 4 * GIB, GIB, GIB + 40 * MIB),
        (memory(4 * GIB, GIB, limit=GIB, used=2 * GIB), GIB, 0, 40 * MIB),
    ],
    ids=["laptop", "board", "container", "CI", "odd total", "loose limit", "over its limit"],
)
def test_snapshots(machine: MemorySnapshot, usable: int, free: int, reachable: int) -> None:
    assert machine.usable_bytes == usable
    assert machine.free_bytes == free
    assert machine.reachable_bytes == reachable


@pytest.mark.parametrize(
    ("machine", "threads"),
    [
        (cores(4, logical=8), 4),
        (cores(4, logical=8, quota=2.5), 2),
        (cores(1, quota=0.5), 1),
        (cores(2, quota=16.0), 2),
        (Hardware("pinned", 16, 32, 2, 1, None, ()), 1),
    ],
    ids=["hyperthreads", "quota", "half a processor", "loose quota", "affinity"],
)
def test_usable_threads(machine: Hardware, threads: int) -> None:
    assert machine.usable_threads() == threads


def test_this_machine(tmp_path: Path) -> None:
    now = snapshot()
    assert 0 < now.process_resident_bytes <= now.reachable_bytes <= now.usable_bytes
    here = hardware()
    assert 1 <= here.allowed_physical <= here.allowed_logical <= here.logical_cores
    assert here.cpu_name
    assert 1 <= here.usable_threads() <= here.logical_cores
    bare = hardware(tmp_path)
    assert bare.cpu_name
    assert bare.isa == ()


def test_limits_reach_the_snapshot(tmp_path: Path) -> None:
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (group / "memory.max").write_text(f"{700 * MIB}\n")
    (group / "memory.current").write_text(f"{100 * MIB}\n")
    (group / "cpu.max").write_text("100000 100000\n")
    assert snapshot(tmp_path).free_bytes <= 600 * MIB
    assert hardware(tmp_path).usable_threads() == 1


def test_cpu_info_and_topology(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text(
        "processor\t: 0\nmodel name\t: Invented 9\nflags\t\t: fpu avx2 fma avx512_vnni\n\n"
        "processor\t: 1\nmodel name\t: Invented 9\nflags\t\t: fpu\n"
    )
    for number in range(512):
        folder = tmp_path / f"sys/devices/system/cpu/cpu{number}/topology"
        folder.mkdir(parents=True)
        (folder / "physical_package_id").write_text("0\n")
        (folder / "core_id").write_text("7\n")
    here = hardware(tmp_path)
    assert (here.cpu_name, here.isa) == ("Invented 9", ("avx2", "fma", "avx512_vnni"))
    assert here.allowed_physical == 1
