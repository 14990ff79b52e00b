"""A step of a state in eight words; `state.py` tells what it does."""

from __future__ import annotations

from edgespec.memory.plan.state_layout import STEP_WORDS

KEY, DELTA, DECAY, QUERY, VALUE, BETA, SKIP, OUTPUT = range(8)
"""Addresses of f32; single numbers at DECAY, BETA and SKIP (0: no skip)."""
STEP_BYTES = 8 * STEP_WORDS
