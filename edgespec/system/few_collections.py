"""Looking for garbage less often, while modules and models are loaded: neither is any."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

THRESHOLDS = (100_000, 20, 100)
"""New objects before a look, and looks before the next older ones are looked at, as gc has them."""


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
