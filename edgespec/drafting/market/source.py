"""What the market keeps of each of its drafters."""

from __future__ import annotations

from edgespec.drafting.base import Drafter
from edgespec.drafting.market.account import CostlyAccount
from edgespec.drafting.tree import NO_PATH, DraftTree, Path
from edgespec.system.records import dataclass


@dataclass(slots=True)
class Source:
    """One drafter in the market; when a free one is asked next is in the ledger of `step.py`."""

    drafter: Drafter
    number: int
    """Its index in trees and statistics; 0 is the root, and agreement."""
    asked: bool = False
    spent_s: float = 0.0
    """Since the step began: feeding, proposing and learning."""
    tree: DraftTree | None = None
    """Its proposal in this step, if Python asked for one."""
    path: Path = NO_PATH
    """What that comes after."""
    account: CostlyAccount | None = None
    """Of a costly one."""
    turn: int = 0
    """Of all costly proposals, its last."""
    rested: bool = False
    """Whether other costly ones were asked since the proposal before this one."""


def brought(tree: DraftTree, number: int) -> int:
    """How many nodes are a source's, or come after one of its own."""
    theirs = [False]
    for parent, source in zip(tree.parents[1:].tolist(), tree.sources[1:].tolist(), strict=True):
        theirs.append(source == number or theirs[parent])
    return sum(theirs)
