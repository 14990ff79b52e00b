"""Names behind dots: the expression says what a plain loop says."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec.errors import OptionError
from edgespec.models.names import names_pattern, open_dereference

NAMES = ("ab", "a", "b_1", "ä")


def only_names(text: str) -> bool:
    """Whether what begins behind a single dot is a name, read character by character."""
    for place, character in enumerate(text):
        if character != "." or text[place - 1 : place] == "." or text[place + 1 : place + 2] == ".":
            continue
        word = ""
        for after in text[place + 1 :]:
            if not (after.isascii() and after.isalnum()) and after != "_" and after.isascii():
                break
            word += after
        if word and not word[0].isdigit() and word not in NAMES:
            return False
    return True


@given(st.text("ab_1ä. (", max_size=12))
def test_the_expression_matches_what_has_only_names(text: str) -> None:
    assert bool(re.fullmatch(names_pattern(NAMES), text)) == only_names(text)


@pytest.mark.parametrize(
    ("text", "end"),
    [("x = self.na", ".na"), ("self.", "."), ("self", ""), ("1.5", ""), ("a..b", ""), ("a.b c", ""),
     ("a.b.c", ".c"), ("...", "")],
)  # fmt: skip
def test_the_end_of_a_prompt_is_an_open_dereference(text: str, end: str) -> None:
    assert open_dereference(text) == end


def test_names_that_cannot_be_written_are_none() -> None:
    assert names_pattern(["a", "operator ==", "!_TAG", "3d"]) == names_pattern(["a"])
    with pytest.raises(OptionError, match="no identifier"):
        names_pattern(["+", ""])
