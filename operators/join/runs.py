"""What one side of a join remembers: immutable runs of rows, indexed by key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from operators.ids import IndexArray, Int64Array, stable_order
from operators.join.match import Dues, Matcher, Spans
from spe.stream.batch import BoolArray, Rows, concat_rows
from spe.stream.times import END_OF_TIME

#: A run is merged into the one before it unless that is more than this many times as large.  Fewer runs to probe
#: against more copying; each row is copied about log(state / batch) times.
_RATIO: Final = 4
#: From this many rows on a run gets a table by key, if keys are not much more numerous than rows.
_TABLE_ROWS: Final = 512
_TABLE_SPARSITY: Final = 8


class Run:
    """Rows in order of position.  Only ``matched`` changes, and is copied before that when a snapshot has it.

    Attributes:
      rows: shape (n,).
      keys: slot of each row's key, -1 for a key with a null, which matches nothing.
      positions: place of each row in the merged order of both ports.
      spans: see :class:`Spans`.
      matched: shape (n * flags per row,); None on a side that needs no flags.
      since: shape (n,); with flags: tuple time of the oldest row of the other side that may have set one.
      last: after this tuple time no row can be matched and none is due.
    """

    __slots__ = ("_dues", "_offsets", "_ordered", "_shared", "keys", "last", "matched", "order", "positions", "rows",
                 "since", "spans")  # fmt: skip

    def __init__(
        self,
        rows: Rows,
        keys: IndexArray,
        positions: Int64Array,
        spans: Spans,
        matched: BoolArray | None,
        since: Int64Array | None,
    ) -> None:
        self.rows = rows
        self.keys = keys
        self.positions = positions
        self.spans = spans
        self.matched = matched
        self.since = since
        self.last = max(int(spans.until.max()), int(rows.time[-1]))
        self._shared = False
        self._dues: Dues | None = None
        self._offsets: IndexArray | None = None
        self._index()

    def _index(self) -> None:
        keys = self.keys
        order = stable_order(keys + 1, int(keys.max()) + 2)
        ordered = keys[order]
        nulls = int(ordered.searchsorted(0))
        #: Rows by (key, position), without null keys.
        self.order: IndexArray = order[nulls:]
        self._ordered = ordered[nulls:]
        if len(self._ordered) >= _TABLE_ROWS and int(self._ordered[-1]) < _TABLE_SPARSITY * len(keys):
            counts = np.bincount(self._ordered)
            # One entry more than a next key needs: what is beyond the table finds (n, n).
            self._offsets = np.concatenate([[0], counts.cumsum(), [len(self._ordered)]])

    def __len__(self) -> int:
        return len(self.keys)

    def oldest_needed(self) -> int:
        """Tuple time of the oldest row that this run owes rows or flags to."""
        first = int(self.rows.time[0])
        return first if self.since is None else min(first, int(self.since.min()))

    def probe(self, keys: IndexArray) -> tuple[IndexArray, IndexArray]:
        """Per key the range [from, to) in ``order``; empty for -1."""
        if self._offsets is not None:
            return self._offsets.take(keys, mode="clip"), self._offsets.take(keys + 1, mode="clip")
        return self._ordered.searchsorted(keys), self._ordered.searchsorted(keys, side="right")

    def mark(self, flags: IndexArray) -> None:
        """These have found a match."""
        assert self.matched is not None
        if self._shared:
            self.matched, self._shared = self.matched.copy(), False
        self.matched[flags] = True

    def unmatched(self, matcher: Matcher, since: int, until: int) -> tuple[IndexArray, Int64Array, Int64Array | None]:
        """(row, time, window) of what is due in [since, until) and found nothing, by (time, position)."""
        assert self.matched is not None
        if self._dues is None:
            self._dues = matcher.dues(self.rows.time, self.spans)
        dues = self._dues
        a, b = (int(i) for i in dues.time.searchsorted([since, until]))
        alone = a + (~self.matched[dues.entry[a:b]]).nonzero()[0]
        return dues.row[alone], dues.time[alone], None if dues.window is None else dues.window[alone]

    def renumbered(self, keys: IndexArray, rows: Rows) -> Run:
        """The same run after its keys got new slots, or its strings new codes."""
        run = Run(rows, keys, self.positions, self.spans, self.matched, self.since)
        run._shared = self._shared
        return run

    def freeze(self) -> Mapping[str, Any]:
        self._shared = self.matched is not None
        spans = (self.spans.low, self.spans.high, self.spans.until)
        return {
            "rows": self.rows,
            "keys": self.keys,
            "positions": self.positions,
            "spans": spans,
            "matched": self.matched,
            "since": self.since,
        }

    @classmethod
    def loaded(cls, state: Mapping[str, Any], rows: Rows) -> Run:
        spans = Spans(*state["spans"])
        run = cls(rows, state["keys"], state["positions"], spans, state["matched"], state["since"])
        run._shared = run.matched is not None
        return run


def merged(runs: Sequence[Run], now: int, flags_per_row: int) -> Run | None:
    """One run of those rows, in order, that can still be matched or are due at ``now`` or later."""
    rows = concat_rows([r.rows for r in runs])
    low = np.concatenate([r.spans.low for r in runs])
    same = all(r.spans.high is r.spans.low for r in runs)
    high = low if same else np.concatenate([r.spans.high for r in runs])
    spans = Spans(low, high, np.concatenate([r.spans.until for r in runs]))
    keys = np.concatenate([r.keys for r in runs])
    positions = np.concatenate([r.positions for r in runs])
    flags = [r.matched for r in runs if r.matched is not None]
    matched = np.concatenate(flags) if flags else None
    reaches = [r.since for r in runs if r.since is not None]
    since = np.concatenate(reaches) if reaches else None
    kept = (np.maximum(spans.until, rows.time) >= now).nonzero()[0]
    if len(kept) < len(keys):
        if not len(kept):
            return None
        rows, spans, keys, positions = rows.take(kept), spans.take(kept), keys[kept], positions[kept]
        if matched is not None:
            matched = matched.reshape(-1, flags_per_row)[kept].reshape(-1)
        since = None if since is None else since[kept]
    return Run(rows, keys, positions, spans, matched, since)


class Side:
    """The runs of one side, oldest first."""

    __slots__ = ("flags_per_row", "outer", "runs")

    def __init__(self, outer: bool, flags_per_row: int) -> None:
        #: Are rows without a match part of the result?
        self.outer = outer
        self.flags_per_row = flags_per_row
        self.runs: list[Run] = []

    def new_run(self, rows: Rows, keys: IndexArray, positions: Int64Array, spans: Spans, since: int) -> Run:
        """``since``: tuple time of the oldest row of the other side that these may meet."""
        matched = reach = None
        if self.outer:
            matched = np.zeros(len(keys) * self.flags_per_row, np.bool_)
            reach = np.full(len(keys), since, np.int64)
        run = Run(rows, keys, positions, spans, matched, reach)
        self.runs.append(run)
        return run

    def tidy(self, now: int) -> None:
        """Drops what no tuple at ``now`` or later can meet, and merges small runs.  What was due before is out."""
        runs = [r for r in self.runs if r.last >= now]
        while len(runs) > 1 and _RATIO * len(runs[-1]) >= len(runs[-2]):
            together = merged(runs[-2:], now, self.flags_per_row)
            runs[-2:] = [together] if together is not None else []
        self.runs = runs

    def oldest(self) -> int:
        """Tuple time of the oldest row; END_OF_TIME: there is none."""
        return min((int(r.rows.time[0]) for r in self.runs), default=END_OF_TIME)

    def __len__(self) -> int:
        return sum(len(r) for r in self.runs)
