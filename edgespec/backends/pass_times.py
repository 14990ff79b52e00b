"""What passes of a target take, by their number of nodes."""

from __future__ import annotations

import time

from edgespec.backends.base import Target
from edgespec.backends.passes import Progress, Rows, TokenTree
from edgespec.system.durations import seconds_since

_SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
_SECONDS, _MOST_ROUNDS = 0.2, 20
"""Short passes are tried more often than asked, for so long: another program that holds a processor
for some milliseconds spoils many of them at once.
"""
_LATEST_S = 4.0
"""After so long a round is the last: beside other programs, threads that wait for each other make
passes a hundred times as long, and a start must not.
"""


def curve_sizes(target: Target) -> tuple[int, ...]:
    """Numbers of nodes the cost curve is measured for."""
    room = min(target.max_nodes, target.context_length - target.own.length)
    return tuple(size for size in _SIZES if size <= room)


def time_pass(target: Target, num_nodes: int, rows: Rows = "all") -> float:
    """Seconds of one forward pass over a chain, with logits of these rows; nothing of it stays."""
    tree = TokenTree.chain([(7 * i) % target.spec.vocab_size for i in range(num_nodes)])
    start = time.perf_counter()
    target.own.forward(tree, rows=rows)
    seconds = seconds_since(start)
    target.own.expect(())
    return seconds


def pass_times(
    target: Target, progress: Progress | None = None, *, trials: int = 5, least: bool = False
) -> dict[int, float]:
    """The cost curve: seconds of a pass by its number of nodes, on top of what is committed.

    Lower quartiles of alternating passes over chains, at least `trials` of each, or, with `least`,
    the shortest: what other programs took is not in them. Fewer where they take long. Nothing stays
    committed.
    """
    sizes = curve_sizes(target)
    for size in sizes:  # the first round warms caches and compiles kernels
        time_pass(target, size)
    if progress is not None:
        progress(1, trials + 1)
    seconds: dict[int, list[float]] = {size: [] for size in sizes}
    rounds, start, gone = 0, time.perf_counter(), 0.0
    while gone < _LATEST_S and (
        rounds < trials or (not least and rounds < _MOST_ROUNDS and gone < _SECONDS)
    ):
        for size in sizes:
            seconds[size].append(time_pass(target, size))
        rounds, gone = rounds + 1, time.perf_counter() - start
        if progress is not None and rounds <= trials:
            progress(rounds + 1, trials + 1)
    place = 0 if least else rounds // 4
    return {size: sorted(values)[place] for size, values in seconds.items()}
