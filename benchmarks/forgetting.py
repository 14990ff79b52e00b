"""Rounds of one prompt must not find what an earlier round wrote."""

from __future__ import annotations

from edgespec.drafting.trigram import TrigramDrafter
from edgespec.engine import Engine


def forget(engine: Engine) -> None:
    """Empty what the default drafters keep of earlier replies.

    In place, because new tables would cost page faults that only an engine's first reply pays.
    """
    for source in engine._session.market._sources:
        if isinstance(source.drafter, TrigramDrafter):
            source.drafter._rows.fill(0)
            source.drafter._trials.fill(0)
