"""Threads, of which a system may have no more to give."""

from __future__ import annotations

import threading

from edgespec.errors import BudgetError


def start_thread(thread: threading.Thread) -> None:
    """Start a thread; raises BudgetError where the system refuses it."""
    try:
        thread.start()
    except RuntimeError:
        raise BudgetError(
            "the system refused this process another thread; end other programs, allow more "
            "processes (ulimit -u), or ask for fewer --threads"
        ) from None
