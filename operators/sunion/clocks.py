"""How long each bucket has waited (rule B3).  Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import pairwise

from spe.stream.times import BEFORE_TIME, END_OF_TIME, floor_to, saturating_add


class BucketClocks:
    """The clock of a bucket starts with the first arrival at or past its start, on any input.

    Args:
      bucket_us: width d of a bucket, microseconds of tuple time.
      old_us: as below.

    Attributes:
      old_us: no age is ever compared with more than this, so buckets that are older share one clock: a failure may last
        for as long as it likes.  If it grows, those that share one go with the oldest of them.
      reached: end of the last bucket that has a clock; only what lies at or past it starts one.
    """

    __slots__ = ("_bucket_us", "_buckets", "_starts", "old_us", "reached")

    def __init__(self, bucket_us: int, old_us: int) -> None:
        self._bucket_us = bucket_us
        self.old_us = old_us
        # One entry per advance: bucket starts ascending, and when that far had been reached.  The first may stand for
        # many old ones.
        self._buckets: list[int] = []
        self._starts: list[int] = []
        self.reached = BEFORE_TIME

    def __len__(self) -> int:
        return len(self._starts)

    def arrived(self, value: int, now: int) -> None:
        """A tuple of time ``value``, or a boundary of that time."""
        if value < self.reached or value >= END_OF_TIME:
            return  # an input that has ended says nothing about when later buckets of the others are to be expected
        bucket = floor_to(value, self._bucket_us)
        self.reached = bucket + self._bucket_us
        starts = self._starts
        if len(starts) > 1 and starts[1] <= now - self.old_us:
            old = bisect_right(starts, now - self.old_us)
            self._buckets[:old] = [self._buckets[old - 1]]
            starts[:old] = [starts[0]]
        self._buckets.append(bucket)
        starts.append(now)

    def start(self, bucket: int) -> int | None:
        """When the clock of the bucket that starts at ``bucket`` began, or None."""
        at = bisect_left(self._buckets, bucket)
        return self._starts[at] if at < len(self._starts) else None

    def waited(self, now: int) -> int:
        """Age of the oldest running clock; 0 when none runs."""
        return now - self._starts[0] if self._starts else 0

    def shift(self, gap_us: int, now: int) -> None:
        """We were not running for the last ``gap_us``: what lies in the sockets is not late (T1)."""
        assert gap_us >= 0, "T1: a standstill has a length"
        self._starts = [min(start + gap_us, now) for start in self._starts]

    def forget(self, low: int) -> None:
        """Buckets before the one that ``low`` lies in wait no longer; the rest of a bucket is as old as the bucket."""
        if self._buckets and self._buckets[0] < (low := floor_to(low, self._bucket_us)):
            at = bisect_left(self._buckets, low)
            del self._buckets[:at]
            del self._starts[:at]

    def validate(self) -> None:
        """Asserts what holds between two events."""
        assert len(self._buckets) == len(self._starts), "B3: each clock has a start"
        assert all(a < b for a, b in pairwise(self._buckets)), "B3: clocks are in the order of their buckets"
        assert not self._buckets or self._buckets[-1] < self.reached, "B3: what was reached has a clock"

    def end_by_age(self, age_us: int, now: int) -> int:
        """End of the last bucket that is at least ``age_us`` old."""
        starts = self._starts
        at = len(starts)
        while at and starts[at - 1] > now - age_us:
            at -= 1
        return saturating_add(self._buckets[at - 1], self._bucket_us) if at else BEFORE_TIME
