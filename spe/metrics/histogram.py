"""Counts of values between fixed bounds."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Final

from spe.status import HistogramStatus

#: Of a delay relative to X: 1 is all of it.
X_BOUNDS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0, 1.25, 1.5, 2.0, 5.0)


class Histogram:
    """How many values were at most each bound, and their sum.

    Args:
      bounds: ascending.
    """

    def __init__(self, bounds: Sequence[float] = X_BOUNDS) -> None:
        self.bounds = tuple(bounds)
        self.sum = 0.0
        self.largest = 0.0
        #: Values in each interval; the last one has no upper bound.
        self._counts = [0] * (len(self.bounds) + 1)

    def add(self, value: float) -> None:
        """Counts one value."""
        self._counts[bisect_left(self.bounds, value)] += 1
        self.sum += value
        self.largest = max(self.largest, value)

    def add_many(self, upto: Sequence[int], count: int, total: float, largest: float) -> None:
        """Counts many values.

        Args:
          upto: how many of them are at most each bound.
          count: how many they are.
          total: their sum.
          largest: of them.
        """
        before = 0
        for at, until in enumerate(upto):
            self._counts[at] += until - before
            before = until
        self._counts[-1] += count - before
        self.sum += total
        self.largest = max(self.largest, largest)

    def status(self) -> HistogramStatus:
        return HistogramStatus(bounds=self.bounds, counts=tuple(self._counts), sum=self.sum, largest=self.largest)


def merged(parts: Iterable[HistogramStatus | None]) -> HistogramStatus | None:
    """All values of histograms with the same bounds; None where there is no value."""
    known = [one for one in parts if one is not None and any(one.counts)]
    if not known:
        return None
    return HistogramStatus(
        bounds=known[0].bounds,
        counts=tuple(sum(each) for each in zip(*(one.counts for one in known))),
        sum=sum(one.sum for one in known),
        largest=max(one.largest for one in known),
    )


def at_most(one: HistogramStatus, share: float) -> float:
    """What this share of the values is at most: the bound of its interval, and no more than the largest value."""
    wanted, seen = share * sum(one.counts), 0
    for bound, count in zip(one.bounds, one.counts):
        seen += count
        if seen >= wanted:
            return min(bound, one.largest)
    return one.largest
