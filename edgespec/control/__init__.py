"""Deciding how much speculation pays, step by step."""

from edgespec.control.controller import Controller
from edgespec.control.cost_curve import CostCurve
from edgespec.control.stats import ReplyStats, SourceStats

__all__ = ["Controller", "CostCurve", "ReplyStats", "SourceStats"]
