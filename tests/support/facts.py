"""Facts that are kept of files, in a folder of a test's own."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path


def facts_in(folder: Path) -> Callable[..., Path]:
    """What stands in for `fact_path`."""

    def place(kind: str, *parts: object) -> Path:
        return folder / kind / hashlib.blake2b(repr(parts).encode(), digest_size=12).hexdigest()

    return place
