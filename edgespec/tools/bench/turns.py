"""Measuring in turns: what is to be compared runs alternately, so that a busy machine or a warm
processor meets all alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from edgespec.system.child_process import PeerError
from edgespec.system.energy import EnergyMeter

PAUSE_S = 0.02
"""Between two measurements: threads that wait for work by spinning go to sleep."""
Ask = Callable[[], Sequence[float]]
"""Measures once, or a few times."""
Group = TypeVar("Group")


def gauged(ask: Ask, meter: EnergyMeter, watts: list[float]) -> Ask:
    """The same question, which adds to `watts` what the machine used meanwhile, if it tells."""

    def asked() -> Sequence[float]:
        before = meter.read()
        found = ask()
        used = meter.watts_since(before)
        if used is not None:
            watts.append(used)
        return found

    return asked


def take_turns(
    groups: Mapping[Group, Mapping[str, Ask]],
    rounds: int,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[dict[Group, dict[str, list[float]]], dict[str, str]]:
    """Ask everyone in each group `rounds` times, in the other order every other round.

    Returns what each measured, and for those who failed on the way, who are left out from then on,
    the reason. A round before the others warms everything up and is not counted.
    """
    found: dict[Group, dict[str, list[float]]] = {
        group: {name: [] for name in members} for group, members in groups.items()
    }
    failed: dict[str, str] = {}
    total = (rounds + 1) * len(groups)
    done = 0
    for number in range(rounds + 1):
        for group, members in groups.items():
            names = list(members) if number % 2 else list(members)[::-1]
            for name in names:
                if name in failed:
                    continue
                time.sleep(PAUSE_S)
                try:
                    measured = members[name]()
                except PeerError as error:
                    failed[name] = str(error)
                    continue
                if number:
                    found[group][name] += measured
            done += 1
            if progress is not None:
                progress(done, total)
    return found, failed
