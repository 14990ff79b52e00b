"""Which files engines of others have run before on this machine, each first behind the wall."""

from __future__ import annotations

import hashlib
from pathlib import Path

from edgespec.system.disk_cache import cache_folder, keep_json, kept_json


def is_known(path: Path, backend: str) -> bool:
    """Whether an isolated engine computed with the file as it is, and lived."""
    return bool(kept_json(_place(path, backend)) == {"known": True})


def remember(path: Path, backend: str) -> None:
    """Keep that it did."""
    keep_json(_place(path, backend), {"known": True})


def _place(path: Path, backend: str) -> Path:
    status = path.stat()
    parts = (str(path.resolve()), status.st_size, status.st_mtime_ns, backend)
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=12).hexdigest()
    return cache_folder() / "known" / f"{digest}.json"
