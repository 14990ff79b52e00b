"""Loggers, for those who listen: without `import logging` nobody does, and a start saves it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from logging import Logger


def listener(name: str) -> Logger | None:
    """The logger of this name, None where this process has not imported `logging`."""
    logging = sys.modules.get("logging")
    found: Logger | None = None if logging is None else logging.getLogger(name)
    return found
