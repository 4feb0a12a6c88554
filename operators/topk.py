"""The first k tuples per group: among those of the same instant, or of the same window."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from operators.aggregate.panes import Panes
from operators.ids import IndexArray, Int64Array
from operators.keys import group_ids
from operators.operator import Operator
from operators.ordering import best, in_reach, sort_keys
from operators.strings import KeptStrings
from operators.windows import Late, Selection, WindowMath, arrivals, first_time, saturated
from spe.expressions import compile_expression
from spe.query.query import TopKSpec
from spe.query.typing import WINDOW_START, topk_window_attributes
from spe.stream.batch import Column, Rows, concat_rows
from spe.stream.schema import Schema
from spe.stream.times import END_OF_TIME

#: Rows that a pane may hold before those that cannot be among the first k any more are dropped.
_PRUNE_AT: Final = 8192


class _Ranking:
    """What ranks where, without any state."""

    def __init__(self, spec: TopKSpec, schema: Schema) -> None:
        self.k = spec.k
        self.with_ties = spec.with_ties
        self._order_by = [(compile_expression(text, schema), descending) for text, descending in spec.order_by]
        self._partition_by = [schema.index(name) for name in spec.partition_by]

    def best(self, rows: Rows, *within: Column) -> tuple[IndexArray, Int64Array]:
        """Rows to take and their ranks, per partition and value of ``within``."""
        keys = [key for e, descending in self._order_by for key in sort_keys(e.evaluate(rows), descending)]
        by = [*within, *(rows.columns[i] for i in self._partition_by)]
        if by:
            return best(group_ids(by, len(rows)), keys, self.k, self.with_ties)
        some = in_reach(keys[0], self.k)
        index, rank = best(np.zeros(len(some), np.int64), [key.take(some) for key in keys], self.k, self.with_ties)
        return some.take(index), rank


class InstantTopK(Operator):
    """Ranks tuples of the same tuple time, such as the results of one window.

    They are all in one slice, so nothing has to be kept.
    """

    def __init__(self, spec: TopKSpec, input_schema: Schema, schema: Schema) -> None:
        self.schema = schema
        self._ranking = _Ranking(spec, input_schema)
        self._ranked = spec.rank_as is not None

    def step(self, ports: Sequence[Rows | None], boundary: int) -> Rows | None:
        rows = ports[0]
        if rows is None or not len(rows):
            return None
        index, rank = self._ranking.best(rows, Column(rows.time))
        taken = rows.take(index)
        return taken.with_columns((*taken.columns, Column(rank))) if self._ranked else taken


class _Candidates:
    """A pane's tuples that may still be among the first k, in order of arrival.  Chunks are never changed."""

    __slots__ = ("_prune_at", "chunks", "count")

    def __init__(self) -> None:
        self.chunks: list[tuple[Rows, Int64Array]] = []
        self.count = 0
        self._prune_at = _PRUNE_AT

    def add(self, rows: Rows, sequence: Int64Array, ranking: _Ranking) -> None:
        self.chunks = [*self.chunks, (rows, sequence)]
        self.count += len(rows)
        if self.count > self._prune_at:
            merged, numbers = _concatenated(self.chunks)
            index = np.sort(ranking.best(merged)[0])
            self.chunks = [(merged.take(index), numbers[index])]
            self.count = len(index)
            self._prune_at = max(_PRUNE_AT, 2 * self.count)


def _concatenated(chunks: Sequence[tuple[Rows, Int64Array]]) -> tuple[Rows, Int64Array]:
    return concat_rows([rows for rows, _ in chunks]), np.concatenate([numbers for _, numbers in chunks])


class WindowTopK(Operator):
    """Ranks tuples of the same window; releases them at the window's end − 1.

    Groups come in the order in which the first of their released tuples arrived.
    """

    def __init__(self, spec: TopKSpec, input_schema: Schema, schema: Schema) -> None:
        assert spec.window is not None
        self.schema = schema
        self._ranking = _Ranking(spec, input_schema)
        self._ranked = spec.rank_as is not None
        self._added = [a.name for a in topk_window_attributes(input_schema)]
        self._math = WindowMath(spec.window)
        self._on = None if spec.window.on is None else input_schema.index(spec.window.on)
        self._reset()

    def _reset(self) -> None:
        self._panes = Panes(self._math, _Candidates)
        self._strings = KeptStrings()
        self._sequence = 0
        self._late = Late()

    def step(self, ports: Sequence[Rows | None], boundary: int) -> Rows | None:
        rows = ports[0]
        out: list[Rows] = []
        if rows is not None and len(rows):
            kept = self._strings.adopt(rows)
            for upto, pane, which in arrivals(self._math, rows, self._on, self._late, self._panes.released):
                if upto > self._panes.released:
                    out += [self._result(end, members) for end, members in self._panes.release(upto)]
                self._take_in(self._panes.take(pane, first_time(rows, which)), kept, which)
            self._sequence += len(rows)
        out += [self._result(end, members) for end, members in self._panes.release(boundary)]
        if self._strings.crowded:
            self._compact()
        return concat_rows(out) if out else None

    def _take_in(self, pane: _Candidates, rows: Rows, which: Selection) -> None:
        if isinstance(which, slice):
            numbers = np.arange(self._sequence + which.start, self._sequence + which.stop)
            if len(numbers) != len(rows):
                rows = rows.slice(which.start, which.stop)
        else:
            numbers, rows = self._sequence + which, rows.take(which)
        pane.add(rows, numbers, self._ranking)

    def _result(self, end: int, members: list[_Candidates]) -> Rows:
        rows, numbers = _concatenated([chunk for pane in members for chunk in pane.chunks])
        if self._on is not None and len(members) > 1:
            rows = rows.take(numbers.argsort(kind="stable"))
        index, rank = self._ranking.best(rows)
        bounds = {WINDOW_START: end - self._math.size}
        added = [Column(np.full(len(index), bounds.get(name, min(end, END_OF_TIME)), np.int64)) for name in self._added]
        if self._ranked:
            added.append(Column(rank))
        time = saturated([end]).repeat(len(index)) - 1
        return Rows(time, time, (*(c.take(index) for c in rows.columns), *added))

    def _compact(self) -> None:
        panes = list(self._panes.by_number.values())
        recoded = iter(self._strings.compacted([rows for p in panes for rows, _ in p.chunks]))
        for pane in panes:
            pane.chunks = [(next(recoded), numbers) for _, numbers in pane.chunks]

    def snapshot(self) -> Mapping[str, Any]:
        return {
            "released": self._panes.released,
            "sequence": self._sequence,
            "late": self._late.state(),
            "since": list(self._panes.since.values()),
            "panes": [(number, pane.chunks) for number, pane in self._panes.by_number.items()],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self._reset()
        self._sequence = state["sequence"]
        self._late = Late(*state["late"])
        panes = {}
        for number, chunks in state["panes"]:
            pane = panes[number] = _Candidates()
            pane.chunks = [(self._strings.adopt(rows), numbers) for rows, numbers in chunks]
            pane.count = sum(len(rows) for rows, _ in pane.chunks)
        self._panes.load(panes, state["since"], state["released"])

    def counters(self) -> Mapping[str, int]:
        return self._late.counters()

    def oldest_needed(self) -> int | None:
        return self._panes.oldest()

    def clear(self, boundary: int) -> None:
        self._reset()
        self._panes.released = boundary

    def recount(self, counters: Mapping[str, int]) -> None:
        self._late = Late(**counters)

    def rewind(self, boundary: int) -> bool:
        self._panes.released = boundary  # no pane had a window that ended since then, or rows would have come out
        return True
