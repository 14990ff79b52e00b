"""What nodes that leave a pass early must be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from edgespec.errors import BackendError, ContextOverflowError


class _Adapted(Protocol):
    def has_adapter(self, layer: int) -> bool: ...


def check_adapted(target: _Adapted, layer: int, adapted: bool) -> None:
    """Raise BackendError for an exit that has no adapter, if it is to go through one."""
    if adapted and not target.has_adapter(layer):
        raise BackendError(
            f"an exit after layer {layer} was to go through an adapter, and it has none; fit "
            "one with `edgespec adapt`"
        )


def check_early(early: Any, layer: int, parents: Sequence[int], room: int) -> None:
    """Raise BackendError for nodes that do not go on from the `early` ones before (or None),
    ContextOverflowError for more than there is room for.
    """
    first = 0 if early is None else len(early)
    if first and early.layer != layer:
        raise BackendError(
            f"an exit after layer {layer} was asked for, and the nodes before left after layer "
            f"{early.layer}; commit or truncate first"
        )
    if any(
        not (parent == -1 if number == 0 else 0 <= parent < number)
        for number, parent in enumerate(parents, first)
    ):
        raise BackendError(
            f"nodes that go on from {first} were given the parents {list(parents)}; parents "
            "come before their children, and only node 0 is a root"
        )
    if not 1 <= len(parents) <= room:
        raise ContextOverflowError(
            f"{len(parents)} nodes were to leave a pass early, and there is room for {room}; "
            "load with a larger --context or more nodes"
        )
