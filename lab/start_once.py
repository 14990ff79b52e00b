"""One start of an engine, cut where it tells of its stages; imports what a start does."""

from __future__ import annotations

import time

PROMPT = "Tell me a story."


def times_of_a_start(model: str | None) -> list[float]:
    """When the phases of this process's start ended."""
    ends = [time.time()]
    import edgespec

    marks: dict[tuple[str, bool], float] = {}

    def progress(stage: str, done: int, total: int) -> None:
        if (stage, done) == ("kernels", 0) or (stage in ("kernels", "load") and done == total):
            marks[stage, done == total] = time.time()

    with edgespec.load(model, progress=progress) as engine:
        ends += [marks["kernels", False], marks["kernels", True], marks["load", True], time.time()]
        next(engine.stream(PROMPT, seed=1, max_tokens=8))
        ends.append(time.time())
    return ends
