"""Measures how long buckets wait for their release, as consumers see it (T3, T8)."""

from __future__ import annotations

from collections.abc import Callable

from operators.sunion.slice import Slice
from operators.sunion.sunion import SUnion
from spe.figures.histogram import Histogram
from spe.stream.times import BEFORE_TIME


class WaitMeter:
    """Measures the time from the first arrival of a bucket to its first release.

    Time does not count while consumers do not wait for this replica, nor while a full output holds back stable slices.

    Args:
      sunion: has the clocks of the buckets.
      x_us: the X that waits are compared with.
      serves: do consumers wait for this replica?  Not while it recovers, nor while a partner serves in its place.

    Attributes:
      x_used: wait of the first new bucket of each release, relative to X.
    """

    def __init__(self, sunion: SUnion, x_us: int, serves: Callable[[], bool]) -> None:
        self._sunion = sunion
        self._x_us = x_us
        self._serves = serves
        self._longest_us = 0
        self.x_used = Histogram()
        #: End of the last bucket that was released, stable or tentative.
        self._released_until = BEFORE_TIME
        #: Before this moment no consumer waited for this replica, or X was larger.
        self._serves_since: int | None = None
        #: Since when a full output holds back stable slices; None: it does not.
        self._held_since: int | None = None

    def set_x(self, x_us: int, now: int) -> None:
        """Sets X: waits are measured from the beginning, against a shorter X only from now on (T8)."""
        if x_us < self._x_us:
            self._serves_since = now
        self._longest_us = 0
        self._x_us = x_us

    def step(self, now: int) -> None:
        """Notes the beginning of a step of work."""
        if not self._serves():
            self._serves_since = now

    def hold(self, now: int) -> None:
        """Notes that a full output holds back stable slices."""
        if self._held_since is None:
            self._held_since = now

    def end_hold(self, now: int) -> None:
        """Notes a release of a stable slice: the clocks of later buckets did not run while it was held back (T1)."""
        if self._held_since is not None:
            self._sunion.waits.shift(now - self._held_since, now)
            self._held_since = None

    def longest_us(self, now: int) -> int:
        """Returns the longest wait so far, including that of the waiting bucket."""
        return max(self._longest_us, self.waiting_us(now))

    def waiting_us(self, now: int) -> int:
        """Returns the wait of the next unreleased bucket; 0 while no consumer waits for this replica."""
        if not self._serves():
            return 0
        start = self._sunion.waits.waits_since(max(self._released_until, self._sunion.next))
        if start is None:
            return 0
        if self._serves_since is not None:
            start = max(start, self._serves_since)
        held = 0 if self._held_since is None else now - max(start, self._held_since)
        return max(0, now - start - held)

    def measured(self, release: Callable[[], Slice | None], now: int) -> Slice | None:
        """Releases a slice, a part of it perhaps again; counts the wait of its first new bucket."""
        before, waited_us = max(self._released_until, self._sunion.next), self.waiting_us(now)
        piece = release()
        if piece is not None and piece.end > before:
            self._longest_us, self._released_until = max(self._longest_us, waited_us), piece.end
            if self._serves():
                self.x_used.add(waited_us / self._x_us)
        return piece
