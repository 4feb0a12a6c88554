"""State of one side of a join: immutable runs of rows, indexed by key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from operators import steps
from operators.columns import Columns, inverse, picked, picked_rows, sorted_order
from operators.ids import IndexArray, Int64Array, stable_order
from operators.join.match import Dues, Matcher, Spans
from operators.steps import Steps, portions
from spe.stream.batch import Rows
from spe.stream.frozen import Derived
from spe.stream.times import END_OF_TIME

#: A run is merged into the one before it unless that is more than this many times as large.  A trade-off of fewer runs
#: to probe and more copying; each row is copied about log(state / batch) times.
_RATIO: Final = 4
#: Number of rows from which a run has a table by key, if there are not many more keys than rows.
_TABLE_ROWS: Final = 512
_TABLE_SPARSITY: Final = 8


class Index(NamedTuple):
    """An index of the rows by key.

    Attributes:
      order: rows by (key, position), without null keys.
      ordered: keys of these rows.
      offsets: key -> place in ``order``, with an extra entry; None: ``ordered`` is searched.
    """

    order: IndexArray
    ordered: IndexArray
    offsets: IndexArray | None


def index_of(keys: IndexArray) -> Steps[Index]:
    """Makes the index of a new run."""
    if len(keys) <= steps.INDEXED:
        order = stable_order(keys + 1, int(keys.max()) + 2)
        ordered = keys[order]
    else:
        order = yield from sorted_order(keys)
        ordered = yield from picked([keys], [order])
    nulls = int(ordered.searchsorted(0))
    order, ordered = order[nulls:], ordered[nulls:]
    return Index(order, ordered, (yield from _offsets(ordered, len(keys))))


def _offsets(ordered: IndexArray, rows: int) -> Steps[IndexArray | None]:
    if len(ordered) < _TABLE_ROWS or int(ordered[-1]) >= _TABLE_SPARSITY * rows:
        return None
    count = int(ordered[-1]) + 1
    if count <= steps.INDEXED:
        # With the extra entry, keys beyond the table get (n, n).
        return np.concatenate([[0], np.bincount(ordered).cumsum(), [len(ordered)]])
    offsets = np.empty(count + 2, np.intp)
    for start, stop in portions(count + 2, steps.INDEXED):
        if start:
            yield
        offsets[start:stop] = ordered.searchsorted(np.arange(start, stop))
    return offsets


class SortedRun:
    """Rows in order of position.  Only ``matched`` changes; snapshots share it, and overwritten entries are saved.

    Attributes:
      rows: shape (n,); ids in place of strings (operators/strings.py).
      keys: slot of each row's key, -1 for a key with a null, which matches nothing.
      positions: place of each row in the merged order of both ports.
      spans: see :class:`Spans`.
      matched: one column of n * flags per row entries; None on a side without flags.
      since: shape (n,); with flags, tuple time of the oldest row of the other side that may have set one.
      index: the index by key.
      last: last tuple time at which a row can be matched or is due.
    """

    __slots__ = ("_dues", "_oldest", "index", "keys", "last", "matched", "positions", "rows", "since", "spans")

    def __init__(
        self,
        rows: Rows,
        keys: IndexArray,
        positions: Int64Array,
        spans: Spans,
        matched: Columns | None,
        since: Int64Array | None,
        index: Index,
    ) -> None:
        assert len(rows) == len(keys) == len(positions), "U2: each row has its key and its place"
        self.rows = rows
        self.keys = keys
        self.positions = positions
        self.spans = spans
        self.matched = matched
        self.since = since
        self.index = index
        # No tuple comes after the end of time, however far an interval reaches.
        self.last = min(max(int(spans.until.max()), int(rows.time[-1])), END_OF_TIME - 1)
        self._dues: Dues | None = None
        first = int(rows.time[0])
        self._oldest = first if since is None else min(first, int(since.min()))

    def __len__(self) -> int:
        return len(self.keys)

    def oldest_needed(self) -> int:
        """Tuple time of the oldest row that this run's rows or flags depend on."""
        return self._oldest

    def probe(self, keys: IndexArray) -> tuple[IndexArray, IndexArray]:
        """Returns per key the range [from, to) in the index's order; empty for -1."""
        offsets, ordered = self.index.offsets, self.index.ordered
        if offsets is not None:
            return offsets.take(keys, mode="clip"), offsets.take(keys + 1, mode="clip")
        return ordered.searchsorted(keys), ordered.searchsorted(keys, side="right")

    def mark(self, flags: IndexArray) -> None:
        """Sets flags of rows with a match."""
        assert self.matched is not None, "U2: rows of an outer side have flags"
        self.matched.before_write(flags)
        self.matched.arrays[0][flags] = True

    def dues(self, matcher: Matcher) -> Steps[Dues]:
        """Computes when each row is due without a match, on the first call."""
        if self._dues is None:
            self._dues = yield from matcher.dues(self.rows.time, self.spans)
        return self._dues

    def unmatched(self, dues: Dues, start: int, stop: int) -> tuple[IndexArray, Int64Array, Int64Array | None]:
        """Returns (row, time, window) of the entries ``start`` … ``stop`` − 1 of the dues without a match."""
        assert self.matched is not None
        alone = start + (~self.matched.arrays[0][dues.entry[start:stop]]).nonzero()[0]
        return dues.row[alone], dues.time[alone], None if dues.window is None else dues.window[alone]

    def renumbered(self, slots: IndexArray) -> Steps[SortedRun]:
        """Returns the run with new slots of its keys, in the same order: ``slots[old]``, also for -1."""
        keys = yield from picked([slots], [self.keys])
        ordered = yield from picked([slots], [self.index.ordered])
        index = Index(self.index.order, ordered, (yield from _offsets(ordered, len(keys))))
        return self._with(self.rows, keys, index)

    def recoded(self, rows: Rows) -> SortedRun:
        """Returns the run with new ids of its strings."""
        return self._with(rows, self.keys, self.index)

    def _with(self, rows: Rows, keys: IndexArray, index: Index) -> SortedRun:
        run = SortedRun(rows, keys, self.positions, self.spans, self.matched, self.since, index)
        run._dues = self._dues
        return run

    def freeze(self) -> Mapping[str, Any]:
        return {
            "rows": self.rows,
            "keys": self.keys,
            "positions": self.positions,
            "spans": (self.spans.low, self.spans.high, self.spans.until),
            "matched": None if self.matched is None else self.matched.freeze()[0],
            "since": self.since,
            "index": Derived(self.index),
        }

    @classmethod
    def restoring(cls, state: Mapping[str, Any]) -> Steps[SortedRun]:
        """Restores a run."""
        matched = None
        if state["matched"] is not None:
            matched = flags(0)
            yield from matched.load([state["matched"]])
        shared = state.get("index")
        index = shared.value if isinstance(shared, Derived) else (yield from index_of(state["keys"]))
        return cls(
            state["rows"], state["keys"], state["positions"], Spans(*state["spans"]), matched, state["since"], index
        )


def flags(count: int) -> Columns:
    """Makes match flags, none of them set."""
    made = Columns([(np.bool_, False)])
    made.add(count)
    return made


def merged(first_run: SortedRun, second_run: SortedRun, now: int, flags_per_row: int) -> Steps[SortedRun | None]:
    """Merges two runs, without rows that cannot be matched and are not due at ``now`` or later."""
    needed = []
    for run in (first_run, second_run):
        needed.append((yield from _needed(run, now)))
    counts = [len(r) if k is None else len(k) for r, k in zip((first_run, second_run), needed)]
    if not any(counts):
        return None
    runs = (first_run, second_run)
    rows = yield from picked_rows([r.rows for r in runs], needed)
    low = yield from picked([r.spans.low for r in runs], needed)
    same = all(r.spans.high is r.spans.low for r in runs)
    high = low if same else (yield from picked([r.spans.high for r in runs], needed))
    spans = Spans(low, high, (yield from picked([r.spans.until for r in runs], needed)))
    keys = yield from picked([r.keys for r in runs], needed)
    positions = yield from picked([r.positions for r in runs], needed)
    matched = since = None
    if first_run.matched is not None and second_run.matched is not None:
        matched = yield from _merged_flags(first_run.matched, second_run.matched, needed, flags_per_row)
    if first_run.since is not None and second_run.since is not None:
        since = yield from picked([first_run.since, second_run.since], needed)
    if len(keys) <= steps.INDEXED:
        index = yield from index_of(keys)
    else:
        first = yield from _filtered(first_run, needed[0], 0)
        second = yield from _filtered(second_run, needed[1], counts[0])
        index = yield from _merged_index(first, second, len(keys))
    return SortedRun(rows, keys, positions, spans, matched, since, index)


def _needed(run: SortedRun, now: int) -> Steps[IndexArray | None]:
    """Returns the rows that are still needed; None: all."""
    parts = []
    for start, stop in portions(len(run), steps.COPIED):
        if start:
            yield
        latest = np.maximum(run.spans.until[start:stop], run.rows.time[start:stop])
        parts.append(start + (latest >= now).nonzero()[0])
    if sum(map(len, parts)) == len(run):
        return None
    return (yield from picked(parts, [None] * len(parts)))


def _merged_flags(
    first: Columns, second: Columns, needed: Sequence[IndexArray | None], flags_per_row: int
) -> Steps[Columns]:
    which: list[IndexArray | None] = []
    for index in needed:
        if index is None or flags_per_row == 1:
            which.append(index)
        else:
            which.append((index[:, np.newaxis] * flags_per_row + np.arange(flags_per_row)).reshape(-1))
    made = flags(0)
    yield from made.load([(yield from picked([c.arrays[0][: c.count] for c in (first, second)], which))])
    return made


def _filtered(run: SortedRun, needed: IndexArray | None, first: int) -> Steps[Index]:
    """Returns the part of a run's index for the remaining rows, numbered from ``first`` on."""
    order, ordered, _ = run.index
    number = None
    if needed is not None:
        number = yield from inverse(needed, np.arange(first, first + len(needed)), len(run))
    orders, keys = [np.empty(0, np.intp)], [np.empty(0, np.intp)]
    for start, stop in portions(len(order), steps.INDEXED):
        if start:
            yield
        some = order[start:stop]
        if number is None:
            orders.append(some + first)
            keys.append(ordered[start:stop])
        else:
            new = number.take(some)
            orders.append(new[new >= 0])
            keys.append(ordered[start:stop][new >= 0])
    nothing = [None] * len(orders)
    return Index((yield from picked(orders, nothing)), (yield from picked(keys, nothing)), None)


def _merged_index(first: Index, second: Index, rows: int) -> Steps[Index]:
    """Merges two sorted indexes, where all rows of the first are before those of the second."""
    count = len(first.order) + len(second.order)
    order, ordered = np.empty(count, np.intp), np.empty(count, np.intp)
    for mine, its, side in ((first, second, "left"), (second, first, "right")):
        for start, stop in portions(len(mine.order), steps.INDEXED):
            keys = mine.ordered[start:stop]
            at = its.ordered.searchsorted(keys, side=side) + np.arange(start, stop)  # type: ignore[call-overload]
            order[at], ordered[at] = mine.order[start:stop], keys
            yield
    return Index(order, ordered, (yield from _offsets(ordered, rows)))


class Side:
    """The runs of one side, oldest first."""

    __slots__ = ("flags_per_row", "outer", "runs")

    def __init__(self, outer: bool, flags_per_row: int) -> None:
        #: Are rows without a match in the result?
        self.outer = outer
        self.flags_per_row = flags_per_row
        self.runs: list[SortedRun] = []

    def new_run(
        self, rows: Rows, keys: IndexArray, positions: Int64Array, spans: Spans, since: int
    ) -> Steps[SortedRun]:
        """Adds a run; ``since`` is the tuple time of the oldest row of the other side that its rows may meet."""
        matched = reach = None
        if self.outer:
            matched = flags(len(keys) * self.flags_per_row)
            reach = np.full(len(keys), since, np.int64)
        run = SortedRun(rows, keys, positions, spans, matched, reach, (yield from index_of(keys)))
        self.runs.append(run)
        return run

    def tidy(self, now: int) -> Steps[None]:
        """Drops rows that no tuple at ``now`` or later can meet, and merges small runs."""
        runs = [r for r in self.runs if r.last >= now]
        while len(runs) > 1 and _RATIO * len(runs[-1]) >= len(runs[-2]):
            together = yield from merged(runs[-2], runs[-1], now, self.flags_per_row)
            runs[-2:] = [together] if together is not None else []
        self.runs = runs

    def oldest(self) -> int:
        """Returns the tuple time of the oldest row; END_OF_TIME if there is none."""
        return min((int(r.rows.time[0]) for r in self.runs), default=END_OF_TIME)

    def __len__(self) -> int:
        return sum(len(r) for r in self.runs)
