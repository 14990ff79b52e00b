"""Which files engines of others have run before on this machine, each first behind the wall."""

from __future__ import annotations

from pathlib import Path

from edgespec.system.disk_cache import fact_path, file_identity, keep_json, kept_json


def is_known(path: Path, backend: str) -> bool:
    """Whether an isolated engine computed with the file as it is, and lived."""
    return bool(kept_json(_place(path, backend)) == {"known": True})


def remember(path: Path, backend: str) -> None:
    """Keep that it did."""
    keep_json(_place(path, backend), {"known": True})


def _place(path: Path, backend: str) -> Path:
    return fact_path("known", *file_identity(path), backend)
