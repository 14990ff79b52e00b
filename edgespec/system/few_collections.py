"""How often Python looks for garbage: rarely while modules and models are loaded."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

THRESHOLDS = (100_000, 20, 100)
"""New objects before a look, and looks before the next older ones are looked at, as gc has them."""
_USUAL = (10_000, 10, 10)


@contextmanager
def few_collections() -> Iterator[None]:
    """Let Python look for garbage rarely: it was a tenth of a start."""
    before = gc.get_threshold()
    if before[0]:  # 0 is never
        gc.set_threshold(*map(max, THRESHOLDS, before))
    try:
        yield
    finally:
        gc.set_threshold(*before)


def usual_collections() -> None:
    """Look for garbage as often as a program needs that goes on for long, but no more among what
    is there now: what requests left behind stayed for thousands of them.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_USUAL)
