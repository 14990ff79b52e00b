"""What a grammar says about drafts: which must come, and which cannot."""

from __future__ import annotations

from edgespec.drafting.tree import DraftTree
from edgespec.engine.generation import Generation


def certain(generation: Generation, most: int) -> DraftTree | None:
    """A chain of at most so many tokens of the text that must come next, None where none must."""
    constraint = generation.constraint
    if constraint is None or not generation.request.speculation:
        return None
    most = min(most, generation.most_drafts)
    tokens = constraint.drafts()[:most] if most > 0 else ()
    if not tokens:
        return None
    slot = generation.slot
    return DraftTree.chain(slot.ids[-1], tokens, [1.0] * len(tokens), len(slot.market.names))


def allowed(generation: Generation, tree: DraftTree) -> DraftTree:
    """The nodes of a tree that may come."""
    constraint = generation.constraint
    if constraint is None or len(tree) == 1:
        return tree
    return tree.only(constraint.allowed(tree.tokens, tree.parents))
