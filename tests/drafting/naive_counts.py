"""Followers of contexts in plain dictionaries: the oracle of the hash table and of what grows from
it.
"""

from __future__ import annotations

from collections.abc import Sequence

Row = list[list[int]]
"""[token, weight] of each follower, heaviest first, of equals the latest."""


def count(row: Row, token: int, ways: int) -> None:
    """As the table counts: a newcomer takes the last place when all are taken."""
    known = [entry for entry in row if entry[0] == token]
    if known:
        weight = known[0][1] + 1
        row.remove(known[0])
    else:
        weight = 1
        if len(row) == ways:
            row.pop()
    place = len(row)
    while place and row[place - 1][1] <= weight:
        place -= 1
    row.insert(place, [token, weight])


class NaiveTable:
    """(context, follower) counts of a text, of all orders, without bounds."""

    def __init__(self, orders: int, ways: int) -> None:
        self.orders, self.ways = orders, ways
        self.rows: dict[tuple[int, ...], Row] = {}
        self.totals: dict[tuple[int, ...], int] = {}

    def feed(self, text: Sequence[int], begin: int = 0) -> None:
        for end in range(begin, len(text)):
            for order in range(1, min(self.orders, end) + 1):
                self.count(tuple(text[end - order : end]), text[end])

    def count(self, context: tuple[int, ...], token: int) -> None:
        count(self.rows.setdefault(context, []), token, self.ways)
        self.totals[context] = self.totals.get(context, 0) + 1

    def children(self, text: Sequence[int], rates: Sequence[float]) -> dict[int, float]:
        """Probabilities of the next token; `rates` by order and amount of evidence."""
        found: dict[int, float] = {}
        left = 1.0
        for order in range(min(self.orders, len(text)), 0, -1):
            context = tuple(text[len(text) - order :])
            total = self.totals.get(context, 0)
            given = left
            new = {}
            for token, weight in self.rows.get(context, []):
                if token not in found:
                    kind = (order - 1) * 3 + (0 if total <= 1 else 1 if total <= 3 else 2)
                    new[token] = rates[kind] * left * weight / total
                    given -= new[token]
            found |= new
            left = given
        return found
