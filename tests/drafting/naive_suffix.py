"""Suffix matching by brute force: the oracle of the automaton."""

from __future__ import annotations

from collections.abc import Sequence


def longest_match(text: Sequence[int]) -> int:
    """Length of the longest suffix that also ends earlier in the text."""
    n = len(text)
    for length in range(n - 1, 0, -1):
        suffix = list(text[n - length :])
        if any(list(text[end - length : end]) == suffix for end in range(length, n)):
            return length
    return 0


def followers(text: Sequence[int], context: Sequence[int]) -> list[int]:
    """The token after each earlier occurrence of `context`, oldest first."""
    length, wanted = len(context), list(context)
    return [
        text[end] for end in range(length, len(text)) if list(text[end - length : end]) == wanted
    ]
