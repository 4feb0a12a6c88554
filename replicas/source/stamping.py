"""Ids, tuple times and promises of a source (rules S1, S2).  Pure: no clock, no log."""

from __future__ import annotations

import numpy as np

from spe.errors import LocalProtocolError
from spe.stream.batch import Batch, BoolArray, Column, Int64Array, Rows
from spe.stream.names import Kind
from spe.stream.times import BEFORE_TIME, END_OF_TIME, EVENT_LIMIT_US, floor_to, saturating_add


def admitted(events: Int64Array, wall_us: int, ahead_us: int | None) -> BoolArray | None:
    """Returns which event times a source may take; None: all of them.

    A tuple from the far future would lift every later one to its time (S5), so a live source refuses event times more
    than ``ahead_us`` ahead of its own clock.
    """
    limit = EVENT_LIMIT_US if ahead_us is None else min(EVENT_LIMIT_US, wall_us + ahead_us)
    if not len(events) or (events.max() <= limit and events.min() >= -EVENT_LIMIT_US):
        return None
    return (events <= limit) & (events >= -EVENT_LIMIT_US)


def peaks_of(events: Int64Array) -> Int64Array:
    """Returns the largest event time up to each.  If they are in order, returns them, after a check that is 30 times as
    fast.
    """
    return events if bool((events[1:] >= events[:-1]).all()) else np.maximum.accumulate(events)


class Stamper:
    """Turns raw columns in order of arrival into stable batches, and computes the possible promises.

    S1: with W = (largest event time before this tuple) − disorder, from the *raw* event times,
    ``time`` = max(event time, W, lease).  The lease is the last promise that was logged, not the last one that was
    sent: else lateness would depend on how often boundaries are sent.

    Attributes:
      last_id: id of the last stamped tuple.
      max_event_us: largest raw event time so far.
      lease_us: time promised in the log, beyond that implied by the tuples.
      late_by_us: the disorder that all tuples so far would have needed, if it exceeds the configured one; else 0.
      late_count: tuples whose event time lay before W or the lease, since this object was made.
      latest: (late_count, late_by_us) of the last stamped rows.
    """

    def __init__(
        self,
        *,
        disorder_us: int,
        boundary_us: int,
        last_id: int = 0,
        max_event_us: int = BEFORE_TIME,
        lease_us: int = BEFORE_TIME,
    ) -> None:
        self._disorder_us = disorder_us
        self._boundary_us = boundary_us
        self.last_id = last_id
        self.max_event_us = max_event_us
        self.lease_us = lease_us
        self.late_count = 0
        self.late_by_us = 0
        self.latest = (0, 0)

    def stamp(self, events: Int64Array, columns: tuple[Column, ...]) -> Batch:
        """Returns the next tuples of the stream, in order of arrival; ``time`` need not be sorted.

        Args:
          events: shape (n,), n ≥ 1, raw event times, each admitted.
        """
        if self.lease_us >= END_OF_TIME:
            raise LocalProtocolError("a tuple after the end of the stream")
        peaks, first = peaks_of(events), self.last_id
        self.last_id += len(events)
        if peaks is events and events[0] >= max(
            self.max_event_us, self.lease_us
        ):  # all in order: the event times are the tuple times
            self.latest = (0, 0)
            self.max_event_us = int(events[-1])
            return Batch(Kind.STABLE, first, self.last_id, None, Rows(events, events, columns))
        before = np.empty_like(events)
        before[0] = self.max_event_us
        np.maximum(peaks[:-1], self.max_event_us, out=before[1:])
        floor = np.maximum(before - self._disorder_us, self.lease_us)
        time = np.maximum(events, floor)
        late = int(np.count_nonzero(events < floor))
        self.latest = (late, int((floor - events).max()) + self._disorder_us if late else 0)
        self.late_count += late
        self.late_by_us = max(self.late_by_us, self.latest[1])
        self.max_event_us = max(self.max_event_us, int(peaks[-1]))
        return Batch(Kind.STABLE, first, self.last_id, None, Rows(time, time, columns))

    @property
    def disorder_floor_us(self) -> int:
        """W of the next tuple, as implied by the tuples alone."""
        return saturating_add(self.max_event_us, -self._disorder_us)

    @property
    def bound_us(self) -> int:
        """The largest boundary that may be sent once everything so far is logged (S2)."""
        return floor_to(max(self.disorder_floor_us, self.lease_us), self._boundary_us)

    @property
    def stands_us(self) -> int:
        """Implied event time: a later tuple more than the disorder before it is late."""
        return max(self.max_event_us, saturating_add(self.lease_us, self._disorder_us))

    def lease(self, event_us: int) -> bool:
        """Promises that no later tuple has an event time that would be on time before ``event_us``.

        The lease goes to the last boundary interval at or before event_us − disorder: a later tuple with event time
        ≥ event_us is not touched by it, nor is any after that one.

        Returns:
          True when the promise is new: it must be logged before a boundary beyond the previous one is sent.
        """
        wanted = floor_to(saturating_add(event_us, -self._disorder_us), self._boundary_us)
        if wanted <= self.bound_us:
            return False
        assert wanted > self.lease_us, "S2: promises are never taken back"
        self.lease_us = wanted
        return True

    def end(self) -> bool:
        """Promises that nothing follows (S3).  Returns True when that is new."""
        return self.lease(END_OF_TIME)
