"""What one side of a join remembers: immutable runs of rows, indexed by key."""

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

#: A run is merged into the one before it unless that is more than this many times as large.  Fewer runs to probe
#: against more copying; each row is copied about log(state / batch) times.
_RATIO: Final = 4
#: From this many rows on a run gets a table by key, if keys are not much more numerous than rows.
_TABLE_ROWS: Final = 512
_TABLE_SPARSITY: Final = 8


class Index(NamedTuple):
    """Where the rows of each key are.

    Attributes:
      order: rows by (key, position), without null keys.
      ordered: their keys.
      offsets: key -> place in ``order``, with one entry more than a next key needs; None: to be searched.
    """

    order: IndexArray
    ordered: IndexArray
    offsets: IndexArray | None


def index_of(keys: IndexArray) -> Steps[Index]:
    """The index of a new run."""
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
        # One entry more than a next key needs: what is beyond the table finds (n, n).
        return np.concatenate([[0], np.bincount(ordered).cumsum(), [len(ordered)]])
    offsets = np.empty(count + 2, np.intp)
    for start, stop in portions(count + 2, steps.INDEXED):
        if start:
            yield
        offsets[start:stop] = ordered.searchsorted(np.arange(start, stop))
    return offsets


class SortedRun:
    """Rows in order of position.  Only ``matched`` changes; snapshots share it, and what is overwritten is saved.

    Attributes:
      rows: shape (n,); ids in place of strings (operators/strings.py).
      keys: slot of each row's key, -1 for a key with a null, which matches nothing.
      positions: place of each row in the merged order of both ports.
      spans: see :class:`Spans`.
      matched: one column of n * flags per row entries; None on a side that needs no flags.
      since: shape (n,); with flags: tuple time of the oldest row of the other side that may have set one.
      index: by key.
      last: after this tuple time no row can be matched and none is due.
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
        self.rows = rows
        self.keys = keys
        self.positions = positions
        self.spans = spans
        self.matched = matched
        self.since = since
        self.index = index
        # What comes at the end of time comes last: no tuple can meet it later, however far its interval reaches.
        self.last = min(max(int(spans.until.max()), int(rows.time[-1])), END_OF_TIME - 1)
        self._dues: Dues | None = None
        first = int(rows.time[0])
        self._oldest = first if since is None else min(first, int(since.min()))

    def __len__(self) -> int:
        return len(self.keys)

    def oldest_needed(self) -> int:
        """Tuple time of the oldest row that this run owes rows or flags to."""
        return self._oldest

    def probe(self, keys: IndexArray) -> tuple[IndexArray, IndexArray]:
        """Per key the range [from, to) in the index's order; empty for -1."""
        offsets, ordered = self.index.offsets, self.index.ordered
        if offsets is not None:
            return offsets.take(keys, mode="clip"), offsets.take(keys + 1, mode="clip")
        return ordered.searchsorted(keys), ordered.searchsorted(keys, side="right")

    def mark(self, flags: IndexArray) -> None:
        """These have found a match."""
        assert self.matched is not None
        self.matched.before_write(flags)
        self.matched.arrays[0][flags] = True

    def dues(self, matcher: Matcher) -> Steps[Dues]:
        """When each row is due if it found nothing; made when it is first asked for."""
        if self._dues is None:
            self._dues = yield from matcher.dues(self.rows.time, self.spans)
        return self._dues

    def unmatched(self, dues: Dues, start: int, stop: int) -> tuple[IndexArray, Int64Array, Int64Array | None]:
        """(row, time, window) of those of the entries ``start`` … ``stop`` − 1 of the dues that found nothing."""
        assert self.matched is not None
        alone = start + (~self.matched.arrays[0][dues.entry[start:stop]]).nonzero()[0]
        return dues.row[alone], dues.time[alone], None if dues.window is None else dues.window[alone]

    def renumbered(self, slots: IndexArray) -> Steps[SortedRun]:
        """The same run after its keys got new slots, in the same order: ``slots[old]``, also of -1."""
        keys = yield from picked([slots], [self.keys])
        ordered = yield from picked([slots], [self.index.ordered])
        index = Index(self.index.order, ordered, (yield from _offsets(ordered, len(keys))))
        return self._with(self.rows, keys, index)

    def recoded(self, rows: Rows) -> SortedRun:
        """The same run after its strings got new ids."""
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
        """What a state was taken of."""
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
    """Match flags, none of them set."""
    made = Columns([(np.bool_, False)])
    made.add(count)
    return made


def merged(one: SortedRun, other: SortedRun, now: int, flags_per_row: int) -> Steps[SortedRun | None]:
    """One run of those rows, in order, that can still be matched or are due at ``now`` or later."""
    kept = []
    for run in (one, other):
        kept.append((yield from _kept(run, now)))
    counts = [len(r) if k is None else len(k) for r, k in zip((one, other), kept)]
    if not any(counts):
        return None
    runs = (one, other)
    rows = yield from picked_rows([r.rows for r in runs], kept)
    low = yield from picked([r.spans.low for r in runs], kept)
    same = all(r.spans.high is r.spans.low for r in runs)
    high = low if same else (yield from picked([r.spans.high for r in runs], kept))
    spans = Spans(low, high, (yield from picked([r.spans.until for r in runs], kept)))
    keys = yield from picked([r.keys for r in runs], kept)
    positions = yield from picked([r.positions for r in runs], kept)
    matched = since = None
    if one.matched is not None and other.matched is not None:
        matched = yield from _merged_flags(one.matched, other.matched, kept, flags_per_row)
    if one.since is not None and other.since is not None:
        since = yield from picked([one.since, other.since], kept)
    if len(keys) <= steps.INDEXED:
        index = yield from index_of(keys)
    else:
        first = yield from _filtered(one, kept[0], 0)
        second = yield from _filtered(other, kept[1], counts[0])
        index = yield from _merged_index(first, second, len(keys))
    return SortedRun(rows, keys, positions, spans, matched, since, index)


def _kept(run: SortedRun, now: int) -> Steps[IndexArray | None]:
    """The rows that are still of use; None: all."""
    found = []
    for start, stop in portions(len(run), steps.COPIED):
        if start:
            yield
        latest = np.maximum(run.spans.until[start:stop], run.rows.time[start:stop])
        found.append(start + (latest >= now).nonzero()[0])
    if sum(map(len, found)) == len(run):
        return None
    return (yield from picked(found, [None] * len(found)))


def _merged_flags(
    one: Columns, other: Columns, kept: Sequence[IndexArray | None], flags_per_row: int
) -> Steps[Columns]:
    which: list[IndexArray | None] = []
    for index in kept:
        if index is None or flags_per_row == 1:
            which.append(index)
        else:
            which.append((index[:, np.newaxis] * flags_per_row + np.arange(flags_per_row)).reshape(-1))
    made = flags(0)
    yield from made.load([(yield from picked([c.arrays[0][: c.count] for c in (one, other)], which))])
    return made


def _filtered(run: SortedRun, kept: IndexArray | None, first: int) -> Steps[Index]:
    """The part of a run's index that is kept, its rows numbered from ``first`` on."""
    order, ordered, _ = run.index
    number = None
    if kept is not None:
        number = yield from inverse(kept, np.arange(first, first + len(kept)), len(run))
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


def _merged_index(one: Index, other: Index, rows: int) -> Steps[Index]:
    """Of two indexes, all rows of the first before those of the second: both are sorted, so each finds its places."""
    count = len(one.order) + len(other.order)
    order, ordered = np.empty(count, np.intp), np.empty(count, np.intp)
    for mine, its, side in ((one, other, "left"), (other, one, "right")):
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
        #: Are rows without a match part of the result?
        self.outer = outer
        self.flags_per_row = flags_per_row
        self.runs: list[SortedRun] = []

    def new_run(
        self, rows: Rows, keys: IndexArray, positions: Int64Array, spans: Spans, since: int
    ) -> Steps[SortedRun]:
        """``since``: tuple time of the oldest row of the other side that these may meet."""
        matched = reach = None
        if self.outer:
            matched = flags(len(keys) * self.flags_per_row)
            reach = np.full(len(keys), since, np.int64)
        run = SortedRun(rows, keys, positions, spans, matched, reach, (yield from index_of(keys)))
        self.runs.append(run)
        return run

    def tidy(self, now: int) -> Steps[None]:
        """Drops what no tuple at ``now`` or later can meet, and merges small runs.  What was due before is out."""
        runs = [r for r in self.runs if r.last >= now]
        while len(runs) > 1 and _RATIO * len(runs[-1]) >= len(runs[-2]):
            together = yield from merged(runs[-2], runs[-1], now, self.flags_per_row)
            runs[-2:] = [together] if together is not None else []
        self.runs = runs

    def oldest(self) -> int:
        """Tuple time of the oldest row; END_OF_TIME: there is none."""
        return min((int(r.rows.time[0]) for r in self.runs), default=END_OF_TIME)

    def __len__(self) -> int:
        return sum(len(r) for r in self.runs)
