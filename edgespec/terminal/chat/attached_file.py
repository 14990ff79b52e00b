"""Text files that go along with a message."""

from __future__ import annotations

import re
from pathlib import Path

from edgespec.errors import OptionError
from edgespec.terminal.text_io import decode

_LARGEST_BYTES = 16 * 2**20
_QUOTED = re.compile(r'"([^"]+)"\s*(.*)', re.DOTALL)


def attached_file(typed: str) -> tuple[str, str]:
    """A file as the model is to see it, and the message typed after its path.

    A path with spaces stands alone or in double quotes. Raises OptionError for a file that cannot
    be read, EdgeSpecError for one that is not UTF-8 text.
    """
    path, said = _split(typed)
    try:
        if path.is_file() and path.stat().st_size > _LARGEST_BYTES:
            raise OptionError(f"{path} is larger than {_LARGEST_BYTES // 2**20} MiB")
        text = decode(path.read_bytes(), str(path))
    except OSError as error:
        raise OptionError(f"cannot read {path}: {error.strerror or error}") from None
    fence = "```"
    while fence in text:  # so that the text cannot end it
        fence += "`"
    return f"{path.name}:\n{fence}\n{text.removesuffix(chr(10))}\n{fence}", said


def _split(typed: str) -> tuple[Path, str]:
    quoted = _QUOTED.fullmatch(typed)
    if quoted is not None:
        return Path(quoted[1]).expanduser(), quoted[2]
    whole = Path(typed).expanduser()
    if whole.exists():
        return whole, ""
    path, _, said = typed.partition(" ")
    return Path(path).expanduser(), said.strip()
