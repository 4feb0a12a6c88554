"""Aggregates over every ``count`` tuples of a group."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from operators import steps
from operators.aggregate.accumulators import Count
from operators.aggregate.calls import QUIET, Calls
from operators.aggregate.group_cells import Cells, check_found, check_replayed, columns_alone, forget_texts
from operators.columns import chosen, consecutive, filled, inverse, picked, where
from operators.footprints import CellRecord, Footprints, LiveFootprints, Picked, PicksCells, Rewriting, Tree
from operators.ids import IndexArray, stable_order
from operators.keys import KeyIndex
from operators.operator import StepwiseOperator
from operators.rejections import Refusals
from operators.steps import Steps, finished, portions
from operators.strings import KeptStrings
from spe.expressions import compile_expression
from spe.query.operators.aggregate import AggregateSpec
from spe.query.windows import CountWindow
from spe.stream.batch import BoolArray, Column, Rows
from spe.stream.schema import Schema
from spe.stream.times import BEFORE_TIME


class CountAggregate(StepwiseOperator, PicksCells):
    """One row per ``count`` tuples of a group, at the closing tuple's time, in the order of the closing tuples.

    Each window has its own cell; cells of closed windows are dropped some time later.  A partly filled window is
    never released, so state grows with the number of groups, and may depend on tuples of any age.
    """

    def __init__(self, spec: AggregateSpec, input_schema: Schema, schema: Schema) -> None:
        self.schema = schema
        assert isinstance(spec.window, CountWindow)
        self._size = spec.window.count
        self._group_by = [compile_expression(text, input_schema) for text in spec.group_by.values()]
        self.refusals = Refusals() if spec.skips else None
        self._calls = Calls(spec.aggregates, input_schema, count_rows=True, refusals=self.refusals)
        self._key_types = [e.type for e in self._group_by]
        self._is_logged = False
        self._reset()

    def _reset(self) -> None:
        self._keys = KeyIndex(self._key_types)
        self._strings = KeptStrings()
        self._cells = Cells(self._calls, self._strings, self._is_logged)
        #: slot -> cell of the open window, -1 for none; derived from the cells.
        self._open: IndexArray = np.empty(0, np.intp)
        self._sequence = 0
        self._compact_at = steps.SPARE
        #: Cells whose window has closed since the last logged slice.
        self._closed: list[IndexArray] = []
        #: Number of open windows.
        self._windows = 0
        #: G4: are rows before a commit being replayed?
        self._replays = False
        self._is_whole = True

    def work(self, ports: Sequence[Rows | None], boundary: int) -> Iterator[Rows | None]:
        if self._left is not None:
            yield from self._restored()
        rows = ports[0]
        if rows is None or not len(rows):
            return
        yield from self._keys.reserve(len(rows))
        slots = yield from self._keys.slots_in_portions(self._groups_of(rows), len(rows))
        if len(self._open) < self._keys.size:
            yield from self._find_open()
        if self._replays:
            yield from self._replay(rows, slots)
            return
        yield from self._cells.reserve(len(rows))
        cells, closing = self._assign(slots)
        numbers = np.arange(self._sequence, self._sequence + len(rows)) if self._calls.needs_sequence else cells
        yield from self._cells.update_in_portions(cells, self._calls.evaluate(rows), numbers)
        if self.refusals is not None:
            self.refusals.counted_from(self._sequence)
        self._sequence += len(rows)
        if len(closing):
            yield self._rows(rows, slots, cells, closing)
            if self._is_logged:
                self._closed.append(cells[closing])
        if self._cells.count > (2 if self._is_logged else 1) * self._compact_at:
            if self._is_logged:  # so many without writing the log, as in a failure
                yield from self.forget_footprints()
            yield from self._compact()
        yield from forget_texts(self._strings, [self._cells])

    @QUIET
    def _groups_of(self, rows: Rows) -> list[Column]:
        return [e.evaluate(rows) for e in self._group_by]

    def _fills(self) -> Any:
        """Number of rows in each cell."""
        count = self._cells.parts[0]
        assert isinstance(count, Count)
        return count.values

    def _assign(self, slots: IndexArray) -> tuple[IndexArray, IndexArray]:
        """Returns the cell of each row, and the rows that close a window, ascending."""
        order = stable_order(slots, self._keys.size)
        ordered = slots[order]
        position = np.arange(len(slots))
        first_of_group = np.empty(len(slots), np.bool_)
        first_of_group[0] = True
        np.not_equal(ordered[1:], ordered[:-1], out=first_of_group[1:])
        group_start = np.maximum.accumulate(np.where(first_of_group, position, 0))
        held = self._open.take(ordered)
        fill = np.where(held >= 0, self._fills().take(np.maximum(held, 0), mode="clip"), 0) if self._cells.count else 0
        ordinal = fill + (position - group_start)  # 0-based, from the start of the window that was open before
        place = ordinal % self._size
        opens = place == 0
        opened = self._cells.add(ordered[opens], order[opens] + self._sequence)
        self._windows += len(opened)
        at = held
        if len(opened):
            latest = np.maximum(opens.cumsum() - 1, 0)
            at = np.where(ordinal < self._size, np.where(held >= 0, held, opened[latest]), opened[latest])
        cells = np.empty(len(slots), np.intp)
        cells[order] = at
        closes = place == self._size - 1
        last_of_group = np.append(first_of_group[1:], True)
        self._open[ordered[last_of_group]] = np.where(closes, -1, at)[last_of_group]
        closing: IndexArray = np.sort(order[closes])
        self._windows -= len(closing)
        assert self._windows >= 0, "U3: only a window that is open can close"
        return cells, closing

    def _replay(self, rows: Rows, slots: IndexArray) -> Steps[None]:
        """G4: a replayed row from before the commit counts in the open window unless its footprint is later."""
        cells = self._open.take(slots)
        counted = (cells >= 0).nonzero()[0]
        counted = counted[rows.time[counted] >= self._cells.written[cells[counted]]]
        if len(counted):
            yield from self._cells.reserve(len(counted))
            some = [c.take(counted) for c in self._calls.evaluate(rows)]
            yield from self._cells.update_in_portions(cells[counted], some, self._sequence + counted)
        if self.refusals is not None:
            self.refusals.counted_from(self._sequence)
        self._sequence += len(rows)

    def _rows(self, rows: Rows, slots: IndexArray, cells: IndexArray, closing: IndexArray) -> Rows:
        time = rows.time[closing]
        t_max = time if rows.t_max is rows.time else rows.t_max[closing]
        results = self._calls.results(self._cells.parts, cells[closing])
        if self.refusals is not None:
            self.refusals.results = self._calls.failed(self._cells.parts)
        return Rows(time, t_max, (*self._keys.columns(slots[closing]), *results))

    def _is_open(self, start: int, stop: int) -> BoolArray:
        """Tells for each cell from ``start`` to before ``stop`` if its window is open."""
        is_open: BoolArray = self._fills()[start:stop] < self._size
        return is_open

    def _live(self, first: int = 0) -> Steps[IndexArray]:
        """Returns cells of open windows, ascending, from the number ``first`` on."""
        live = [np.empty(0, np.intp)]
        for start, stop in portions(self._cells.count - first, steps.COPIED):
            if start:
                yield
            live.append(first + start + self._is_open(first + start, first + stop).nonzero()[0])
        return (yield from picked(live, [None] * len(live)))

    def _find_open(self) -> Steps[None]:
        open_ = yield from filled(self._keys.size + self._keys.size // 2 + 8, -1)
        live = yield from self._live()
        self._windows = len(live)
        for start, stop in portions(len(live), steps.INDEXED):
            if start:
                yield
            open_[self._cells.slots[live[start:stop]]] = live[start:stop]
        self._open = open_

    def _compact(self) -> Steps[None]:
        """Drops closed cells, and the keys of groups without an open window."""
        live = yield from self._live()
        self._cells = yield from self._cells.selected(live)
        size, slots = self._keys.size, self._cells.slots
        if 2 * len(slots) < size:
            is_live = np.zeros(size, np.bool_)
            for start, stop in portions(len(slots), steps.INDEXED):
                if start:
                    yield
                is_live[slots[start:stop]] = True
            live_slots = yield from chosen(is_live)
            self._keys, new = yield from self._keys.compacted(live_slots)
            yield from self._cells.renumber((yield from inverse(live_slots, new, size)))
        yield from self._find_open()
        self._compact_at = 2 * self._cells.count + steps.SPARE

    def snapshot(self) -> Mapping[str, Any]:
        self._finish_restore()
        return {
            "sequence": self._sequence,
            "keys": self._keys.snapshot(),
            "strings": self._strings.snapshot(),
            "cells": self._cells.freeze(),
        }

    def _restoring(self, state: Mapping[str, Any]) -> Steps[None]:
        self._reset()
        self._sequence = state["sequence"]
        yield from self._strings.load(state["strings"])
        self._keys = yield from KeyIndex.restoring(self._key_types, state["keys"])
        yield from self._cells.load(state["cells"])
        yield from self._find_open()
        self._compact_at = 2 * self._cells.count + steps.SPARE

        self._is_whole = not self._is_logged or not self._cells.logged
        if self._is_logged:  # it is unknown which closings are in the log; repeating them is harmless
            closed = yield from where(self._cells.logged, lambda start, stop: ~self._is_open(start, stop))
            self._closed = [closed]

    def oldest_needed(self) -> int | None:
        return BEFORE_TIME

    # --- the checkpoint log ---

    def begin_log(self) -> None:
        self._is_logged = True
        self._reset()

    def footprints(self, end: int, again: Rewriting) -> Steps[Footprints]:
        yield from self._restored()
        footprints, cells = Footprints(whole=self._is_whole), self._cells
        self._is_whole = False
        yield from self._write_closings(footprints)
        logged = cells.logged
        old = yield from again.chosen(cells.written[:logged], self._is_open)
        footprints.replaced += yield from self._footprints_of(old)
        which = yield from picked([old, (yield from self._live(logged))], [None, None])
        footprints.count = footprints.not_final = len(which)
        footprints.rewritten = len(old)
        yield from cells.mark(old, end)
        yield from cells.mark((yield from consecutive(logged, cells.count)), end)
        yield from self.put(footprints, [(0, which)] if len(which) else [])
        cells.wrote_all()
        if cells.count > self._compact_at:
            yield from self._compact()
        return footprints

    def records(self, picked: Picked) -> Steps[list[Tree]]:
        yield from self._restored()
        records: list[Tree] = []
        for _, which in picked:
            for start, stop in portions(len(which), steps.INDEXED):
                if records:
                    yield
                records.append((yield from self._cells.footprint(which[start:stop], self._keys)))
        return records

    def _write_closings(self, footprints: Footprints) -> Steps[None]:
        """Writes closings of groups with a footprint but without an open window."""
        closed = yield from picked([np.empty(0, np.intp), *self._closed], [None] * (len(self._closed) + 1))
        self._closed = []
        closed = closed[closed < self._cells.logged]
        if not len(closed):
            return
        footprints.replaced += yield from self._footprints_of(closed)
        slots = self._cells.slots[closed]
        slots = slots[self._open[slots] < 0]
        if len(slots):
            keys = yield from columns_alone(self._keys, slots)
            footprints.closings.append({"keys": keys, "born": np.zeros(len(slots), np.int64), "parts": []})

    def live_footprints(self) -> Steps[list[LiveFootprints]]:
        yield from self._restored()
        live = yield from self._live()
        return (yield from self._footprints_of(live[: int(live.searchsorted(self._cells.logged))]))

    def _footprints_of(self, cells: IndexArray) -> Steps[list[LiveFootprints]]:
        """Returns the footprints of these cells, in parts; none is final."""
        parts: list[LiveFootprints] = []
        for start, stop in portions(len(cells), steps.INDEXED):
            if start:
                yield
            parts.append(LiveFootprints(self._cells.written[cells[start:stop]], np.ones(stop - start, np.bool_)))
        return parts

    def forget_footprints(self) -> Steps[None]:
        yield from self._restored()
        yield from self._cells.unmark()
        self._closed, self._is_whole = [], True

    def log_state(self) -> Tree:
        self._finish_restore()
        return {"sequence": self._sequence, "windows": self._windows}

    def reconstruct(self, state: Tree, start: Tree, logged: Sequence[CellRecord]) -> Steps[None]:
        self._left = None
        self._reset()
        self._sequence, self._replays = start["sequence"], True
        yield from self._cells.adopt(self._keys, logged)
        check_found(self._cells.count, state["windows"], "count windows")
        yield from self._find_open()
        self._compact_at = 2 * self._cells.count + steps.SPARE
        self._is_whole = not self._cells.count

    def replays_on(self) -> None:
        self._replays = True

    def gave_up(self, state: Tree) -> None:
        self._finish_restore()
        self._sequence, self._replays = max(self._sequence, state["sequence"]), False
        finished(self._find_open())  # tentative rows may have filled a window that was open

    def replayed(self, state: Tree) -> None:
        check_replayed(self._sequence, state)
        self._replays = False
        check_found(len(finished(self._live())), state["windows"], "count windows that rows do not fill")
