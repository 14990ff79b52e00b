"""What chats leave in the user's data folder: conversations, and what was typed."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

from edgespec.errors import EdgeSpecError, OptionError
from edgespec.system.user_data import data_folder, make_private, write_private

LAST = "last"
"""The conversation that `edgespec chat --resume` goes on with, written after every turn."""
_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,63}")
_SUFFIX = ".json"
_LARGEST_HISTORY_BYTES = 2**20


def place_of(name: str) -> Path:
    """The file of a conversation: a path, or a name in the data folder; raises OptionError."""
    if name.endswith(_SUFFIX) or any(mark in name for mark in ("/", "\\", "~")):
        return Path(name).expanduser()
    if not _NAME.fullmatch(name):
        raise OptionError(
            f"a conversation cannot be called {name!r}: give letters, digits, '.', '_' and '-', or "
            "the path of a .json file"
        )
    folder = _folder()
    if folder is None:
        raise OptionError(
            "conversations have no names while nothing is kept; give the path of a .json file, or "
            "unset EDGESPEC_HISTORY"
        )
    return folder / f"{name}{_SUFFIX}"


def last_place() -> Path | None:
    """Where the last conversation is; None when nothing is kept."""
    folder = _folder()
    return None if folder is None else folder / f"{LAST}{_SUFFIX}"


def saved_names() -> list[str]:
    """Conversations that have a name."""
    folder = _folder()
    found = [] if folder is None else sorted(folder.glob(f"*{_SUFFIX}"))
    return [path.stem for path in found]


def make_room(path: Path) -> None:
    """Make the folder of our own for a conversation; raises EdgeSpecError."""
    folder = _folder()
    if folder is not None and path.parent == folder:
        try:
            make_private(folder)
        except OSError as error:
            raise EdgeSpecError(f"cannot write to {folder}: {error.strerror or error}") from None


def history_place() -> Path | None:
    """The file of what was typed, private and not too long; None when nothing is kept."""
    folder = _folder()
    if folder is None:
        return None
    place = folder / "history"
    with suppress(OSError):
        make_private(folder)
        os.close(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))
        raw = place.read_bytes()
        if len(raw) > _LARGEST_HISTORY_BYTES:  # entries begin with an empty line
            _, _, latest = raw[-_LARGEST_HISTORY_BYTES // 2 :].partition(b"\n\n")
            write_private(place, [b"\n", latest])
        return place
    return None


def _folder() -> Path | None:
    kept = data_folder()
    return None if kept is None else kept / "chats"
