"""What a live source may promise where no row says it (rule S7).  Pure: the time is passed in.

Rows imply promises by themselves (S1): the largest event time less the disorder.  What is decided here is how far a
promise may go beyond that.  Times are event times; the writer takes the disorder off, and logs each promise (S2).
"""

from __future__ import annotations

from typing import Final, Protocol

from spe.stream.times import BEFORE_TIME

#: If the time was asked for this much later than planned, the process or its machine was stopped.
STOPPED_US: Final = 250_000


class EventClock(Protocol):
    """Tells how far event time has come."""

    def heard(self, now_us: int) -> None:
        """Rows have been taken, or could not be: nothing that the input does is silence until now."""

    def reached_us(self, now_us: int, stands_us: int) -> int | None:
        """Event time before which no row can be on time any more; None: nothing but what rows imply.

        Args:
          now_us: the clock of the source; it never falls.
          stands_us: event time that the log implies: the largest, or what has been promised; BEFORE_TIME: none.
        """


class ByClock:
    """Event time is the clock's: for rows that are stamped when they happen, and come within the disorder."""

    def heard(self, now_us: int) -> None:
        """Does nothing: rows make no difference to this clock."""

    def reached_us(self, now_us: int, stands_us: int) -> int | None:
        return now_us


class ByData:
    """Event time is that of the rows.  After a silence it goes on at the speed of the clock, from where it stood.

    Not to the present: rows of last year that are piped in, with a pause between two of them, would all be late.  The
    time that we were stopped is not taken for silence, for rows may be waiting: after it, a silence begins anew, and
    only when that has lasted does event time make up for it.

    Args:
      idle_us: the silence; None: there is none that counts.
      to_now: afterwards, behind the first row, event time is that of the clock, as :class:`ByClock`.
      step_us: :meth:`reached_us` is asked this often.
    """

    def __init__(self, idle_us: int | None, *, to_now: bool, step_us: int, now_us: int) -> None:
        self._idle_us = idle_us
        self._to_now = to_now
        self._late_look_us = step_us + STOPPED_US
        self._silent_since_us = now_us
        self._awake_since_us = now_us
        self._looked_us = now_us
        #: Where event time stood when the silence had lasted.
        self._stood_us: int | None = None

    def heard(self, now_us: int) -> None:
        self._silent_since_us = now_us
        self._stood_us = None

    def reached_us(self, now_us: int, stands_us: int) -> int | None:
        if now_us - self._looked_us > self._late_look_us:
            self._awake_since_us = now_us
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
