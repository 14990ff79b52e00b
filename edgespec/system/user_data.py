"""What is kept between runs: files in the user's data folder that only their owner reads.

The folder is `EDGESPEC_DATA`, or the system's; `EDGESPEC_HISTORY=0` keeps and reads nothing. Any of
the files can be deleted at any time.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from platformdirs import user_data_path


def data_folder() -> Path | None:
    """Where to keep what outlives a run; None when the user wants nothing kept."""
    if os.environ.get("EDGESPEC_HISTORY", "") in ("0", "off", "no"):
        return None
    return user_folder()


def user_folder() -> Path:
    """The user's data folder."""
    override = os.environ.get("EDGESPEC_DATA")
    return Path(override) if override else user_data_path("edgespec", appauthor=False)


def write_private(path: Path, pieces: Iterable[bytes]) -> None:
    """Write a file that only its owner can read, whole or not at all; raises OSError."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "wb") as file:
            for piece in pieces:
                file.write(piece)
        partial.replace(path)
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
