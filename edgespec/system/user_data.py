"""What is kept between runs: files in the user's data folder that only their owner reads, and how
such files are written.

The folder is `EDGESPEC_DATA`, or the system's; `EDGESPEC_HISTORY=0` keeps and reads nothing. Any of
the files can be deleted at any time.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path

from platformdirs import user_data_path

from edgespec.system.ownership import why_shared
from edgespec.system.whole_file import whole_file


def data_folder() -> Path | None:
    """Where to keep what outlives a run; None when the user wants nothing kept."""
    if keeps_nothing():
        return None
    folder = user_folder()
    return None if _told_shared(folder) else folder


def keeps_nothing() -> bool:
    """Whether the user wants nothing kept of what is said."""
    return os.environ.get("EDGESPEC_HISTORY", "") in ("0", "off", "no")


def user_folder() -> Path:
    """The user's data folder."""
    override = os.environ.get("EDGESPEC_DATA")
    return Path(override) if override else user_data_path("edgespec", appauthor=False)


@cache
def _told_shared(folder: Path) -> bool:
    """Whether others could change what is kept, which is then said once and not used."""
    why = why_shared(folder) if folder.exists() else ""
    if why:
        print(
            f"edgespec: the data folder {folder} cannot be used ({why}); nothing of this run is "
            "kept. Set EDGESPEC_DATA to a folder of your own.",
            file=sys.stderr,
        )
    return bool(why)


def make_private(folder: Path) -> None:
    """Make a folder, and those that it is in, for its owner alone; raises OSError."""
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    for place in reversed(missing):
        with suppress(FileExistsError):  # another process was faster
            place.mkdir(mode=0o700)
    if not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))


def write_private(path: Path, pieces: Iterable[bytes], *, lasting: bool = True) -> None:
    """Write a file that only its owner can read, whole or not at all; raises OSError.

    It is on the disk before it takes the place of what was there, unless it need not be `lasting`.
    """
    with whole_file(path, lasting=lasting) as file:
        file.writelines(pieces)
