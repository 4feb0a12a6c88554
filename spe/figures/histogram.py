"""Counts of values between fixed bounds."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Final

from spe.status import HistogramStatus

#: Bounds for delays relative to X.
X_BOUNDS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0, 1.25, 1.5, 2.0, 5.0)


class Histogram:
    """Counts values up to each bound, and their sum.

    Args:
      bounds: ascending.
    """

    def __init__(self, bounds: Sequence[float] = X_BOUNDS) -> None:
        self.bounds = tuple(bounds)
        self.sum = 0.0
        self.largest = 0.0
        #: Number of values in each interval; the last one has no upper bound.
        self._counts = [0] * (len(self.bounds) + 1)

    def add(self, value: float) -> None:
        """Adds a value."""
        self._counts[bisect_left(self.bounds, value)] += 1
        self.sum += value
        self.largest = max(self.largest, value)

    def add_many(self, upto: Sequence[int], count: int, total: float, largest: float) -> None:
        """Adds many values.

        Args:
          upto: for each bound, the number of values up to it.
          count: number of values.
          total: their sum.
          largest: largest value.
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
    """Merges histograms with the same bounds; None if there is no value."""
    known = [part for part in parts if part is not None and any(part.counts)]
    if not known:
        return None
    return HistogramStatus(
        bounds=known[0].bounds,
        counts=tuple(sum(each) for each in zip(*(part.counts for part in known))),
        sum=sum(part.sum for part in known),
        largest=max(part.largest for part in known),
    )


def at_most(histogram: HistogramStatus, share: float) -> float:
    """Upper bound of this share of the values: a bound of an interval, and no more than the largest value."""
    wanted, total = share * sum(histogram.counts), 0
    for bound, count in zip(histogram.bounds, histogram.counts):
        total += count
        if total >= wanted:
            return min(bound, histogram.largest)
    return histogram.largest
