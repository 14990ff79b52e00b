"""Machines that are not this one, to plan for before a download; `devices.toml` lists them."""

from __future__ import annotations

from pathlib import Path

from edgespec.errors import OptionError
from edgespec.system.hardware import Hardware, MemorySnapshot
from edgespec.system.records import dataclass
from edgespec.system.size import GIB, format_size

_FILE = Path(__file__).with_name("devices.toml")
_REACHED = 0.5
"""Of the memory's peak, what a phone's or a board's cores are believed to read with."""
_APP_SHARES = {"android": 0.5, "ios": 0.5, "linux": 0.85}
"""Of the memory, what one app is believed to get. Android has no fixed limit and ends apps when
memory is short; iOS ends an app at a limit that its developers can ask to have raised.
"""


@dataclass(frozen=True, slots=True)
class DeviceProfile:
    """One kind of machine, as published."""

    name: str
    title: str
    system: str
    cores: int
    little: int
    memory_gib: float
    memory_gb_s: float

    @property
    def app_bytes(self) -> int:
        """What one app may be resident in."""
        return int(self.memory_gib * GIB * _APP_SHARES[self.system])

    @property
    def bytes_per_second(self) -> float:
        """How fast its cores read memory, about."""
        return self.memory_gb_s * 1e9 * _REACHED

    @property
    def hardware(self) -> Hardware:
        """Its processor; what it can compute with is not known here."""
        every = self.cores
        return Hardware(self.title, every, every, every, every, None, (), self.little)

    def memory(self, resident_bytes: int) -> MemorySnapshot:
        """What an app gets of its memory, of which this process would hold so much."""
        free = self.app_bytes - resident_bytes
        return MemorySnapshot(self.app_bytes, free, None, 0, 0, resident_bytes)

    def describe(self) -> str:
        """What the plan is made for, in one sentence."""
        big = self.cores - self.little
        cores = f"{big} big and {self.little} little cores" if self.little else f"{big} cores"
        return (
            f"for {self.title}: {cores}, {format_size(int(self.memory_gib * GIB))} of which one "
            f"app gets about {format_size(self.app_bytes)}, read with about "
            f"{self.bytes_per_second / 1e9:.0f} GB/s; published figures, nothing was measured there"
        )


def devices() -> dict[str, DeviceProfile]:
    """All that are known, by name."""
    import tomllib

    rows = tomllib.loads(_FILE.read_text(encoding="utf-8"))
    return {name: DeviceProfile(name, **row) for name, row in rows.items()}


def device_named(name: str) -> DeviceProfile:
    """One of them; raises OptionError with the names of all for another."""
    known = devices()
    if name not in known:
        raise OptionError(f"unknown device {name!r}; choose {', '.join(known)}")
    return known[name]
