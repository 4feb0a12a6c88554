"""Detects an input that lags the others though nothing has failed (rule S5).  Pure.

Inputs whose tuple times differ by more than αX keep a unit tentative for ever, by the clock of buckets (B3), and no
other report shows why: every process is alive and STABLE.
"""

from __future__ import annotations

from collections.abc import Sequence

from operators.sunion.sunion import SUnion
from spe.stream.times import BEFORE_TIME, END_OF_TIME, floor_to


class InputSkew:
    """Watches the inputs of one SUnion, and reports each episode once.

    Args:
      sunion: the SUnion with the inputs.
      bucket_us: its width of a bucket.
      alpha_x_us, x_us: as below.

    Attributes:
      alpha_x_us: an input lags while its current bucket has waited longer than this.
      x_us: how long it must lag while delivering: an input that was cut off needs time to catch up.
      lagging: inputs in an episode, which ends when the lag is below half of αX, so that reports do not repeat.
    """

    def __init__(self, sunion: SUnion, *, bucket_us: int, alpha_x_us: int, x_us: int) -> None:
        self._sunion = sunion
        self._bucket_us = bucket_us
        self.alpha_x_us = alpha_x_us
        self.x_us = x_us
        self._since: dict[int, int] = {}
        self.lagging: set[int] = set()

    def watch(self, now: int, live: Sequence[bool]) -> list[int]:
        """Returns the inputs whose episode begins; ``live``: per input, whether a STABLE producer delivers."""
        begun = []
        for at, delivers in enumerate(live):
            age = self._age(at, now)
            if age <= self.alpha_x_us // 2:
                self.lagging.discard(at)
            if age <= self.alpha_x_us or not delivers:
                self._since.pop(at, None)
            elif now - self._since.setdefault(at, now) >= self.x_us and at not in self.lagging:
                self.lagging.add(at)
                begun.append(at)
        return begun

    def foremost(self) -> int:
        """Returns the input that is furthest ahead and has not ended."""
        reached = [self._reached(at) for at in range(len(self._sunion.inputs))]
        return max(range(len(reached)), key=lambda at: reached[at] if reached[at] < END_OF_TIME else BEFORE_TIME)

    def behind_us(self, at: int) -> int:
        """Returns how far an input is behind the foremost, microseconds of tuple time."""
        return max(0, self._reached(self.foremost()) - self._reached(at))

    def shift(self, gap_us: int, now: int) -> None:
        """Discounts ``gap_us`` during which this process was frozen (T1)."""
        self._since = {at: min(since + gap_us, now) for at, since in self._since.items()}

    def _reached(self, at: int) -> int:
        port = self._sunion.inputs[at]
        return max(port.frontier, port.tentative_frontier)

    def _age(self, at: int, now: int) -> int:
        """Returns how long ago another input reached the input's current bucket; 0: none is further, or unknown."""
        reached = self._reached(at)
        if not BEFORE_TIME < reached < END_OF_TIME:
            return 0
        bucket = floor_to(reached, self._bucket_us)
        if self._reached(self.foremost()) < bucket + self._bucket_us:
            return 0
        start = self._sunion.clocks.start(bucket)
        return 0 if start is None else now - start
