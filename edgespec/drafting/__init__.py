"""Drafters: objects that guess what the target will say next."""

from edgespec.drafting.base import Drafter, DraftTree, StepOutcome, TopTokens
from edgespec.drafting.market import Market
from edgespec.drafting.suffix_automaton import SuffixAutomatonDrafter

__all__ = ["DraftTree", "Drafter", "Market", "StepOutcome", "SuffixAutomatonDrafter", "TopTokens"]
