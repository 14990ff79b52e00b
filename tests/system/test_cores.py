"""Fast and slow cores, as the file system of a machine tells them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edgespec.system import cores as module
from edgespec.system.cores import Cores, cores, staying_on

ALLOWED = {0, 1, 2, 3}


@pytest.fixture(autouse=True)
def four(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.os, "sched_getaffinity", lambda _: ALLOWED, raising=False)


def tell(root: Path, name: str, values: list[int]) -> None:
    for cpu, value in enumerate(values):
        path = root / f"sys/devices/system/cpu/cpu{cpu}" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{value}\n", encoding="ascii")


def test_arm_tells_capacities(tmp_path: Path) -> None:
    tell(tmp_path, "cpu_capacity", [446, 446, 1024, 1024])
    assert cores(tmp_path) == Cores(frozenset({2, 3}), frozenset({0, 1}))


def test_intel_tells_its_atoms(tmp_path: Path) -> None:
    for kind, text in (("core", "0-1"), ("atom", "2-3,8")):
        path = tmp_path / f"sys/devices/cpu_{kind}/cpus"
        path.parent.mkdir(parents=True)
        path.write_text(text + "\n", encoding="ascii")
    found = cores(tmp_path)
    assert found == Cores(frozenset({0, 1}), frozenset({2, 3})) and found.unequal


@pytest.mark.parametrize(
    ("clocks", "slow"),
    [([5000, 5000, 3300, 3300], {2, 3}), ([5000, 4900, 4800, 4700], set()), ([1], set())],
)
def test_others_tell_clocks_if_anything(tmp_path: Path, clocks: list[int], slow: set[int]) -> None:
    tell(tmp_path, "cpufreq/cpuinfo_max_freq", clocks)
    assert cores(tmp_path).slow == slow


def test_nothing_told_means_equal(tmp_path: Path) -> None:
    assert not cores(tmp_path).unequal
    tell(tmp_path, "cpu_capacity", [0, 1])
    (tmp_path / "sys/devices/system/cpu/cpu0/cpu_capacity").write_text("?", encoding="ascii")
    assert cores(tmp_path) == Cores(frozenset(ALLOWED), frozenset())


def test_a_system_that_refuses_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError

    monkeypatch.setattr(os, "sched_setaffinity", refuse, raising=False)
    with staying_on(frozenset({77})):
        pass
