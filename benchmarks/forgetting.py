"""Rounds of one prompt must not find what an earlier round wrote."""

from __future__ import annotations

import numpy as np

from edgespec.engine.engine import Engine


def forget(engine: Engine) -> None:
    """Empty what drafters keep of earlier replies.

    In place, because new tables would cost page faults that only an engine's first reply pays.
    """
    for session in engine.scheduler.slots:
        session.market.feed_all()  # what a drafter that was not asked would read later
        for source in session.market._sources:
            drafter = source.drafter
            pool, history = getattr(drafter, "pool", None), getattr(drafter, "_history", None)
            for owner in (drafter, pool, history):
                for name in ("_rows", "_trials", "rows"):
                    table = getattr(owner, name, None)
                    if isinstance(table, np.ndarray):
                        table.fill(0)
