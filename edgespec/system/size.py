"""Sizes as people type and read them: "2GiB", "512M", "1.5g", "50%", and back."""

from __future__ import annotations

import re

from edgespec.errors import OptionError

KIB = 1024
MIB = 1024**2
GIB = 1024**3
AUTO = "auto"

_UNITS = {
    "": 1, "b": 1,
    "k": KIB, "kib": KIB, "kb": 10**3,
    "m": MIB, "mib": MIB, "mb": 10**6,
    "g": GIB, "gib": GIB, "gb": 10**9,
    "t": 1024**4, "tib": 1024**4, "tb": 10**12,
}  # fmt: skip
_NUMBER = re.compile(r"([0-9]{1,20}(?:\.[0-9]{0,20})?|\.[0-9]{1,20})\s*([a-z]{0,3}|%)", re.ASCII)
_LARGEST = 2**62
_EXAMPLES = 'write it like "2GiB", "512MiB", "1.5g", "50%" or "auto"'


def is_auto(text: str | int) -> bool:
    """Whether the caller leaves the choice to EdgeSpec."""
    return isinstance(text, str) and text.strip().lower() == AUTO


def parse_size(text: str | int, *, whole_bytes: int | None = None) -> int:
    """Read a size and return bytes, rounded down.

    `K`, `M`, `G`, `T` and `KiB` ... `TiB` are powers of 1024, `KB` ... `TB` powers of 1000, a bare
    number is bytes, and `50%` is a share of `whole_bytes`. Case and spaces do not matter.
    Raises OptionError for anything else, for nothing, and for more than 100 %.
    """
    if isinstance(text, int) and not isinstance(text, bool):
        return _checked(text, 1, text)
    match = _NUMBER.fullmatch(text.strip().lower()) if isinstance(text, str) else None
    if match is None:
        raise OptionError(f"{text!r} is not a size; {_EXAMPLES}")
    whole, _, decimals = match[1].partition(".")
    number, parts, unit = int(whole + decimals), 10 ** len(decimals), match[2]
    if unit == "%":
        return _share(number, parts, text, whole_bytes)
    if unit not in _UNITS:
        raise OptionError(f"{text!r} has the unit {match[2]!r}, which is not known; {_EXAMPLES}")
    return _checked(number * _UNITS[unit], parts, text)


def _share(percent: int, parts: int, text: str | int, whole_bytes: int | None) -> int:
    """A share of `percent / parts` per cent."""
    if whole_bytes is None:
        raise OptionError(f"{text!r} is a share, and a size in bytes is needed here, like 512MiB")
    if not 0 < percent <= 100 * parts:
        raise OptionError(f"{text!r} is not a share of the memory; write more than 0% up to 100%")
    return _checked(whole_bytes * percent, 100 * parts, text)


def _checked(size: int, parts: int, text: str | int) -> int:
    """`size / parts` bytes, exactly, rounded down."""
    if not parts <= size <= _LARGEST * parts:
        raise OptionError(f"{text!r} is not a size any memory has; {_EXAMPLES}")
    return size // parts


def format_size(size_bytes: int) -> str:
    """A size to read: "1.23 GiB", "412.3 MiB", "16.0 KiB", "512 B" (powers of 1024)."""
    sign, size = ("-", -size_bytes) if size_bytes < 0 else ("", size_bytes)
    if size < KIB:
        return f"{sign}{size} B"
    for unit, scale, digits in (("KiB", KIB, 1), ("MiB", MIB, 1), ("GiB", GIB, 2)):
        number = f"{size / scale:.{digits}f}"
        if float(number) < 1024:
            return f"{sign}{number} {unit}"
    return f"{sign}{size / 1024**4:.2f} TiB"


def option_size(size_bytes: int) -> str:
    """A size to type, rounded up to whole MiB so that what fits keeps fitting: "391MiB"."""
    return f"{max(1, -(-size_bytes // MIB))}MiB"


def share_size(size_bytes: int) -> str:
    """A size to type, rounded down to whole MiB, for the most that may be asked: "4812MiB"."""
    return f"{max(1, size_bytes // MIB)}MiB"
