"""Memory: the budget, what a session costs, the plan that fits, and what was really used."""

from __future__ import annotations

from edgespec.memory.budget import Budget
from edgespec.memory.calibration import Runtime, runtime
from edgespec.memory.hardware import Hardware, MemorySnapshot, hardware, snapshot
from edgespec.memory.plan import Footprint, FootprintItem, Plan
from edgespec.memory.planner import Planner
from edgespec.memory.size import format_size, parse_size

__all__ = [
    "Budget",
    "Footprint",
    "FootprintItem",
    "Hardware",
    "MemorySnapshot",
    "Plan",
    "Planner",
    "Runtime",
    "format_size",
    "hardware",
    "parse_size",
    "runtime",
    "snapshot",
]
