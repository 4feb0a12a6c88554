"""Computes when a replayed tuple is due: at its own pace, k times as fast, at a fixed rate, or at once.  Pure.

Times on the clock are microseconds of the wall clock as it stood at start, continued by the monotonic clock.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from spe.errors import SpeError
from spe.stream.batch import Int64Array
from spe.stream.times import BEFORE_TIME, END_OF_TIME


class Pace(ABC):
    """Maps event time to the clock and back."""

    @abstractmethod
    def due(self, peaks: Int64Array, last_id: int, now_us: int) -> int:
        """Returns how many of the next tuples are due.

        Args:
          peaks: largest event time up to each of the next tuples: a late tuple is due with the one before it.
          last_id: id of the tuple before them.
        """

    @abstractmethod
    def next_us(self, peak_us: int, last_id: int) -> int:
        """Returns when the tuple after ``last_id``, whose peak is ``peak_us``, is due."""

    @abstractmethod
    def event_now_us(self, now_us: int) -> int:
        """Returns the event time that the replay has reached, which limits boundaries.  END_OF_TIME: no limit."""

    @abstractmethod
    def reached_us(self, event_us: int) -> int:
        """Returns when ``event_now_us`` will be ``event_us``."""


class AtOnce(Pace):
    """Releases tuples as fast as the machine allows."""

    def due(self, peaks: Int64Array, last_id: int, now_us: int) -> int:
        return len(peaks)

    def next_us(self, peak_us: int, last_id: int) -> int:
        return BEFORE_TIME

    def event_now_us(self, now_us: int) -> int:
        return END_OF_TIME

    def reached_us(self, event_us: int) -> int:
        return BEFORE_TIME


class AtRate(AtOnce):
    """Releases ``rate`` tuples per second, whatever their event times; only the next tuple limits boundaries."""

    def __init__(self, rate: float, begun_us: int) -> None:
        self._rate = rate
        self._begun_us = begun_us

    def due(self, peaks: Int64Array, last_id: int, now_us: int) -> int:
        upto = math.floor((now_us - self._begun_us) * self._rate / 1e6) + 1
        return max(0, min(upto - last_id, len(peaks)))

    def next_us(self, peak_us: int, last_id: int) -> int:
        return self._begun_us + math.ceil(last_id * 1e6 / self._rate)


class AtSpeed(Pace):
    """Lets event time pass ``speed`` times as fast as the clock."""

    def __init__(self, speed: float, origin_us: int, begun_us: int) -> None:
        self._speed = speed
        self._origin_us = origin_us
        self._begun_us = begun_us

    def due(self, peaks: Int64Array, last_id: int, now_us: int) -> int:
        return int(peaks.searchsorted(self.event_now_us(now_us), side="right"))

    def next_us(self, peak_us: int, last_id: int) -> int:
        return self.reached_us(peak_us)

    def event_now_us(self, now_us: int) -> int:
        return self._origin_us + math.floor((now_us - self._begun_us) * self._speed)

    def reached_us(self, event_us: int) -> int:
        guess = self._begun_us + math.ceil((event_us - self._origin_us) / self._speed)
        return guess if self.event_now_us(guess) >= event_us else guess + 1


def pace_of(replay: Mapping[str, Any], origin_us: int, begun_us: int) -> Pace:
    """Returns the pace that a source's ``replay`` configures; by default the source's own.

    Args:
      replay: ``max``: at once; else ``rate``: tuples per second; else ``speed``: 1.0 is real time.  (``origin_us``, the
        event time at which the replay of all sources of a run begins, is the caller's.)
      origin_us: event time at which the replay begins.
      begun_us: wall clock at which the replay begins.

    Raises:
      SpeError: a rate or speed is not positive.
    """
    if replay.get("max"):
        return AtOnce()
    rate, speed = replay.get("rate"), replay.get("speed")
    for name, value in (("rate", rate), ("speed", speed)):
        if value is not None and not 0 < value < math.inf:
            raise SpeError(f"replay.{name}: expected a positive number, got {value}")
    if rate is not None:
        return AtRate(float(rate), begun_us)
    return AtSpeed(float(speed) if speed is not None else 1.0, origin_us, begun_us)
