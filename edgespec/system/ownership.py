"""Who could have written a file or folder: machine code is loaded from ours alone."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def why_shared(folder: Path) -> str:
    """Why others could change what is in a folder, "" where only this user and the administrator
    can, or where the system does not tell (Windows, whose user folders are the user's own).
    """
    if not hasattr(os, "getuid"):
        return ""
    path = Path(os.path.abspath(folder))
    for place in {path.resolve(), path}:
        for owners, part in (
            ({os.getuid()}, place),
            *(({os.getuid(), 0}, p) for p in place.parents),
        ):
            try:
                why = _why(part, part.lstat(), owners)
            except FileNotFoundError:
                continue  # it is made where others cannot write, or it is refused for that
            except OSError as error:
                why = error.strerror or type(error).__name__
            if why:
                return why
    return ""


def is_own(status: os.stat_result) -> bool:
    """Whether an opened file is this user's, and nobody else may write it."""
    if not hasattr(os, "getuid"):
        return True
    mine = status.st_uid == os.getuid() and stat.S_ISREG(status.st_mode)
    return mine and not _is_open_to_others(status)


def is_kept_from_others(status: os.stat_result) -> bool:
    """Whether nobody but this user and the administrator may write an opened file."""
    if not hasattr(os, "getuid"):
        return True
    return status.st_uid in (os.getuid(), 0) and not _is_open_to_others(status)


def _why(place: Path, status: os.stat_result, owners: set[int]) -> str:
    if stat.S_ISLNK(status.st_mode):
        return "" if status.st_uid in {*owners, 0} else f"another user made the link {place}"
    if status.st_uid not in owners:
        return f"{place} belongs to another user"
    if _is_open_to_others(status) and not status.st_mode & stat.S_ISVTX:
        return f"other users may write to {place}"
    return ""


def _is_open_to_others(status: os.stat_result) -> bool:
    if status.st_mode & stat.S_IWOTH:
        return True
    return bool(status.st_mode & stat.S_IWGRP) and not _is_own_group(status.st_gid)


def _is_own_group(group: int) -> bool:
    """Whether a group is this user's alone, as many systems give everybody one."""
    import grp
    import pwd

    if group == 0:
        return True  # the administrator's
    try:
        told, user = grp.getgrgid(group), pwd.getpwuid(os.getuid())
    except KeyError:
        return False
    return told.gr_name == user.pw_name and set(told.gr_mem) <= {user.pw_name}
