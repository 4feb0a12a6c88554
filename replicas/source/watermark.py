"""Decides what a live source may promise without rows (rule S7).  Pure: the time is passed in.

Rows imply promises by themselves (S1): the largest event time less the disorder.  This module decides how far a promise
may go beyond that.  Times are event times; the writer subtracts the disorder, and logs each promise (S2).
"""

from __future__ import annotations

from typing import Final, Protocol

from spe.stream.times import BEFORE_TIME

#: If the time was asked for this much later than planned, the process or its machine was stopped.
STOPPED_US: Final = 250_000


class EventClock(Protocol):
    """Tells how far event time has advanced."""

    def heard(self, now_us: int) -> None:
        """Notes that rows were taken, or could not be taken: a pause in the input before now is no silence."""

    def reached_us(self, now_us: int, stands_us: int) -> int | None:
        """Returns the event time before which no row can be on time any more; None: only that implied by rows.

        Args:
          now_us: the clock of the source; it never falls.
          stands_us: event time that the log implies: the largest, or the promised one; BEFORE_TIME: none.
        """


class ByClock:
    """Event time follows the clock: for rows that are stamped when they happen, and arrive within the disorder."""

    def heard(self, now_us: int) -> None:
        """Does nothing: rows make no difference to this clock."""

    def reached_us(self, now_us: int, stands_us: int) -> int | None:
        return now_us


class ByData:
    """Event time follows the rows.  After a silence it advances at the speed of the clock, from the last value.

    It does not jump to the present: rows of last year that are piped in, with a pause between two of them, would all be
    late. Time in which the process was stopped is no silence, because rows may be waiting: after it a new silence
    begins, and only when that has lasted does event time catch up.

    Args:
      idle_us: length of the silence; None: no silence counts.
      to_now: afterwards, before the first row, event time is that of the clock, as in :class:`ByClock`.
      step_us: interval of the calls of :meth:`reached_us`.
    """

    def __init__(self, idle_us: int | None, *, to_now: bool, step_us: int, now_us: int) -> None:
        self._idle_us = idle_us
        self._to_now = to_now
        self._late_look_us = step_us + STOPPED_US
        self._silent_since_us = now_us
        self._awake_since_us = now_us
        self._looked_us = now_us
        #: Event time at the end of the silence.
        self._stood_us: int | None = None

    def heard(self, now_us: int) -> None:
        self._silent_since_us = now_us
        self._stood_us = None

    def reached_us(self, now_us: int, stands_us: int) -> int | None:
        if now_us - self._looked_us > self._late_look_us:
            self._awake_since_us = now_us
        assert now_us >= self._looked_us, "S7: the clock of a source never falls"
        self._looked_us = now_us
        if self._idle_us is None or now_us - max(self._silent_since_us, self._awake_since_us) < self._idle_us:
            return None
        if stands_us <= BEFORE_TIME:  # no event time is known yet: the first rows may be of any time
            return None
        if self._to_now:
            return now_us
        if self._stood_us is None:
            self._stood_us = stands_us
        return self._stood_us + now_us - self._silent_since_us - self._idle_us
