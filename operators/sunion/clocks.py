"""Clocks of buckets: how long each has waited (rule B3).  Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import pairwise

from spe.stream.times import BEFORE_TIME, END_OF_TIME, floor_to, saturating_add


class BucketClocks:
    """Clocks of buckets; each starts with the first arrival at or past the bucket's start, on any input.

    Args:
      bucket_us: width d of a bucket, microseconds of tuple time.
      old_us: as below.

    Attributes:
      old_us: ages are never compared with more than this, so older buckets share one clock, however long a failure
        lasts.  If it grows, buckets that share a clock have the age of the oldest.
      reached: end of the last bucket with a clock; only arrivals at or past it start one.
    """

    __slots__ = ("_bucket_us", "_buckets", "_starts", "old_us", "reached")

    def __init__(self, bucket_us: int, old_us: int) -> None:
        self._bucket_us = bucket_us
        self.old_us = old_us
        # One entry per advance: bucket starts, ascending, and the time when each was reached.  The first may stand for
        # many old buckets.
        self._buckets: list[int] = []
        self._starts: list[int] = []
        self.reached = BEFORE_TIME

    def __len__(self) -> int:
        return len(self._starts)

    def arrived(self, value: int, now: int) -> None:
        """Notes a tuple or boundary of time ``value``."""
        if value < self.reached or value >= END_OF_TIME:
            return  # an ended input does not tell when later buckets of other inputs are to be expected
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
        """Returns when the clock of the bucket that starts at ``bucket`` began, or None."""
        at = bisect_left(self._buckets, bucket)
        return self._starts[at] if at < len(self._starts) else None

    def waited(self, now: int) -> int:
        """Returns the age of the oldest running clock; 0 when none runs."""
        return now - self._starts[0] if self._starts else 0

    def shift(self, gap_us: int, now: int) -> None:
        """Discounts ``gap_us`` during which this process was frozen: data in its sockets are not late (T1)."""
        assert gap_us >= 0, "T1: a standstill has a length"
        self._starts = [min(start + gap_us, now) for start in self._starts]

    def forget(self, low: int) -> None:
        """Ends the clocks of buckets before that of ``low``; the rest of a bucket keeps the bucket's age."""
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
        """Returns the end of the last bucket that is at least ``age_us`` old."""
        starts = self._starts
        at = len(starts)
        while at and starts[at - 1] > now - age_us:
            at -= 1
        return saturating_add(self._buckets[at - 1], self._bucket_us) if at else BEFORE_TIME


class ArrivalClocks:
    """Clocks of the buckets that rows and boundaries have reached.

    Rows further beyond their input's boundary than usual are *ahead*.  An operator that ends releases its last windows,
    however far they reach: that does not tell when the other inputs are to be expected there.

    Args:
      ahead_us: rows further beyond their input's boundary than this are ahead, microseconds of tuple time.

    Attributes:
      near: clocks of buckets with rows that are not ahead.
      ahead: clocks of buckets with only rows that are ahead.
    """

    def __init__(self, bucket_us: int, old_us: int, ahead_us: int) -> None:
        self._bucket_us = bucket_us
        self._ahead_us = ahead_us
        self.near, self.ahead = BucketClocks(bucket_us, old_us), BucketClocks(bucket_us, old_us)
        #: Since when no fresh input lags the rows that are ahead; None: one does, or no rows are ahead.
        self._alone_since: int | None = None

    def rows_came(self, latest: int, known: int, now: int) -> None:
        """Notes rows up to time ``latest`` on an input whose progress is known up to ``known``."""
        near = latest if known == BEFORE_TIME else min(latest, saturating_add(known, self._ahead_us))
        self.near.arrived(near, now)
        if near < latest:
            self.ahead.arrived(latest, now)

    def set_old(self, old_us: int) -> None:
        """Sets the largest age that is compared, after a change of X."""
        self.near.old_us = self.ahead.old_us = old_us

    def shift(self, gap_us: int, now: int) -> None:
        """Discounts ``gap_us`` during which this process was frozen (T1)."""
        self.near.shift(gap_us, now)
        self.ahead.shift(gap_us, now)
        if self._alone_since is not None:
            self._alone_since = min(self._alone_since + gap_us, now)

    def forget(self, low: int) -> None:
        """Ends the clocks of buckets before that of ``low``."""
        self.near.forget(low)
        self.ahead.forget(low)

    def may_be_due(self, now: int, wait_us: int) -> bool:
        """May a bucket be due that has waited for ``wait_us``?  Else SUnion.due need not be called."""
        return bool(self.ahead) or self.near.waited(now) >= wait_us

    def waits_since(self, time: int) -> int | None:
        """Returns when the clock of the bucket of ``time`` began; None: nothing has reached it."""
        return self.near.start(floor_to(time, self._bucket_us))

    def end(self, complete: int | None, now: int, *, wait_us: int, hard_us: int) -> int:
        """Returns the end of the last bucket that may not wait any longer (T3).

        Args:
          complete: time up to which all fresh inputs have delivered; None: none is fresh.
        """
        end = self.near.end_by_age(hard_us, now)
        if complete is not None:
            end = max(end, min(complete, self.near.end_by_age(wait_us, now)))
        if self._is_alone(END_OF_TIME if complete is None else complete, now, hard_us):
            end = max(end, self.ahead.end_by_age(hard_us, now))
        return end

    def _is_alone(self, complete: int, now: int, hard_us: int) -> bool:
        """Has no fresh input lagged the rows that are ahead for ``hard_us``?"""
        if not self.ahead or complete < self.ahead.reached:
            self._alone_since = None
            return False
        if self._alone_since is None:
            self._alone_since = now
        return now - self._alone_since >= hard_us

    def validate(self) -> None:
        """Asserts what holds between two events."""
        self.near.validate()
        self.ahead.validate()
