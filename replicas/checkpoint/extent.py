"""Computes what a replica would have to read and replay after a crash, and which footprints to rewrite (rules G2, G5,
G7).

Footprints are counted by the slice in which they were written; single cells are not known here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from operators.footprints import LiveFootprints
from spe.stream.times import END_OF_TIME

Counts = NDArray[np.int64]
#: Reading a slice takes about as long as reading so many footprints, whatever it contains.
SLICE_RECORDS: Final = 20


class Choices(NamedTuple):
    """Remaining work after rewriting: entry k is for rewriting all live footprints of the first k slices.

    Attributes:
      below: footprints of slices that end before this are rewritten; the last entry rewrites all.
      cells: number of these footprints.
      records: q, footprints to read; a slice counts as :data:`SLICE_RECORDS` more.
      rows: u, rows to replay.
      slices: slices to read.
    """

    below: Counts
    cells: Counts
    records: Counts
    rows: Counts
    slices: Counts

    def seconds(self, per_record: float, per_row: float) -> NDArray[np.float64]:
        """Returns the predicted times of recovery."""
        return self.records * per_record + self.rows * per_row

    def within(self, chosen: int, most: int) -> tuple[int, int]:
        """Divides a choice into steps of at most ``most`` footprints, oldest first.

        Returns:
          The choice whose footprints are all rewritten, and the number of further footprints.
        """
        assert most >= 0, "G7: rewriting that has taken too long waits"
        if self.cells[chosen] <= most:
            return int(self.below[chosen]), 0
        whole = int(np.searchsorted(self.cells, most, side="right")) - 1
        return int(self.below[whole]), most - int(self.cells[whole])


class Extent:
    """Slices of a checkpoint log from the oldest needed one on, with their counts of footprints.

    Attributes:
      held: the least time of a row that a row keeper needs; None: no row keeper needs a row.
    """

    def __init__(self) -> None:
        #: A column for each slice, with room for more.
        self._table = np.zeros((5, 64), np.int64)
        self._use(0, 0)
        self._records = 0
        self.held: int | None = None

    def _use(self, first: int, last: int) -> None:
        self._begin, self._end = first, last
        self._time, self._before, self._rows, self._live, self._open = self._table[:, first:last]

    def __bool__(self) -> bool:
        """Whether there is a slice."""
        return len(self._time) > 0

    def commit(self, time: int, records: int, rows: int, not_final: int) -> None:
        """Adds a committed slice.

        Args:
          time: its end; ascending, or equal to that of the slice before, which it then extends.
          records: number of footprints written in it.
          rows: input rows processed up to its end; only differences are meaningful.
          not_final: number of its footprints that are not final (G2).
        """
        assert 0 <= not_final <= records, "G2: a footprint that is not final is one of those written"
        if len(self._time) and time < self._time[-1]:
            raise ValueError(f"slice {time} after slice {self._time[-1]}")
        if len(self._time) and time == self._time[-1]:
            self._live[-1] += records
            self._open[-1] += not_final
            self._records += records
            return
        if self._end == self._table.shape[1]:
            used = self._table[:, self._begin : self._end]
            self._table = np.concatenate([used, np.zeros((5, used.shape[1] + 64), np.int64)], axis=1)
            self._use(0, used.shape[1])
        self._table[:, self._end] = time, self._records, rows, records, not_final
        self._use(self._begin, self._end + 1)
        self._records += records

    def replace(self, live: Counts, not_final: Counts) -> None:
        """Subtracts replaced footprints, as :func:`counted` by our slices: their cells were closed or written anew."""
        assert len(live) == len(not_final) == len(self._time), "G7: replaced footprints are counted by our slices"
        self._live -= live
        self._open -= not_final

    @property
    def ends(self) -> Counts:
        """Ends of the slices."""
        ends: Counts = self._time.copy()
        return ends

    def recount(self, live: Counts, not_final: Counts) -> None:
        """Sets the counts of live footprints, as :func:`counted` by our slices, where the replaced ones are unknown."""
        self._live[:], self._open[:] = live, not_final

    def counts(self) -> dict[int, tuple[int, int]]:
        """Returns for each slice with live footprints their number, and the number of those that are not final."""
        which = self._live.nonzero()[0]
        counts = zip(self._live[which].tolist(), self._open[which].tolist())
        return dict(zip(self._time[which].tolist(), counts))

    def replay_from(self) -> int:
        """Returns T: input is replayed from the newest commit at or before this time."""
        return int(self._time[self._replay_index()])

    def behind(self) -> int:
        """Returns the number of rows to replay in addition to those that operators keep."""
        return int(self._rows[self._held_index()] - self._rows[self._replay_index()])

    def live(self) -> int:
        """Returns the number of live footprints."""
        return int(self._live.sum())

    def needs(self) -> int:
        """Returns the least time of a slice whose records or commit are still needed."""
        return int(self._time[min(self._replay_index(), self._first(self._live, 0))])

    def cut(self) -> None:
        """Forgets the slices before :meth:`needs`."""
        at = min(self._replay_index(), self._first(self._live, 0))
        self._use(self._begin + at, self._end)
        assert self, "G5: the newest slice is always needed"

    def choices(self) -> Choices:
        """Returns the remaining work for all thresholds, in O(slices); entry 0 rewrites nothing."""
        slices = len(self._time)
        cells = np.append(0, np.cumsum(self._live))
        oldest_live = self._next(self._live)
        replay = np.minimum(np.minimum(self._next(self._open), slices - 1), self._held_index())
        before = np.append(self._before, self._records)
        below = np.append(self._time, min(int(self._time[-1]), END_OF_TIME - 1) + 1)
        read = slices - np.minimum(oldest_live, replay)
        records = self._records - before[oldest_live] + cells + SLICE_RECORDS * read
        return Choices(below, cells, records, self._rows[-1] - self._rows[replay], read)

    def _replay_index(self) -> int:
        return min(self._first(self._open, 0), len(self._time) - 1, self._held_index())

    def _held_index(self) -> int:
        """Returns the newest slice that ends at or before the time that a row keeper needs."""
        if self.held is None:
            return len(self._time) - 1
        return max(int(np.searchsorted(self._time, self.held, side="right")) - 1, 0)

    @staticmethod
    def _first(counts: Counts, start: int) -> int:
        positive = np.flatnonzero(counts[start:])
        return start + int(positive[0]) if len(positive) else len(counts)

    @staticmethod
    def _next(counts: Counts) -> Counts:
        """Returns for each k the first slice from k on with a positive count; the number of slices if there is none."""
        slices = len(counts)
        at = np.where(counts > 0, np.arange(slices), slices)
        return np.append(np.minimum.accumulate(at[::-1])[::-1], slices)


def counted(ends: Counts, parts: Iterable[LiveFootprints]) -> tuple[Counts, Counts]:
    """Counts the footprints of each slice, and those that are not final; slow for many footprints.

    Args:
      ends: ends of the slices, ascending.
      parts: the footprints; none is from before the first slice.
    """
    live, open_ = np.zeros((2, len(ends)), np.int64)
    for times, not_final in parts:
        at = np.searchsorted(ends, times)
        live += np.bincount(at, minlength=len(ends))
        open_ += np.bincount(at[not_final], minlength=len(ends))
    return live, open_


def threshold(fits: NDArray[np.bool_], cost: NDArray[np.float64]) -> int:
    """Returns the first choice that fits; if none does, the first of least cost."""
    fitting = np.flatnonzero(fits)
    return int(fitting[0]) if len(fitting) else int(np.argmin(cost))


class Pacing:
    """Limits rewriting to a share of the time; unused time is kept for at most ``period_us``.

    Args:
      share: 0 … 1.
      now_us: time at which it begins, microseconds.
    """

    def __init__(self, share: float, now_us: int, period_us: int = 1_000_000) -> None:
        assert 0 <= share <= 1, "G7: a share of the time"
        self._share = share
        self._most_us = share * period_us
        self._now_us = now_us
        self._left_us = 0.0

    def allowed_us(self, now_us: int) -> float:
        """Returns how long rewriting may take now; 0 while the time is overspent."""
        gained = (now_us - self._now_us) * self._share
        self._left_us = min(self._left_us + gained, self._most_us)
        self._now_us = now_us
        return max(self._left_us, 0.0)

    def spent(self, us: float) -> None:
        """Subtracts microseconds that rewriting took."""
        self._left_us -= us
