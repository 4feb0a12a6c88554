"""The time condition of a join: within an interval, or in the same window.

The condition depends on the two tuples alone, not on cuts of the input:

* interval: right − left is in [lower, upper], and the later tuple came while the earlier one could still be matched
  (left + upper, right − lower; this follows over tuple time);
* window: some window contains both attributes and ends after both tuple times (rule U7).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from operators import steps
from operators.columns import picked, sorted_order
from operators.ids import IndexArray, Int64Array
from operators.steps import Steps, portions
from operators.windows import Late, LateRejections, clipped
from spe.query.operators.join import JoinSpec
from spe.stream.batch import BoolArray, Rows
from spe.stream.schema import Schema
from spe.stream.times import END_OF_TIME

LEFT, RIGHT = 0, 1
#: Limit of interval ends, so that adding them to a time cannot overflow.
_FAR = END_OF_TIME - 1


@dataclass(slots=True)
class Spans:
    """Times or windows of each row of one side; arrays of shape (n,).

    Attributes:
      low, high: interval: both are the row's time for the join.  Window: the first and the last window of the row.
      until: last tuple time at which the row can be matched.
    """

    low: Int64Array
    high: Int64Array
    until: Int64Array

    def take(self, index: IndexArray) -> Spans:
        low = self.low.take(index)
        high = low if self.high is self.low else self.high.take(index)
        return Spans(low, high, self.until.take(index))


@dataclass(slots=True)
class Pairs:
    """Candidate pairs; arrays of shape (m,).

    Attributes:
      left_spans, right_spans: spans of the left and the right row of each pair.
      probe_is_left: did the left row come later?
      probe_time: tuple time of the later row.
    """

    left_spans: Spans
    right_spans: Spans
    probe_is_left: bool
    probe_time: Int64Array


@dataclass(slots=True)
class Matches:
    """Matching candidates; with sliding windows one may match several times.

    Attributes:
      pair: index into the candidates, ascending.
      window: the window of each match (window joins), or None.
    """

    pair: IndexArray
    window: Int64Array | None


@dataclass(slots=True)
class Dues:
    """Times at which rows without a match are due; for outer joins.

    Attributes:
      entry: index into the run's match flags.
      row: row of the run.
      time: shape (m,), ascending: last time at which a match is possible.
      window: for window joins, the window that ends then.
    """

    entry: IndexArray
    row: IndexArray
    time: Int64Array
    window: Int64Array | None


class Matcher(ABC):
    """The time condition of a join."""

    #: Number of match flags per row.
    flags_per_row: int = 1

    @abstractmethod
    def admit(
        self, side: int, rows: Rows, late: Late, rejections: LateRejections | None = None
    ) -> tuple[IndexArray | None, Spans]:
        """Returns rows that take part (None: all), and their spans.

        Args:
          late: counts rows that missed some or all of their windows.
          rejections: collects each of these rows.
        """

    @abstractmethod
    def matches(self, pairs: Pairs) -> Matches:
        """Returns the candidates that satisfy the time condition."""

    @abstractmethod
    def flags(self, rows: IndexArray, spans: Spans, window: Int64Array | None) -> IndexArray:
        """Returns the flag of each matched row of a run; ``spans`` are the spans of these rows."""

    @abstractmethod
    def dues(self, time: Int64Array, spans: Spans) -> Steps[Dues]:
        """Computes when each row of a run is due without a match, in portions.  ``time`` is the rows' tuple time."""


class IntervalMatcher(Matcher):
    """Joins if right − left is in [lower, upper], both ends included."""

    def __init__(self, spec: JoinSpec, left: Schema, right: Schema) -> None:
        assert spec.lower_us is not None
        assert spec.upper_us is not None
        self._lower = max(-_FAR, min(_FAR, spec.lower_us))
        self._upper = max(-_FAR, min(_FAR, spec.upper_us))
        self._on = (
            None if spec.left_time is None else left.index(spec.left_time),
            None if spec.right_time is None else right.index(spec.right_time),
        )

    def admit(
        self, side: int, rows: Rows, late: Late, rejections: LateRejections | None = None
    ) -> tuple[IndexArray | None, Spans]:
        reach = self._upper if side == LEFT else -self._lower
        on = self._on[side]
        if on is None:
            return None, Spans(rows.time, rows.time, clipped(rows.time) + reach)
        column = rows.columns[on]
        at, index = clipped(column.values), None
        if column.valid is not None and not column.valid.all():
            index = column.valid.nonzero()[0]
            late.without_time += len(rows) - len(index)
            at = at[index]
        times = rows.time if index is None else rows.time[index]
        late.late += int((times > at + max(reach, 0)).sum())
        return index, Spans(at, at, at + reach)

    def matches(self, pairs: Pairs) -> Matches:
        apart = pairs.right_spans.low - pairs.left_spans.low
        earlier = pairs.right_spans if pairs.probe_is_left else pairs.left_spans
        fits: BoolArray = (apart >= self._lower) & (apart <= self._upper) & (pairs.probe_time <= earlier.until)
        return Matches(fits.nonzero()[0], None)

    def flags(self, rows: IndexArray, spans: Spans, window: Int64Array | None) -> IndexArray:
        return rows

    def dues(self, time: Int64Array, spans: Spans) -> Steps[Dues]:
        due = np.empty(len(time), np.int64)
        for start, stop in portions(len(time), steps.COPIED):
            if start:
                yield
            # A row that can be matched only before its arrival can still meet earlier rows.
            due[start:stop] = np.minimum(np.maximum(spans.until[start:stop], time[start:stop]), END_OF_TIME - 1)
        order = yield from sorted_order(due)
        return Dues(order, order, (yield from picked([due], [order])), None)


class WindowMatcher(Matcher):
    """Joins rows in the same window, once per window with both."""

    def __init__(self, spec: JoinSpec, left: Schema, right: Schema) -> None:
        assert spec.window is not None
        self._window = spec.window
        names = (spec.left_time or spec.window.on, spec.right_time or spec.window.on)
        self._on = tuple(None if n is None else s.index(n) for n, s in zip(names, (left, right)))
        self.flags_per_row = spec.window.overlap

    def admit(
        self, side: int, rows: Rows, late: Late, rejections: LateRejections | None = None
    ) -> tuple[IndexArray | None, Spans]:
        kind, on = self._window, self._on[side]
        times = rows.time if on is None else clipped(rows.columns[on].values)
        first, last = kind.first(times), kind.last(times)
        counts = first <= last
        if on is not None:
            valid = rows.columns[on].valid
            if valid is not None:
                counts &= valid
                late.without_time += len(valid) - int(valid.sum())
                if rejections is not None:
                    rejections.without_time(valid)
            open_ = kind.first(rows.time)  # the first window that has not ended when the tuple comes
            overdue = counts & (first < open_)
            if overdue.any():
                gone = overdue & (last < open_)
                late.late += int(overdue.sum())
                late.dropped += int(gone.sum())
                if rejections is not None:
                    rejections.missed(kind, rows.time, overdue, first, last, open_ - 1)
                counts &= ~gone
                first = np.maximum(first, open_)
        until = np.minimum(kind.end(last), END_OF_TIME) - 1
        spans = Spans(first, last, until)
        if counts.all():
            return None, spans
        index = counts.nonzero()[0]
        return index, spans.take(index)

    def matches(self, pairs: Pairs) -> Matches:
        first = np.maximum(pairs.left_spans.low, pairs.right_spans.low)
        last = np.minimum(pairs.left_spans.high, pairs.right_spans.high)
        if self.flags_per_row == 1:
            index = (first == last).nonzero()[0]
            return Matches(index, first[index])
        counts = np.maximum(last - first + 1, 0)
        index = np.arange(len(counts)).repeat(counts)
        ordinal = np.arange(len(index)) - (counts.cumsum() - counts).repeat(counts)
        return Matches(index, first[index] + ordinal)

    def flags(self, rows: IndexArray, spans: Spans, window: Int64Array | None) -> IndexArray:
        assert window is not None
        flags: IndexArray = rows * self.flags_per_row + (spans.high - window)
        return flags

    def dues(self, time: Int64Array, spans: Spans) -> Steps[Dues]:
        each = self.flags_per_row
        parts: list[tuple[IndexArray, IndexArray, Int64Array, Int64Array]] = []
        for start, stop in portions(len(time), max(1, steps.INDEXED // each)):
            if start:
                yield
            row = np.arange(start, stop).repeat(each)
            entry = np.arange(start * each, stop * each)
            window = spans.high[row] - entry % each
            counts = window >= spans.low[row]
            row, entry, window = row[counts], entry[counts], window[counts]
            due = np.minimum(self._window.end(window), END_OF_TIME) - 1
            parts.append((entry, row, due, window))
        every = []
        for arrays in zip(*parts):
            every.append((yield from picked(arrays, [None] * len(arrays))))
        order = yield from sorted_order(every[2])
        in_order = []
        for array in every:
            in_order.append((yield from picked([array], [order])))
        entries, rows, dues, windows = in_order
        return Dues(entries, rows, dues, windows)
