"""How hard this machine may be worked: what was asked for, and whether it runs on a battery."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, get_args

from edgespec.errors import OptionError

Power = Literal["saver", "balanced", "full"]
"""Half of the threads; as many as are fastest and stay so as it gets warm; all, whatever comes."""

SPINS = 10_000
"""Looks at a word before sleeping, some 0.5 ms: longer than the caller needs between two passes."""
BATTERY_SPINS = 1_000
"""The same where waiting costs charge."""
SAVER_SPINS = 100


def check_power(power: str) -> None:
    """Raise OptionError for a word that means nothing."""
    if power not in get_args(Power):
        raise OptionError(f"power is {power!r}; choose {', '.join(get_args(Power))}")


def threads_for(power: str, usable: int) -> int | None:
    """How many threads a plan is to be made for; None leaves it to the planner."""
    return max(1, usable // 2) if power == "saver" else None


def spins_for(power: str, root: Path = Path("/")) -> int:
    """How often a thread looks for work before it sleeps."""
    if power == "saver":
        return SAVER_SPINS
    return BATTERY_SPINS if power == "balanced" and batteries(root) else SPINS


def batteries(root: Path = Path("/")) -> list[Path]:
    """The folders of batteries that this machine runs on now; none while it is charged."""
    found = sorted((root / "sys/class/power_supply").glob("*"))
    return [
        one
        for one in found
        if word(one / "type") == "Battery" and word(one / "status") == "Discharging"
        if word(one / "scope") != "Device"  # a mouse's
    ]


def word(path: Path) -> str:
    """What a file of /sys says, "" where it is missing or may not be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def number(path: Path) -> int | None:
    """A whole number in a file of /sys, None where there is none."""
    text = word(path)
    return int(text) if text.lstrip("-").isdecimal() else None
