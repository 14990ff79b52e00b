"""Several measurements of one thing: the median, with the lowest and highest beside it."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import Self

from edgespec.system.records import dataclass


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, lowest and highest of some seconds, or of some rates per second."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Self:
        known = list(values)
        return cls(statistics.median(known), min(known), max(known))

    def rate(self, amount: float) -> Spread:
        """These are seconds that `amount` took: the same as amounts per second."""
        return Spread(amount / self.median, amount / self.high, amount / self.low)

    def as_dict(self, unit: str, scale: float = 1.0) -> dict[str, float]:
        """For JSON: the median under the unit's name, the others with `low_` and `high_` ahead."""
        values = {unit: self.median, f"low_{unit}": self.low, f"high_{unit}": self.high}
        return {name: value * scale for name, value in values.items()}
