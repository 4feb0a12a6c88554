"""How long buckets wait for their release, as consumers see it (T3, T8)."""

from __future__ import annotations

from collections.abc import Callable

from operators.sunion.slice import Slice
from operators.sunion.sunion import SUnion
from spe.metrics.histogram import Histogram
from spe.stream.times import BEFORE_TIME


class WaitMeter:
    """Measures the time from the first arrival of a bucket to its first release.

    Time does not count while nobody waits for this replica, nor while a full output holds back what is stable.

    Args:
      sunion: it has the clocks of the buckets.
      x_us: the X that waits are compared with.
      serves: do consumers wait for this replica?  Not while it recovers, nor while a partner serves in its place.

    Attributes:
      x_used: per release of something new, how long its first bucket had waited, relative to X.
    """

    def __init__(self, sunion: SUnion, x_us: int, serves: Callable[[], bool]) -> None:
        self._sunion = sunion
        self._x_us = x_us
        self._serves = serves
        self._longest_us = 0
        self.x_used = Histogram()
        #: End of the last bucket that was released, stable or tentative.
        self._released_until = BEFORE_TIME
        #: Before this moment nobody waited for this replica, or for no longer than a longer X allowed.
        self._serves_since: int | None = None
        #: Since when a full output holds back what is stable; None: it does not.
        self._held_since: int | None = None

    def set_x(self, x_us: int, now: int) -> None:
        """Another X counts: waits are measured anew, and a shorter X from now on (T8)."""
        if x_us < self._x_us:
            self._serves_since = now
        self._longest_us = 0
        self._x_us = x_us

    def step(self, now: int) -> None:
        """A step of work begins."""
        if not self._serves():
            self._serves_since = now

    def hold(self, now: int) -> None:
        """A full output holds back what is stable."""
        if self._held_since is None:
            self._held_since = now

    def end_hold(self, now: int) -> None:
        """A stable slice was released: the clocks of later buckets did not run while it was held back (T1)."""
        if self._held_since is not None:
            self._sunion.waits.shift(now - self._held_since, now)
            self._held_since = None

    def longest_us(self, now: int) -> int:
        """Longest wait so far, with that of the bucket that still waits."""
        return max(self._longest_us, self.waiting_us(now))

    def waiting_us(self, now: int) -> int:
        """How long the next bucket that was never released has waited; 0 while nobody waits for this replica."""
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
        """Releases a slice, some of it perhaps once more; counts the wait of its first bucket that is new."""
        before, waited_us = max(self._released_until, self._sunion.next), self.waiting_us(now)
        piece = release()
        if piece is not None and piece.end > before:
            self._longest_us, self._released_until = max(self._longest_us, waited_us), piece.end
            if self._serves():
                self.x_used.add(waited_us / self._x_us)
        return piece
