"""How much energy a machine uses, where its system tells: joules of its processors or its battery.

A counter of the processors (RAPL, where it may be read) is exact; a battery tells how much it gives
at a moment, screen and radio included, so there the power is taken as even between two readings.
Source: Linux, "Power Capping Framework" and "Linux power supply class".
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from edgespec.system.power import batteries, number
from edgespec.system.records import dataclass


@dataclass(frozen=True, slots=True)
class Reading:
    """One look: counters of processors in microjoules, by folder, or what batteries give."""

    seconds: float
    counters: dict[Path, int]
    watts: float | None


class EnergyMeter:
    """Joules between a reading and now; `root` replaces the file system's for /sys."""

    def __init__(
        self, root: Path = Path("/"), clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._root, self._clock = root, clock
        zones = (root / "sys/class/powercap").glob("intel-rapl:*")  # AMD's have this name too
        self._zones = [
            zone
            for zone in zones
            if zone.name.count(":") == 1 and number(zone / "energy_uj") is not None
        ]

    def read(self) -> Reading:
        """A look, for `joules_since`."""
        counters = {zone: number(zone / "energy_uj") or 0 for zone in self._zones}
        return Reading(self._clock(), counters, None if counters else self._watts())

    def joules_since(self, before: Reading) -> float | None:
        """What was used since a reading; None where nothing tells."""
        now = self.read()
        if now.counters:
            used = 0
            for zone, count in now.counters.items():
                grown = count - before.counters[zone]
                used += grown if grown >= 0 else grown + (number(zone / "max_energy_range_uj") or 0)
            return used / 1e6
        if now.watts is None or before.watts is None:
            return None
        return (before.watts + now.watts) / 2 * (now.seconds - before.seconds)

    def watts_since(self, before: Reading) -> float | None:
        """The mean of what was used since a reading; None where nothing tells."""
        joules = self.joules_since(before)
        return None if joules is None else joules / (self._clock() - before.seconds)

    def _watts(self) -> float | None:
        """What batteries give now, together; None while charging, or where they do not tell."""
        given = [_watts_of(battery) for battery in batteries(self._root)]
        told = [watts for watts in given if watts is not None]
        return sum(told) if told else None


def _watts_of(battery: Path) -> float | None:
    power = number(battery / "power_now")
    if power is not None:
        return abs(power) / 1e6
    current, volts = number(battery / "current_now"), number(battery / "voltage_now")
    return None if current is None or volts is None else abs(current) * volts / 1e12
