"""What passes of a target take, by their number of nodes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgespec.backends.base import Target

_SECONDS, _MOST_ROUNDS = 0.2, 20
"""Short passes are tried more often than asked, for so long: another program that holds a processor
for some milliseconds spoils many of them at once.
"""


def pass_times(
    target: Target,
    progress: Callable[[int, int], None] | None = None,
    *,
    trials: int,
    least: bool,
) -> dict[int, float]:
    """Seconds by number of nodes: of at least `trials` passes each, in turns, the lower quartile or
    the `least`.
    """
    sizes = target.curve_sizes()
    for size in sizes:  # the first round warms caches and compiles kernels
        target.time_pass(size)
    if progress is not None:
        progress(1, trials + 1)
    seconds: dict[int, list[float]] = {size: [] for size in sizes}
    rounds, end = 0, time.perf_counter() + _SECONDS
    while rounds < trials or (not least and rounds < _MOST_ROUNDS and time.perf_counter() < end):
        for size in sizes:
            seconds[size].append(target.time_pass(size))
        rounds += 1
        if progress is not None and rounds <= trials:
            progress(rounds + 1, trials + 1)
    place = 0 if least else rounds // 4
    return {size: sorted(values)[place] for size, values in seconds.items()}
