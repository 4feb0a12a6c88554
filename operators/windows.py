"""Rows of a slice by pane, and late rows: shared by aggregate, top-k and join.

U7: a tuple counts in a window iff its attribute lies in it and its time is < the window's end.  Over tuple time
itself no tuple is ever late.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from operators.rejections import Refusals, RejectedRow
from spe.query.windows import TimeWindow
from spe.stream.batch import BoolArray, Int64Array, Rows
from spe.stream.times import END_OF_TIME, iso_timestamp

#: Attributes beyond the ends of time are clipped, so that no sum below overflows.
_LAST = END_OF_TIME - 1


def horizon(boundary: int) -> int:
    """Returns the largest end of ended windows; at the end of time all have ended, also those that reach beyond it."""
    return boundary if boundary < END_OF_TIME else 2**80


def saturated(ends: list[int]) -> Int64Array:
    return np.array([min(e, END_OF_TIME) for e in ends], np.int64)


def clipped(times: Int64Array) -> Int64Array:
    """Clips times so that window arithmetic cannot overflow."""
    if len(times) and (times.max() > _LAST or times.min() < -_LAST):
        return times.clip(-_LAST, _LAST)
    return times


@dataclass(slots=True)
class Late:
    """Counters of late tuples; operator state (U7).

    Attributes:
      late: tuples that missed at least one of their windows.
      dropped: late tuples that missed all of their windows.
      without_time: tuples whose window attribute is null.
    """

    late: int = 0
    dropped: int = 0
    without_time: int = 0

    def state(self) -> list[int]:
        """Returns the arguments of an equal ``Late``."""
        return [self.late, self.dropped, self.without_time]

    def counters(self) -> dict[str, int]:
        return {"late": self.late, "dropped": self.dropped, "without_time": self.without_time}


@dataclass(frozen=True, slots=True)
class LateRejections:
    """Rejects the rows that :class:`Late` counts (``on_late: reject``).

    Attributes:
      refusals: collects the rows.
      port: port of the rows.
      at: number of the first row there.
    """

    refusals: Refusals
    port: int
    at: int

    def without_time(self, present: BoolArray) -> None:
        """Rejects rows whose window attribute is not ``present``."""
        for row in (~present).nonzero()[0].tolist():
            self._add(row, "without time: its window attribute is null")

    def missed(
        self,
        window: TimeWindow,
        times: Int64Array,
        overdue: BoolArray,
        first: Int64Array,
        last: Int64Array,
        ended: Int64Array,
    ) -> None:
        """Rejects ``overdue`` rows, which missed windows.

        Args:
          times: tuple time of each row.
          first, last: windows of each row.
          ended: the last window that had ended at that time.
        """
        index = overdue.nonzero()[0]
        gone = np.minimum(last, ended)
        columns = [c[index].tolist() for c in (times, first, last, gone)]
        for row, time, first_window, last_window, until in zip(index.tolist(), *columns, strict=True):
            self._add(row, partial(_late_reason, window, time, first_window, last_window, until))

    def _add(self, row: int, reason: str | Callable[[], str]) -> None:
        self.refusals.rows.append(RejectedRow(self.port, self.at + row, reason))


def _late_reason(window: TimeWindow, time: int, first: int, last: int, missed: int) -> str:
    """The reason for a row in the windows ``first`` to ``last`` that came when ``missed`` was the last ended one."""
    count = last - first + 1
    shown = f"[{iso_timestamp(window.start(missed))}, {iso_timestamp(window.end(missed))})"
    what, more = f"its window {shown}", ""
    if count > 1:
        what, more = f"{missed - first + 1:,} of its {count:,} windows", f"; the last of these is {shown}"
    return f"late: {what} had ended by its tuple time, {iso_timestamp(time)}{more}"


#: A selection of rows of a slice: contiguous, or an index.
Selection = slice | Int64Array


def first_time(rows: Rows, which: Selection) -> int:
    """Returns the tuple time of the first selected row."""
    return int(rows.time[which.start if isinstance(which, slice) else which[0]])


def arrivals(
    window: TimeWindow, rows: Rows, on: int | None, late: Late, released: int, rejections: LateRejections | None = None
) -> Iterator[tuple[int, int, Selection]]:
    """Yields (upto, pane, rows): release all windows that end by ``upto``, then add the rows to the pane.

    Args:
      on: position of the attribute that decides membership; None: tuple time.
      late: counts rows that missed some or all of their windows.
      released: windows that end at or before this are released already.
      rejections: collects each of these rows.
    """
    times = rows.time
    if on is None and not window.has_gaps:
        pane = window.pane(int(times[0]))
        if pane == window.pane(int(times[-1])):
            yield released, pane, slice(0, len(times))
            return
        for pane, which in split_by_pane(window.pane(times)):
            yield released, pane, which
        return
    index, members, missed = _place(window, rows, on, late, rejections)
    panes = window.pane(members)
    if missed is None:
        runs = [(released, 0, len(panes))]
    else:
        runs = list(_runs(times if index is None else times[index], missed, released))
    for upto, start, stop in runs:
        for pane, which in split_by_pane(panes[start:stop]):
            if isinstance(which, slice):
                which = slice(which.start + start, which.stop + start)
            elif start:
                which = which + start
            yield upto, pane, which if index is None else index[which]


def _place(
    window: TimeWindow, rows: Rows, on: int | None, late: Late, rejections: LateRejections | None
) -> tuple[Int64Array | None, Int64Array, Int64Array | None]:
    """Returns rows that count in a window (None: all), their window times, and the last end that each has missed.

    The last is None if no such row has missed a window, as always without overlap.
    """
    times, present = rows.time, None
    if on is not None:
        times, present = clipped(rows.columns[on].values), rows.columns[on].valid
    first, last = window.first(times), window.last(times)
    counts = first <= last  # with gaps between windows some times are in no window
    if present is not None:
        counts &= present
        late.without_time += len(present) - int(present.sum())
        if rejections is not None:
            rejections.without_time(present)
    ended = window.first(rows.time) - 1  # the last window that has ended when the tuple comes
    overdue: BoolArray = counts & (first <= ended)
    missed = None
    if overdue.any():
        gone = overdue & (last <= ended)
        late.late += int(overdue.sum())
        late.dropped += int(gone.sum())
        if rejections is not None:
            rejections.missed(window, rows.time, overdue, first, last, ended)
        counts &= ~gone
        if (overdue & ~gone).any():
            missed = np.where(overdue, window.end(ended), -(2**63))
    if counts.all():
        return None, times, missed
    index = counts.nonzero()[0]
    return index, times[index], None if missed is None else missed[index]


def _runs(times: Int64Array, missed: Int64Array, released: int) -> Iterator[tuple[int, int, int]]:
    """Yields (upto, start, stop): release all windows that end by ``upto``, then take rows ``start`` to ``stop`` − 1.

    U2: a window that ends by a tuple's time is released before the tuple counts: otherwise a late tuple would count
    in it through a shared pane.
    """
    start = 0
    while start < len(times):
        due = missed[start:] > released
        stop = start + int(due.argmax()) if due.any() else len(times)
        if stop > start:
            yield released, start, stop
        if stop < len(times):
            released = int(times[stop])
        start = stop


def split_by_pane(panes: Int64Array) -> list[tuple[int, Selection]]:
    """Returns (pane, rows), panes ascending; slices if panes do not decrease, as usual."""
    count = len(panes)
    if count == 0:
        return []
    if panes[0] == panes[-1] and (count < 3 or bool((panes == panes[0]).all())):
        return [(int(panes[0]), slice(0, count))]
    steps = panes[1:] - panes[:-1]
    if steps.min() >= 0:
        cuts = [0, *(steps.nonzero()[0] + 1).tolist(), count]
        return [(int(panes[a]), slice(a, b)) for a, b in itertools.pairwise(cuts)]
    order = panes.argsort(kind="stable")
    ordered = panes[order]
    cuts = [0, *((ordered[1:] != ordered[:-1]).nonzero()[0] + 1).tolist(), count]
    return [(int(ordered[a]), order[a:b]) for a, b in itertools.pairwise(cuts)]
