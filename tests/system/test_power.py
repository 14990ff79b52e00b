"""Batteries, counters of energy and little cores, as the file system of a machine tells them."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgespec.errors import OptionError
from edgespec.system import cores as module
from edgespec.system.cores import little_cores
from edgespec.system.energy import EnergyMeter
from edgespec.system.hardware import hardware
from edgespec.system.power import (
    BATTERY_SPINS,
    SAVER_SPINS,
    SPINS,
    check_power,
    spins_for,
    threads_for,
)


def tell(root: Path, name: str, **files: object) -> Path:
    """A folder of /sys with these files."""
    folder = root / "sys" / name
    folder.mkdir(parents=True, exist_ok=True)
    for file, value in files.items():
        (folder / file).write_text(f"{value}\n", encoding="ascii")
    return folder


def phone(root: Path, capacities: list[int]) -> None:
    for cpu, capacity in enumerate(capacities):
        tell(root, f"devices/system/cpu/cpu{cpu}", cpu_capacity=capacity)
        topology = f"devices/system/cpu/cpu{cpu}/topology"
        tell(root, topology, physical_package_id=0, core_id=cpu)


def battery(root: Path, **files: object) -> Path:
    return tell(root, "class/power_supply/battery", type="Battery", **files)


def test_words_that_mean_nothing() -> None:
    with pytest.raises(OptionError, match="'turbo'; choose saver, balanced, full"):
        check_power("turbo")


@pytest.mark.parametrize(
    ("power", "status", "spins"),
    [
        ("balanced", "Charging", SPINS),
        ("balanced", "Discharging", BATTERY_SPINS),
        ("full", "Discharging", SPINS),
        ("saver", "Full", SAVER_SPINS),
    ],
)
def test_waiting_ends_sooner_on_a_battery(
    power: str, status: str, spins: int, tmp_path: Path
) -> None:
    battery(tmp_path, status=status)
    assert spins_for(power, tmp_path) == spins


def test_a_mouse_is_no_reason_to_save(tmp_path: Path) -> None:
    battery(tmp_path, status="Discharging", scope="Device")
    assert spins_for("balanced", tmp_path) == SPINS


def test_saver_takes_half_of_the_threads() -> None:
    assert [threads_for("saver", usable) for usable in (1, 4, 5)] == [1, 2, 2]
    assert threads_for("balanced", 4) is None


@pytest.mark.parametrize(
    ("capacities", "little", "threads"),
    [
        ([280] * 4 + [870] * 3 + [1024], {0, 1, 2, 3}, 4),
        ([1024] * 4, set(), 4),
        ([400, 400, 1024, 1024], {0, 1}, 2),
    ],
    ids=["phone", "board", "two and two"],
)
def test_threads_start_on_big_cores(
    capacities: list[int],
    little: set[int],
    threads: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    allowed = set(range(len(capacities)))
    monkeypatch.setattr(module.os, "sched_getaffinity", lambda _: allowed, raising=False)
    phone(tmp_path, capacities)
    assert little_cores(tmp_path) == little
    assert hardware(tmp_path).usable_threads() == threads


@pytest.mark.parametrize(("machine", "found"), [("aarch64", {0, 1}), ("x86_64", set())])
def test_clocks_tell_little_cores_on_arm_alone(
    machine: str, found: set[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.os, "sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    monkeypatch.setattr(module.platform, "machine", lambda: machine)
    for cpu, clock in enumerate((1700, 1700, 2370, 2910)):
        tell(tmp_path, f"devices/system/cpu/cpu{cpu}/cpufreq", cpuinfo_max_freq=clock)
    assert little_cores(tmp_path) == found


def test_processors_count_their_energy(tmp_path: Path) -> None:
    zone = tell(
        tmp_path, "class/powercap/intel-rapl:0", energy_uj=9_000_000, max_energy_range_uj=10_000_000
    )
    tell(tmp_path, "class/powercap/intel-rapl:0:0", energy_uj=1)  # a part of the first
    meter = EnergyMeter(tmp_path)
    before = meter.read()
    (zone / "energy_uj").write_text("9500000")
    assert meter.joules_since(before) == pytest.approx(0.5)
    (zone / "energy_uj").write_text("2000000")  # it began anew
    assert meter.joules_since(before) == pytest.approx(3.0)


@pytest.mark.parametrize(
    "files",
    [{"power_now": 4_000_000}, {"current_now": -1_000_000, "voltage_now": 4_000_000}],
    ids=["power", "current"],
)
def test_a_battery_gives_watts(files: dict[str, int], tmp_path: Path) -> None:
    folder, now = battery(tmp_path, status="Discharging", **files), [0.0]
    meter = EnergyMeter(tmp_path, lambda: now[0])
    before = meter.read()
    now[0] = 10.0
    assert meter.joules_since(before) == pytest.approx(40.0)
    (folder / "status").write_text("Charging")
    assert meter.joules_since(before) is None


def test_where_nothing_tells_nothing_is_told(tmp_path: Path) -> None:
    battery(tmp_path, status="Discharging")
    meter = EnergyMeter(tmp_path)
    assert meter.joules_since(meter.read()) is None
