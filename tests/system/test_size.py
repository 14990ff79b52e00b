from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec.errors import OptionError
from edgespec.system.size import format_size, is_auto, option_size, parse_size, share_size

KIB, MIB, GIB = 1024, 1024**2, 1024**3


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2GiB", 2 * GIB),
        ("2 gib", 2 * GIB),
        ("2GB", 2 * 10**9),
        ("512M", 512 * MIB),
        ("512MiB", 512 * MIB),
        ("512mb", 512 * 10**6),
        ("1.5g", 3 * GIB // 2),
        (".5G", GIB // 2),
        ("64k", 64 * KIB),
        ("1t", 1024 * GIB),
        (" 1048576 ", MIB),
        ("1048576b", MIB),
        (1048576, MIB),
        ("50%", 4 * GIB),
        ("12.5 %", GIB),
        ("100%", 8 * GIB),
        ("0.0000001g", 107),
    ],
)
def test_sizes_are_read(text: str | int, expected: int) -> None:
    assert parse_size(text, whole_bytes=8 * GIB) == expected


@pytest.mark.parametrize(
    "text",
    ["", " ", "auto", "lots", "-1", "-1GiB", "+2g", "0", "0g", "0%", "101%", "1e9", "nan", "inf%",
     "1,5g", "2 Gi B", "2GiBB", "5q", "1..5g", "2GiB 3MiB", "١g", "9" * 30, "99999999999t", 0, -5,
     True],
)  # fmt: skip
def test_nonsense_is_one_clear_sentence(text: str | int) -> None:
    with pytest.raises(OptionError) as caught:
        parse_size(text, whole_bytes=8 * GIB)
    message = str(caught.value)
    assert repr(text) in message
    assert "\n" not in message


def test_a_share_needs_a_whole() -> None:
    with pytest.raises(OptionError, match="is a share"):
        parse_size("50%")


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (MIB - 1, "1.0 MiB"),
        (432_329_933, "412.3 MiB"),
        (GIB - 1, "1.00 GiB"),
        (1_320_702_444, "1.23 GiB"),
        (5 * 1024 * GIB, "5.00 TiB"),
        (-2048, "-2.0 KiB"),
    ],
)
def test_sizes_are_written(size: int, expected: str) -> None:
    assert format_size(size) == expected


@given(st.integers(1, 2**50))
def test_what_is_written_can_be_read(size: int) -> None:
    assert parse_size(format_size(size)) == pytest.approx(size, rel=0.051)
    assert parse_size(str(size)) == size
    assert size <= parse_size(option_size(size)) < size + MIB
    assert parse_size(share_size(size)) <= max(size, MIB)


@given(st.text(max_size=12))
def test_any_text_is_a_size_or_an_option_error(text: str) -> None:
    with contextlib.suppress(OptionError):
        assert parse_size(text, whole_bytes=GIB) >= 1


@pytest.mark.parametrize(("text", "expected"), [("auto", True), (" AUTO ", True), ("2g", False)])
def test_auto(text: str, expected: bool) -> None:
    assert is_auto(text) is expected
