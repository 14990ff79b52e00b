"""Control groups, read from invented trees."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgespec.system.cgroup import CgroupMemory, cgroup_cpus, cgroup_memory

MIB = 1024**2
V1_NO_LIMIT = "9223372036854771712"


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n")
    return root


SELF, FS = "proc/self/cgroup", "sys/fs/cgroup"
TREES: dict[str, tuple[dict[str, str], CgroupMemory | None, float | None]] = {
    "nothing there (macOS, Windows)": ({}, None, None),
    "v2 without limits": (
        {SELF: "0::/user", f"{FS}/user/memory.max": "max", f"{FS}/user/cpu.max": "max 100000"},
        None,
        None,
    ),
    "v2 own group": (
        {
            SELF: "0::/app",
            f"{FS}/app/memory.max": str(512 * MIB),
            f"{FS}/app/memory.current": str(100 * MIB),
            f"{FS}/app/cpu.max": "150000 100000",
        },
        CgroupMemory(512 * MIB, 100 * MIB, 100 * MIB),
        1.5,
    ),
    "v2 parent is tighter": (
        {
            SELF: "0::/slice/app",
            f"{FS}/slice/app/memory.max": str(900 * MIB),
            f"{FS}/slice/app/memory.current": str(100 * MIB),
            f"{FS}/slice/app/cpu.max": "400000 100000",
            f"{FS}/slice/memory.max": str(1000 * MIB),
            f"{FS}/slice/memory.current": str(800 * MIB),
            f"{FS}/slice/cpu.max": "200000 100000",
        },
        CgroupMemory(1000 * MIB, 800 * MIB, 800 * MIB),
        2.0,
    ),
    "v2 high is below max": (
        {
            SELF: "0::/app",
            f"{FS}/app/memory.max": str(512 * MIB),
            f"{FS}/app/memory.high": str(400 * MIB),
            f"{FS}/app/memory.current": "0",
        },
        CgroupMemory(400 * MIB, 0, 0),
        None,
    ),
    "v2 file pages nobody uses are free": (
        {
            SELF: "0::/app",
            f"{FS}/app/memory.max": str(512 * MIB),
            f"{FS}/app/memory.current": str(500 * MIB),
            f"{FS}/app/memory.stat": f"anon 1\ninactive_file {450 * MIB}\nactive_file 3",
        },
        CgroupMemory(512 * MIB, 50 * MIB, 50 * MIB - 3),
        None,
    ),
    "v2 namespace: own path is not under the mount": (
        {SELF: "0::/../../elsewhere", f"{FS}/memory.max": str(300 * MIB)},
        CgroupMemory(300 * MIB, 0, 0),
        None,
    ),
    "v1 and a docker mount of the group itself": (
        {
            SELF: "4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n0::/",
            f"{FS}/memory/memory.limit_in_bytes": str(256 * MIB),
            f"{FS}/memory/memory.usage_in_bytes": str(90 * MIB),
            f"{FS}/memory/memory.stat": f"total_inactive_file {40 * MIB}",
            f"{FS}/cpu,cpuacct/cpu.cfs_quota_us": "50000",
            f"{FS}/cpu,cpuacct/cpu.cfs_period_us": "100000",
        },
        CgroupMemory(256 * MIB, 50 * MIB, 50 * MIB),
        0.5,
    ),
    "v1 without limits": (
        {
            SELF: "4:memory:/job",
            f"{FS}/memory/job/memory.limit_in_bytes": V1_NO_LIMIT,
            f"{FS}/cpu/cpu.cfs_quota_us": "-1",
            f"{FS}/cpu/cpu.cfs_period_us": "100000",
        },
        None,
        None,
    ),
    "hybrid mount": (
        {SELF: "0::/app", f"{FS}/unified/app/memory.max": str(64 * MIB)},
        CgroupMemory(64 * MIB, 0, 0),
        None,
    ),
    "garbage in the files": (
        {
            SELF: "what\n::::\n0::/app",
            f"{FS}/app/memory.max": "12 apples",
            f"{FS}/app/memory.current": "",
            f"{FS}/app/cpu.max": "100 0",
        },
        None,
        None,
    ),
}


@pytest.mark.parametrize(("files", "memory", "cpus"), TREES.values(), ids=TREES.keys())
def test_trees(
    files: dict[str, str], memory: CgroupMemory | None, cpus: float | None, tmp_path: Path
) -> None:
    root = tree(tmp_path, files)
    assert cgroup_memory(root) == memory
    assert cgroup_cpus(root) == cpus
