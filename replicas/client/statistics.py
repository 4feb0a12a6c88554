"""Figures of a client, per channel: counts, delay of new tuples, gaps.  Pure; takes every change.

*Delay_new* is that of DPC: the wall time from the creation of a new tuple to its first receipt.  A tuple is new if its
time is beyond everything received before, stable or tentative, boundaries included.  So corrections do not count, nor
do late tuples of a failed stream whose time was already covered.
"""

from __future__ import annotations

import numpy as np

from spe.figures.histogram import Histogram
from spe.plan.delays import ReplayEpoch
from spe.status import ChannelStatus
from spe.stream.batch import Batch, Boundary, Int64Array, Undo
from spe.stream.change import Change
from spe.stream.ids import Channel
from spe.stream.names import Kind
from spe.stream.times import BEFORE_TIME, END_OF_TIME


class ChannelStats:
    """The figures of one channel.

    Args:
      epoch: relates tuple time to wall time; None: unknown (a replay at full speed), delays stay None.
      skip_us: delays and gaps are not counted until this long after the first arrival: a starting cluster is late
        without a failure (as in the evaluation of DPC).

    Attributes:
      stable_count, tentative_count: tuples received of each kind.
      undone_count: tentative tuples that were undone.
      tentative_held: tentative tuples that are not undone (yet).
      position: id of the last stable tuple.
      frontier: largest stable boundary.
      delay_us, delay_max_us: Delay_new of the latest new tuples, and the largest; None before the first new tuple.
      gap_max_us: longest time between two arrivals of tuples or boundaries.
      stable_gap_max_us: longest time between two stable arrivals.
      last_arrival_us: wall time of the latest arrival of either kind; None before the first.
      switches: changes of the producer, if set from outside.
      bound_us: sum of X along the slowest path to the stream, if set from outside.
      x_used: delays of new tuples relative to ``bound_us``; empty where the delay or the bound is unknown.
    """

    def __init__(self, channel: Channel, *, epoch: ReplayEpoch | None = None, skip_us: int = 0) -> None:
        self.channel = channel
        self.stable_count = 0
        self.tentative_count = 0
        self.undone_count = 0
        self.tentative_held = 0
        self.position = 0
        self.frontier = BEFORE_TIME
        self.delay_us: int | None = None
        self.delay_max_us: int | None = None
        self.gap_max_us = 0
        self.stable_gap_max_us = 0
        self.last_arrival_us: int | None = None
        self.switches = 0
        self.bound_us: int | None = None
        self.x_used = Histogram()
        self._epoch = epoch
        self._skip_us = skip_us
        self._counts_from_us: int | None = None
        self._stable_arrival_us: int | None = None
        #: Tuple time up to which all tuples were received, stable or tentative.
        self._seen = BEFORE_TIME

    @property
    def ended(self) -> bool:
        return self.frontier >= END_OF_TIME

    def goes_on(self, position: int, frontier: int) -> None:
        """Continues an earlier session of the client, which may have reached the end of the stream."""
        self.position, self.frontier = position, frontier

    def apply(self, change: Change) -> None:
        """Takes the next change of this channel."""
        element = change.element
        if isinstance(element, Undo):
            self.undone_count += self.tentative_held
            self.tentative_held = 0
        elif isinstance(element, Batch | Boundary):
            self._arrived(change.arrived_us, element.kind)
            if isinstance(element, Batch):
                self._count(element)
                self._measure(element, change.arrived_us)
            self._advance(element)

    def _arrived(self, now: int, kind: Kind) -> None:
        if self._counts_from_us is None:
            self._counts_from_us = now + self._skip_us
        self.gap_max_us = max(self.gap_max_us, self._gap(self.last_arrival_us, now))
        self.last_arrival_us = now
        if kind is Kind.STABLE:
            self.stable_gap_max_us = max(self.stable_gap_max_us, self._gap(self._stable_arrival_us, now))
            self._stable_arrival_us = now

    def _gap(self, since: int | None, now: int) -> int:
        """Returns the part of a silence that counts."""
        if since is None or self._counts_from_us is None or self.ended:
            return 0
        return max(0, now - max(since, self._counts_from_us))

    def _count(self, batch: Batch) -> None:
        if batch.kind is Kind.STABLE:
            self.stable_count += len(batch)
        else:
            self.tentative_count += len(batch)
            self.tentative_held += len(batch)

    def _measure(self, batch: Batch, now: int) -> None:
        """Measures the first new tuple of a batch, which waited longest: times ascend."""
        at = int(batch.rows.time.searchsorted(self._seen))
        if self._epoch is None or at == len(batch) or self._counts_from_us is None or now < self._counts_from_us:
            return
        times = batch.rows.time[at:]
        self.delay_us = now - self._epoch.created_us(int(times[0]))
        self.delay_max_us = max(self.delay_us, self.delay_max_us if self.delay_max_us is not None else self.delay_us)

        if self.bound_us:
            self._count_delays(times, now, self._epoch, self.bound_us)

    def _count_delays(self, times: Int64Array, now: int, epoch: ReplayEpoch, bound_us: int) -> None:
        """Counts the delays of a batch: times ascend, so a search for each bound of the histogram counts them all."""
        earliest = [epoch.reached_at(now - round(bound * bound_us)) for bound in self.x_used.bounds]
        count = len(times)
        upto = [count - at for at in times.searchsorted(np.asarray(earliest, np.int64)).tolist()]
        # Relative to the first time: sums of microseconds since 1970 would overflow.
        first = int(times[0])
        later_us = float((times - first).sum()) / epoch.speed
        largest_us = now - epoch.created_us(first)
        self.x_used.add_many(upto, count, (count * largest_us - later_us) / bound_us, largest_us / bound_us)

    def _advance(self, element: Batch | Boundary) -> None:
        if isinstance(element, Boundary):
            self._seen = max(self._seen, element.time)
        elif len(element):
            self._seen = max(self._seen, int(element.rows.time[-1]) + 1)
        if element.kind is Kind.STABLE:
            self.position = max(self.position, element.upto_id)
            if isinstance(element, Boundary):
                self.frontier = max(self.frontier, element.time)

    def status(self, now_us: int, producer: str | None) -> ChannelStatus:
        """Returns all figures.

        Args:
          now_us: wall time; the present silence counts as a gap.
          producer: current producer of the channel.
        """
        return ChannelStatus(
            channel=str(self.channel),
            producer=producer,
            stable=self.stable_count,
            tentative=self.tentative_count,
            undone=self.undone_count,
            switches=self.switches,
            position=self.position,
            frontier=self.frontier,
            held=self.tentative_held > 0,
            delay_us=self.delay_us,
            delay_max_us=self.delay_max_us,
            gap_max_us=max(self.gap_max_us, self._gap(self.last_arrival_us, now_us)),
            stable_gap_max_us=max(self.stable_gap_max_us, self._gap(self._stable_arrival_us, now_us)),
            last_arrival_us=self.last_arrival_us,
            ended=self.ended,
            bound_us=self.bound_us,
            x_used=None if self._epoch is None or self.bound_us is None else self.x_used.status(),
        )
