"""The budget: how many bytes this process may be resident in, from its start to its end."""

from __future__ import annotations

from typing import Self

from edgespec.errors import BudgetError
from edgespec.system.hardware import MemorySnapshot
from edgespec.system.records import dataclass
from edgespec.system.size import MIB, format_size, is_auto, parse_size, share_size

SMALLEST_RESERVE_BYTES = 256 * MIB


@dataclass(frozen=True, slots=True)
class Budget:
    """A promise about peak resident memory, and the snapshot it was made on."""

    size_bytes: int
    asked: str
    """What the user wrote."""
    snapshot: MemorySnapshot

    @classmethod
    def parse(cls, text: str | int, snapshot: MemorySnapshot) -> Self:
        """Read "2GiB", "50%", "auto" or a number of bytes against what the machine has now.

        `auto` is all that is reachable less `reserve_bytes`; a percentage is of the machine's
        memory or the control group's limit. Raises OptionError when `text` is not a size and
        BudgetError when the machine has less free or the process already holds more.
        """
        if is_auto(text):
            size = snapshot.reachable_bytes - reserve_bytes(snapshot)
            if size <= snapshot.process_resident_bytes:
                raise BudgetError(
                    f"not enough free memory: {_state(snapshot)}, and "
                    f"{format_size(reserve_bytes(snapshot))} are kept in reserve; close other "
                    "programs, or set a size with --memory"
                )
        else:
            size = parse_size(text, whole_bytes=snapshot.usable_bytes)
            _check(size, str(text), snapshot)
        return cls(size, str(text).strip(), snapshot)

    def describe(self) -> str:
        """One sentence on where the number comes from."""
        size = format_size(self.size_bytes)
        if is_auto(self.asked):
            reserve = format_size(reserve_bytes(self.snapshot))
            return f"budget {size}: {_state(self.snapshot)}; {reserve} are kept in reserve"
        return f"budget {size}: as requested ({self.asked}); {_state(self.snapshot)}"


def reserve_bytes(snapshot: MemorySnapshot) -> int:
    """What `auto` leaves to everything else: 10 % of the memory, at least 256 MiB.

    On a machine or container under 1 GiB the least is a quarter of its memory instead.
    """
    usable = snapshot.usable_bytes
    return max(usable // 10, min(SMALLEST_RESERVE_BYTES, usable // 4))


def _check(size: int, text: str, snapshot: MemorySnapshot) -> None:
    if size > snapshot.reachable_bytes:
        raise BudgetError(
            f"--memory {text} is {format_size(size)}, but only {_state(snapshot)}; the most this "
            f"process can get now is --memory {share_size(snapshot.reachable_bytes)}"
        )
    if size < snapshot.process_resident_bytes:
        held = format_size(snapshot.process_resident_bytes)
        raise BudgetError(
            f"--memory {text} is {format_size(size)}, but Python and its libraries alone already "
            f"use {held}; `edgespec plan` shows what a model needs"
        )


def _state(snapshot: MemorySnapshot) -> str:
    free, usable = format_size(snapshot.free_bytes), format_size(snapshot.usable_bytes)
    limited = (
        snapshot.cgroup_limit_bytes is not None
        and snapshot.cgroup_limit_bytes <= snapshot.total_bytes
    )
    where = "the control group allows" if limited else "the machine has"
    return (
        f"{free} of the {usable} {where} are free, besides the "
        f"{format_size(snapshot.process_resident_bytes)} this process uses"
    )
