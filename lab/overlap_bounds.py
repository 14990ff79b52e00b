"""What three ways of drafting beside the target could bring at most, on twelve assumed machines.

    python -m lab.overlap_bounds [--lengths 16]

The machines are those of `lab/overlap_sim.py`. Drafting in turn at its best length is 1. Bounds
assume that every verdict is foreseen and that nothing is lost to waiting, so no program reaches
them:

    mirror    "Mirror Speculative Decoding": drafting goes on from the target's early exits, which
              are always right, so a step takes as long as the longer of the two
    two       "Distributed Speculative Inference" (DSI) with two instances of the target: a right
              token costs a draft, and a wrong one a pass of the target; where memory is shared,
              each instance holds the other up as drafts do
    parallel  "EasySpec": layers of the draft in parallel on what the target leaves idle, so a draft
              takes half its time where that is another device, and its whole time on one memory
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from lab.harness import Asked, Rows, Script, option
from lab.overlap_sim import PROFILES
from lab.overlap_world import Profile

script = Script(__doc__)


def pass_s(told: Profile, num_nodes: int) -> float:
    return float(np.interp(num_nodes, list(told.passes), list(told.passes.values())))


def tokens(right: float, length: int) -> float:
    """Of a step that verifies a chain of so many drafts."""
    return float(sum(right**place for place in range(length + 1)))


def in_turn(told: Profile, lengths: Iterable[int], draft_s: float) -> float:
    return max(
        tokens(told.right, length) / (pass_s(told, length + 1) + length * draft_s)
        for length in lengths
    )


def mirror(told: Profile, lengths: Iterable[int]) -> float:
    return max(
        tokens(told.right, length)
        / max(
            pass_s(told, length + 1) * told.slowdown + told.hold_up * length * told.drafts[1],
            length * told.drafts[1],
        )
        for length in lengths
    )


def two(told: Profile) -> float:
    verified = pass_s(told, 1) * told.slowdown * (1 + told.hold_up)
    run = told.right / (1 - told.right)
    return (run + 1) / (run * told.drafts[1] + verified)


@script.command(option("--lengths", type=int, default=15))
def overlap_bounds(asked: Asked) -> Rows:
    """A row for each machine."""
    lengths = range(asked.lengths + 1)
    for told in PROFILES:
        base = in_turn(told, lengths, told.drafts[1])
        halved = told.drafts[1] / (1 if told.hold_up else 2)
        yield {
            "machine": told.name,
            "in turn, tokens/s": base,
            "mirror": mirror(told, lengths) / base,
            "two": two(told) / base,
            "parallel": in_turn(told, lengths, halved) / base,
        }


if __name__ == "__main__":
    script.run()
