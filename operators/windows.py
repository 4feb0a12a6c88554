"""Which windows a tuple counts in, and which have ended: arithmetic shared by aggregate, top-k and join.

Window k is [offset + k·slide, offset + k·slide + size).  Panes are the pieces of length gcd(size, slide) that every
window is made of; state is kept per pane, so a tuple is taken in once however many windows overlap.

A tuple counts in a window iff its attribute lies in it and its time is < the window's end (rule U7).  Over
tuple time itself nothing is ever late.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from math import gcd

import numpy as np

from operators.rejections import Refusals, RejectedRow
from spe.query.windows import Window
from spe.stream.batch import BoolArray, Int64Array, Rows
from spe.stream.times import END_OF_TIME, iso_timestamp

#: Attributes beyond the ends of time stay there, so that no sum below overflows.
_LAST = END_OF_TIME - 1


class WindowMath:
    """Windows of one size, slide and offset; all in microseconds."""

    __slots__ = ("offset", "pane_us", "panes_per_window", "size", "slide", "tumbling")

    def __init__(self, window: Window) -> None:
        self.size = window.size_us
        self.slide = window.slide_us
        self.offset = window.offset_us
        self.pane_us = gcd(self.size, self.slide)
        self.panes_per_window = self.size // self.pane_us
        self.tumbling = self.size == self.slide

    def pane(self, time: int) -> int:
        return (time - self.offset) // self.pane_us

    def panes(self, times: Int64Array) -> Int64Array:
        return (times - self.offset) // self.pane_us

    def first(self, times: Int64Array) -> Int64Array:
        """The first window that ends after each time; between windows with gaps it has not begun yet."""
        return (times - (self.offset + self.size)) // self.slide + 1

    def last(self, times: Int64Array) -> Int64Array:
        """The last window that begins at or before each time."""
        return (times - self.offset) // self.slide

    def first_of_pane(self, pane: int) -> int:
        """The first window that the pane is part of (with gaps: that ends after the pane begins)."""
        return (pane * self.pane_us - self.size) // self.slide + 1

    def last_of_pane(self, pane: int) -> int:
        return pane * self.pane_us // self.slide

    def first_after(self, time: int) -> int:
        """The first window whose end is > ``time``."""
        return (time - self.offset - self.size) // self.slide + 1

    def start(self, window: int) -> int:
        return self.offset + window * self.slide

    def end(self, window: int) -> int:
        """Exclusive, and not saturated: compare it with :func:`horizon`."""
        return self.offset + window * self.slide + self.size

    def panes_of(self, window: int) -> range:
        first = window * self.slide // self.pane_us
        return range(first, first + self.panes_per_window)


def horizon(boundary: int) -> int:
    """Windows with an end ≤ this have ended; at the end of time all have, also those that reach beyond it."""
    return boundary if boundary < END_OF_TIME else 2**80


def saturated(ends: list[int]) -> Int64Array:
    return np.array([min(e, END_OF_TIME) for e in ends], np.int64)


def clipped(times: Int64Array) -> Int64Array:
    """Times that window arithmetic cannot overflow on."""
    if len(times) and (times.max() > _LAST or times.min() < -_LAST):
        return times.clip(-_LAST, _LAST)
    return times


@dataclass(slots=True)
class Late:
    """Counts late tuples; operator state (U7).

    Attributes:
      late: tuples that missed at least one of their windows.
      dropped: those of them that missed all.
      without_time: tuples whose window attribute is null.
    """

    late: int = 0
    dropped: int = 0
    without_time: int = 0

    def state(self) -> list[int]:
        """What ``Late(*state)`` makes again."""
        return [self.late, self.dropped, self.without_time]

    def counters(self) -> dict[str, int]:
        return {"late": self.late, "dropped": self.dropped, "without_time": self.without_time}


@dataclass(frozen=True, slots=True)
class LateRejections:
    """Tells of the rows that :class:`Late` counts (``on_late: reject``).

    Attributes:
      refusals: where.
      port: that they came to.
      at: the number of the first of the rows there.
    """

    refusals: Refusals
    port: int
    at: int

    def without_time(self, present: BoolArray) -> None:
        """The window attribute is not ``present``."""
        for row in (~present).nonzero()[0].tolist():
            self._add(row, "without time: its window attribute is null")

    def missed(
        self,
        math: WindowMath,
        times: Int64Array,
        overdue: BoolArray,
        first: Int64Array,
        last: Int64Array,
        ended: Int64Array,
    ) -> None:
        """Rows that are ``overdue`` missed windows.

        Args:
          times: when each row came, in tuple time.
          first, last: windows that it belongs to.
          ended: the last window that had ended then.
        """
        index = overdue.nonzero()[0]
        gone = np.minimum(last, ended)
        columns = [c[index].tolist() for c in (times, first, last, gone)]
        for row, time, one, other, until in zip(index.tolist(), *columns, strict=True):
            self._add(row, partial(_why_late, math, time, one, other, until))

    def _add(self, row: int, reason: str | Callable[[], str]) -> None:
        self.refusals.rows.append(RejectedRow(self.port, self.at + row, reason))


def _why_late(math: WindowMath, time: int, first: int, last: int, missed: int) -> str:
    """Of a row in the windows ``first`` to ``last`` that came when ``missed`` was the last of them that had ended."""
    count = last - first + 1
    shown = f"[{iso_timestamp(math.start(missed))}, {iso_timestamp(math.end(missed))})"
    what, more = f"its window {shown}", ""
    if count > 1:
        what, more = f"{missed - first + 1:,} of its {count:,} windows", f"; the last of these is {shown}"
    return f"late: {what} had ended by its tuple time, {iso_timestamp(time)}{more}"


#: Which rows of a slice: contiguous, or an index.
Selection = slice | Int64Array


def first_time(rows: Rows, which: Selection) -> int:
    """Tuple time of the first of the selected rows."""
    return int(rows.time[which.start if isinstance(which, slice) else which[0]])


def arrivals(
    math: WindowMath, rows: Rows, on: int | None, late: Late, released: int, told: LateRejections | None = None
) -> Iterator[tuple[int, int, Selection]]:
    """Yields (upto, pane, rows): release all windows that end by ``upto``, then add the rows to the pane.

    Args:
      on: position of the attribute that decides membership; None: tuple time.
      late: is told what counts nowhere, or not everywhere.
      released: windows that end at or before this are released already.
      told: is told of each of those rows.
    """
    times = rows.time
    if on is None and math.slide <= math.size:
        pane = math.pane(int(times[0]))
        if pane == math.pane(int(times[-1])):
            yield released, pane, slice(0, len(times))
            return
        for pane, which in split_by_pane(math.panes(times)):
            yield released, pane, which
        return
    index, members, missed = _place(math, rows, on, late, told)
    panes = math.panes(members)
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
    math: WindowMath, rows: Rows, on: int | None, late: Late, told: LateRejections | None
) -> tuple[Int64Array | None, Int64Array, Int64Array | None]:
    """Rows that count somewhere (None: all), the times that decide, and the last end that each has missed.

    The last is None when nothing that counts somewhere has missed a window, as it always is without overlap.
    """
    times, present = rows.time, None
    if on is not None:
        times, present = clipped(rows.columns[on].values), rows.columns[on].valid
    first, last = math.first(times), math.last(times)
    counts = first <= last  # with gaps between windows some times are in none
    if present is not None:
        counts &= present
        late.without_time += len(present) - int(present.sum())
        if told is not None:
            told.without_time(present)
    ended = math.first(rows.time) - 1  # the last window that had ended when the tuple came
    overdue: BoolArray = counts & (first <= ended)
    missed = None
    if overdue.any():
        gone = overdue & (last <= ended)
        late.late += int(overdue.sum())
        late.dropped += int(gone.sum())
        if told is not None:
            told.missed(math, rows.time, overdue, first, last, ended)
        counts &= ~gone
        if (overdue & ~gone).any():
            missed = np.where(overdue, math.offset + ended * math.slide + math.size, -(2**63))
    if counts.all():
        return None, times, missed
    index = counts.nonzero()[0]
    return index, times[index], None if missed is None else missed[index]


def _runs(times: Int64Array, missed: Int64Array, released: int) -> Iterator[tuple[int, int, int]]:
    """Yields (upto, start, stop): release all windows that end by ``upto``, then take rows ``start`` to ``stop`` − 1.

    Where a tuple is late for a window that is not released yet but will be by this tuple's time, the window has to
    go before the tuple comes (U2): else it would be counted through the pane that both share.
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
    """(pane, which rows), panes ascending; slices while panes do not decrease, which is nearly always."""
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
