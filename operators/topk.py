"""The first k tuples per group, of the same instant or of the same window."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from operators import steps
from operators.aggregate.panes import PaneOperator, Panes
from operators.columns import picked, picked_rows, sorted_order
from operators.ids import IndexArray, Int64Array
from operators.keys import group_ids
from operators.operator import StepwiseOperator
from operators.ordering import best, in_reach, sort_keys
from operators.rejections import Refusals
from operators.steps import Steps, portions
from operators.strings import KeptStrings
from operators.windows import Late, LateRejections, Selection, arrivals, first_time, saturated
from spe.expressions import compile_expression
from spe.query.operators.topk import TopKSpec
from spe.query.windows import WINDOW_START
from spe.stream.batch import Column, Rows, canonical, concat_rows
from spe.stream.hashing import partition_of
from spe.stream.schema import Schema
from spe.stream.times import END_OF_TIME

#: Number of rows of a pane from which rows that cannot be among the first k are dropped.
_PRUNE_AT: Final = 8192
#: Number of panes that take rows, or of windows that end, after which a step yields, however few rows they have.
_MANY: Final = 64


class _Ranking:
    """Ranks rows; has no state."""

    def __init__(self, spec: TopKSpec, schema: Schema) -> None:
        self.k = spec.k
        self.with_ties = spec.with_ties
        self._order_by = [(compile_expression(text, schema), descending) for text, descending in spec.order_by]
        self._ordered_by = sorted({schema.index(name) for e, _ in self._order_by for name in e.references})
        self._partition_by = [schema.index(name) for name in spec.partition_by]

    def best(
        self, rows: Rows, strings: KeptStrings, *within: Column
    ) -> Steps[tuple[IndexArray, Int64Array, IndexArray]]:
        """Returns the selected rows, their ranks, and the first selected row of their group and value of ``within``.

        ``strings`` has the strings of stored rows.
        """
        looked_at = yield from strings.given_back(rows, self._ordered_by)
        keys = [key for e, descending in self._order_by for key in sort_keys(e.evaluate(looked_at), descending)]
        by = [*within, *self._partitions(rows)]
        if by:
            return best(group_ids(by, len(rows)), keys, self.k, self.with_ties)
        some = in_reach(keys[0], self.k)
        index, rank, first = best(None, [key.take(some) for key in keys], self.k, self.with_ties)
        return some.take(index), rank, some.take(first)

    def _partitions(self, rows: Rows) -> list[Column]:
        return [rows.columns[i] for i in self._partition_by]

    def best_in_portions(
        self, rows: Rows, strings: KeptStrings, *within: Column
    ) -> Steps[tuple[IndexArray, Int64Array]]:
        """Returns the selected rows and their ranks.  Many rows are divided by partition."""
        if len(rows) <= steps.INDEXED:
            index, rank, _ = yield from self.best(rows, strings, *within)
            return index, rank
        taken, ranks, firsts = [], [], []
        for share in (yield from self._shares([*within, *self._partitions(rows)], len(rows))):
            which = yield from self._pruned(rows, strings, within, share)
            index, rank, first = yield from self.best(rows.take(which), strings, *[c.take(which) for c in within])
            taken.append(which[index])
            ranks.append(rank)
            firsts.append(which[first])
            yield
        everything = [None] * len(taken)
        order = yield from sorted_order((yield from picked(firsts, everything)))
        index = yield from picked([(yield from picked(taken, everything))], [order])
        return index, (yield from picked([(yield from picked(ranks, everything))], [order]))

    def _shares(self, by: Sequence[Column], count: int) -> Steps[list[IndexArray]]:
        """Divides rows, ascending, so that equal keys are in one share."""
        if not by:
            return [np.arange(count)]
        shares = 2 * count // steps.INDEXED + 1
        share_of, sizes = np.empty(count, np.int64), np.zeros(shares, np.int64)
        for start, stop in portions(count, steps.INDEXED):
            if start:
                yield
            share_of[start:stop] = partition_of([_plain(c.slice(start, stop)) for c in by], shares)
            sizes += np.bincount(share_of[start:stop], minlength=shares)
        order = yield from sorted_order(share_of)
        return [s for s in np.split(order, sizes.cumsum()[:-1]) if len(s)]

    def _pruned(
        self, rows: Rows, strings: KeptStrings, within: Sequence[Column], which: IndexArray
    ) -> Steps[IndexArray]:
        """Drops rows that are not among the first k of a part, and so not among the first k of all."""
        while len(which) > steps.INDEXED:
            parts = []
            for start, stop in portions(len(which), steps.INDEXED):
                if start:
                    yield
                some = which[start:stop]
                index, _, _ = yield from self.best(rows.take(some), strings, *[c.take(some) for c in within])
                parts.append(some[np.sort(index)])
            fewer = yield from picked(parts, [None] * len(parts))
            if 4 * len(fewer) > 3 * len(which):
                return fewer
            which = fewer
        return which


def _plain(column: Column) -> Column:
    """Returns values that are equal where the column's are: codes in one dictionary, or ids, for strings."""
    values = column.values.astype(np.int64) if column.values.dtype == np.int32 else column.values
    return Column(canonical(values), column.valid)


class InstantTopK(StepwiseOperator):
    """Ranks tuples of the same tuple time, such as the results of one window.

    They are all in one slice, so there is no state after its end.
    """

    def __init__(self, spec: TopKSpec, input_schema: Schema, schema: Schema) -> None:
        self.schema = schema
        self._ranking = _Ranking(spec, input_schema)
        self._ranked = spec.rank_as is not None
        #: Rows of an instant of which more rows follow.
        self._held = _Candidates()
        self._strings = KeptStrings()

    def work(self, ports: Sequence[Rows | None], boundary: int) -> Iterator[Rows | None]:
        rows = ports[0]
        if rows is not None and len(rows):
            if rows.time[-1] == boundary or self._held.count:
                rows = yield from self._hold(rows, boundary)
        elif self._held.count:
            rows = yield from self._all_held()
        if rows is None or not len(rows):
            return
        index, rank = yield from self._ranking.best_in_portions(rows, self._strings, Column(rows.time))
        for start, stop in portions(len(index), steps.RELEASED):
            if start:
                yield None
            taken = yield from self._strings.given_back(rows.take(index[start:stop]))
            yield taken.with_columns((*taken.columns, Column(rank[start:stop]))) if self._ranked else taken

    def _hold(self, rows: Rows, boundary: int) -> Steps[Rows | None]:
        """Stores rows of an instant that may be incomplete; returns the rows of earlier instants."""
        assert rows.time[-1] <= boundary, "U2: a row lies before the boundary, or on it while more of its time follow"
        if not self._held.count:
            self._strings = KeptStrings()
        rows = yield from self._strings.adopt(rows)
        whole: list[Rows] = []
        if self._held.count and boundary > self._held.chunks[0][0].time[0]:
            whole.append((yield from self._all_held()))
        at = int(rows.time.searchsorted(boundary))
        if at < len(rows):
            more = rows.slice(at, len(rows))
            yield from self._held.add(more, np.arange(at, len(rows)), self._ranking, self._strings)
        if at:
            whole.append(rows.slice(0, at))
        return (yield from picked_rows(whole, [None] * len(whole))) if whole else None

    def _all_held(self) -> Steps[Rows]:
        chunks, self._held = self._held.chunks, _Candidates()
        return (yield from picked_rows([rows for rows, _ in chunks], [None] * len(chunks)))

    def _restoring(self, state: Mapping[str, Any]) -> Steps[None]:
        self.clear(0)
        yield from ()

    def oldest_needed(self) -> int | None:
        return int(self._held.chunks[0][0].time[0]) if self._held.count else None

    def clear(self, boundary: int) -> None:
        self._held, self._strings = _Candidates(), KeptStrings()

    def rewind(self, boundary: int) -> bool:
        return not self._held.count


class _Candidates:
    """Tuples that may be among the first k, in order of arrival.  Chunks are never changed."""

    __slots__ = ("_prune_at", "chunks", "count")

    def __init__(self) -> None:
        self.chunks: list[tuple[Rows, Int64Array]] = []
        self.count = 0
        self._prune_at = _PRUNE_AT

    def add(self, rows: Rows, sequence: Int64Array, ranking: _Ranking, strings: KeptStrings) -> Steps[None]:
        assert len(rows) == len(sequence), "U3: each row has its place in the order of arrival"
        self.chunks = [*self.chunks, (rows, sequence)]
        self.count += len(rows)
        if self.count > self._prune_at:
            others = self.chunks[:-1] if 2 * len(rows) > self.count else []  # most rows are in one piece already
            merged, numbers = yield from _concatenated(self.chunks[len(others) :])
            index, _ = yield from ranking.best_in_portions(merged, strings)
            index = yield from picked([index], [(yield from sorted_order(index))])
            rows = yield from picked_rows([merged], [index])
            self.chunks = [*others, (rows, (yield from picked([numbers], [index])))]
            self.count += len(index) - len(merged)
            self._prune_at = max(_PRUNE_AT, 2 * self.count)


def _concatenated(chunks: Sequence[tuple[Rows, Int64Array]]) -> Steps[tuple[Rows, Int64Array]]:
    if len(chunks) == 1:
        return chunks[0]
    everything = [None] * len(chunks)
    rows = yield from picked_rows([rows for rows, _ in chunks], everything)
    return rows, (yield from picked([numbers for _, numbers in chunks], everything))


class WindowTopK(PaneOperator[_Candidates]):
    """Ranks tuples of the same window, and releases them at the window's end − 1.

    Groups are in the order of arrival of their first released tuple.
    """

    def __init__(self, spec: TopKSpec, input_schema: Schema, schema: Schema) -> None:
        assert spec.window is not None
        self.schema = schema
        self._ranking = _Ranking(spec, input_schema)
        self._ranked = spec.rank_as is not None
        self._added = [a.name for a in spec.window_attributes(input_schema)]
        self._window = spec.window
        self._on = None if spec.window.on is None else input_schema.index(spec.window.on)
        self.refusals = Refusals() if spec.rejects_late else None
        self._rejections = None if self.refusals is None else LateRejections(self.refusals, 0, 0)
        self._reset()

    def _reset(self) -> None:
        self._panes = Panes(self._window, _Candidates)
        self._strings = KeptStrings()
        self._sequence = 0
        self._late = Late()

    def work(self, ports: Sequence[Rows | None], boundary: int) -> Iterator[Rows | None]:
        if self._left is not None:
            yield from self._restored()
        rows = ports[0]
        out: list[Rows] = []
        if rows is not None and len(rows):
            adopted = yield from self._strings.adopt(rows)
            came = arrivals(self._window, rows, self._on, self._late, self._panes.released, self._rejections)
            for number, (upto, pane, which) in enumerate(came, 1):
                if upto > self._panes.released:
                    yield from self._release(upto, out)
                yield from self._take_in(self._panes.take(pane, first_time(rows, which)), adopted, which)
                if number % _MANY == 0:
                    yield None
            self._sequence += len(rows)
        yield from self._release(boundary, out)
        if out:
            yield (yield from self._strings.given_back(concat_rows(out)))
        if self._strings.crowded:
            yield from self._compact()

    def _take_in(self, pane: _Candidates, rows: Rows, which: Selection) -> Steps[None]:
        if isinstance(which, slice):
            numbers = np.arange(self._sequence + which.start, self._sequence + which.stop)
            if len(numbers) != len(rows):
                rows = rows.slice(which.start, which.stop)
        else:
            numbers, rows = self._sequence + which, rows.take(which)
        yield from pane.add(rows, numbers, self._ranking, self._strings)

    def _release(self, upto: int, out: list[Rows]) -> Iterator[Rows | None]:
        """Adds the results of windows that end by ``upto`` to ``out``; yields ``out`` if it has many rows."""
        for number, (begin, end, members) in enumerate(self._panes.release(upto), 1):
            rows, numbers = yield from _concatenated([chunk for pane in members for chunk in pane.chunks])
            if self._on is not None and len(members) > 1:
                order = yield from sorted_order(numbers)
                rows = yield from picked_rows([rows], [order])
            index, rank = yield from self._ranking.best_in_portions(rows, self._strings)
            for start, stop in portions(len(index), steps.RELEASED):
                if start:
                    yield (yield from self._strings.given_back(concat_rows(out)))
                    yield None
                    out.clear()
                out.append(self._result(begin, end, rows, index[start:stop], rank[start:stop]))
            if number % _MANY == 0:
                yield None

    def _result(self, begin: int, end: int, rows: Rows, index: IndexArray, rank: Int64Array) -> Rows:
        bounds = {WINDOW_START: begin}
        added = [Column(np.full(len(index), bounds.get(name, min(end, END_OF_TIME)), np.int64)) for name in self._added]
        if self._ranked:
            added.append(Column(rank))
        time = saturated([end]).repeat(len(index)) - 1
        return Rows(time, time, (*(c.take(index) for c in rows.columns), *added))

    def _compact(self) -> Steps[None]:
        panes = list(self._panes.by_number.values())
        rows = iter((yield from self._strings.compacted_rows([rows for p in panes for rows, _ in p.chunks])))
        for pane in panes:
            pane.chunks = [(next(rows), numbers) for _, numbers in pane.chunks]

    def snapshot(self) -> Mapping[str, Any]:
        self._finish_restore()
        return {
            "released": self._panes.released,
            "sequence": self._sequence,
            "late": self._late.state(),
            "strings": self._strings.snapshot(),
            "since": list(self._panes.since.values()),
            "panes": [(number, pane.chunks) for number, pane in self._panes.by_number.items()],
        }

    def _restoring(self, state: Mapping[str, Any]) -> Steps[None]:
        self._reset()
        self._sequence = state["sequence"]
        self._late = Late(*state["late"])
        panes = {}
        for number, chunks in state["panes"]:
            pane = panes[number] = _Candidates()
            pane.chunks = list(chunks)
            pane.count = sum(len(rows) for rows, _ in chunks)
        self._panes.load(panes, state["since"], state["released"])
        yield from self._strings.load(state["strings"])
