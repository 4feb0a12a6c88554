"""Aggregates over every ``count`` tuples of a group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from operators.aggregate.accumulators import Count
from operators.aggregate.calls import Calls
from operators.aggregate.group_cells import Cells
from operators.ids import IndexArray, stable_order
from operators.keys import KeyIndex
from operators.operator import Operator
from spe.expressions import compile_expression
from spe.query.query import AggregateSpec
from spe.stream.batch import Rows
from spe.stream.schema import Schema
from spe.stream.times import BEFORE_TIME

#: Closed cells, and slots of groups without an open window, that may lie about beyond the live ones.
_SPARE: Final = 4096


class CountAggregate(Operator):
    """One row per ``count`` tuples of a group, at the closing tuple's time, in the order of the closing tuples.

    Each window has a cell of its own; a closed one is dead and dropped some time later.  A partly filled window is
    never released, so state grows with the number of groups, and may owe something to a tuple of any age.
    """

    def __init__(self, spec: AggregateSpec, input_schema: Schema, schema: Schema) -> None:
        self.schema = schema
        self._size = spec.window.count
        self._group_by = [compile_expression(text, input_schema) for text in spec.group_by.values()]
        self._calls = Calls(spec.aggregates, input_schema, count_rows=True)
        self._key_types = [e.type for e in self._group_by]
        self._keys = KeyIndex(self._key_types)
        self._cells = Cells(self._calls)
        #: slot -> cell of the open window, -1 for none; derived from the cells.
        self._open: IndexArray = np.empty(0, np.intp)
        self._sequence = 0
        self._compact_at = _SPARE

    @np.errstate(over="ignore", invalid="ignore")  # infinities and NaN are values like others
    def step(self, ports: Sequence[Rows | None], boundary: int) -> Rows | None:
        rows = ports[0]
        if rows is None or not len(rows):
            return None
        slots = self._keys.slots([e.evaluate(rows) for e in self._group_by], len(rows))
        if len(self._open) < self._keys.size:
            self._find_open()
        self._cells.thaw()
        cells, closing = self._assign(slots)
        numbers = np.arange(self._sequence, self._sequence + len(rows)) if self._calls.needs_sequence else cells
        self._cells.update(cells, self._calls.evaluate(rows), numbers)
        self._sequence += len(rows)
        out = self._rows(rows, slots, cells, closing) if len(closing) else None
        if self._cells.count > self._compact_at:
            self._compact()
        return out

    def _fills(self) -> Any:
        """Rows in each cell."""
        count = self._cells.parts[0]
        assert isinstance(count, Count)
        return count.values

    def _assign(self, slots: IndexArray) -> tuple[IndexArray, IndexArray]:
        """The cell of each row, and the rows that close a window, ascending."""
        order = stable_order(slots, self._keys.size)
        ordered = slots[order]
        position = np.arange(len(slots))
        first_of_group = np.empty(len(slots), np.bool_)
        first_of_group[0] = True
        np.not_equal(ordered[1:], ordered[:-1], out=first_of_group[1:])
        group_start = np.maximum.accumulate(np.where(first_of_group, position, 0))
        held = self._open.take(ordered)
        fill = np.where(held >= 0, self._fills().take(np.maximum(held, 0), mode="clip"), 0) if self._cells.count else 0
        ordinal = fill + (position - group_start)  # 0-based, counted from the start of the window open before
        place = ordinal % self._size
        opens = place == 0
        opened = self._cells.add(ordered[opens], order[opens] + self._sequence)
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
        return cells, closing

    def _rows(self, rows: Rows, slots: IndexArray, cells: IndexArray, closing: IndexArray) -> Rows:
        time = rows.time[closing]
        t_max = time if rows.t_max is rows.time else rows.t_max[closing]
        results = self._calls.results(self._cells.parts, cells[closing])
        return Rows(time, t_max, (*self._keys.columns(slots[closing]), *results))

    def _live(self) -> IndexArray:
        live: IndexArray = (self._fills()[: self._cells.count] < self._size).nonzero()[0]
        return live

    def _find_open(self) -> None:
        self._open = np.full(self._keys.size + self._keys.size // 2 + 8, -1, np.intp)
        live = self._live()
        self._open[self._cells.slots[live]] = live

    def _compact(self) -> None:
        """Drops closed cells, and the keys of groups whose window is empty."""
        self._cells = self._cells.selected(self._live())
        size = self._keys.size
        slots = np.sort(self._cells.slots)
        if 2 * len(slots) < size:
            self._keys, new = self._keys.compacted(slots)
            renumbered = np.full(size, -1, np.intp)
            renumbered[slots] = new
            self._cells.renumber(renumbered)
        self._find_open()
        self._compact_at = 2 * self._cells.count + _SPARE

    def snapshot(self) -> Mapping[str, Any]:
        return {"sequence": self._sequence, "keys": self._keys.snapshot(), "cells": self._cells.freeze()}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._sequence = state["sequence"]
        self._keys = KeyIndex.restored(self._key_types, state["keys"])
        self._cells = Cells.loaded(self._calls, state["cells"])
        self._find_open()
        self._compact_at = 2 * self._cells.count + _SPARE

    def oldest_needed(self) -> int | None:
        return BEFORE_TIME
