"""Aggregates per group over tumbling and sliding windows of tuple time or of a timestamp attribute.

State is one :class:`Cells` per pane.  A tumbling window is its pane; a sliding one is put together from its panes,
oldest first, when it ends: sums come out the same however the input was cut, and a pane that has passed is never
written again, so snapshots cost nothing for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from operators.aggregate.calls import Calls
from operators.aggregate.group_cells import Cells
from operators.aggregate.panes import Panes
from operators.ids import IndexArray, StringIds
from operators.keys import KeyIndex
from operators.operator import Operator
from operators.windows import Late, Selection, WindowMath, arrivals, first_time, saturated
from spe.expressions import compile_expression
from spe.query.query import AggregateSpec
from spe.stream.batch import Column, Rows, concat_columns
from spe.stream.schema import Schema

#: Slots that may be dead beyond half of all before keys without state are dropped.
_SPARE_SLOTS: Final = 4096


@dataclass(slots=True)
class _Ended:
    """A window that has ended: its end, and per group, in order of first arrival, slot and results."""

    end: int
    slots: IndexArray
    results: list[Column]


def joined(columns: Sequence[Column]) -> Column:
    """One column after the other, strings in a dictionary of its own."""
    if len(columns) > 1 and columns[0].dictionary is not None:
        strings = StringIds()
        columns = [strings.adopt(c) for c in columns]
    return concat_columns(columns)


class WindowAggregate(Operator):
    """One row per window and group, at the window's end − 1, groups in order of first arrival.

    Args:
      spec: with a tumbling or sliding window.
      input_schema: of port 0.
      schema: of the output.
    """

    def __init__(self, spec: AggregateSpec, input_schema: Schema, schema: Schema) -> None:
        self.schema = schema
        self._math = WindowMath(spec.window)
        self._on = None if spec.window.on is None else input_schema.index(spec.window.on)
        self._group_by = [compile_expression(text, input_schema) for text in spec.group_by.values()]
        self._calls = Calls(spec.aggregates, input_schema)
        self._key_types = [e.type for e in self._group_by]
        self._reset()

    def _reset(self) -> None:
        self._keys = KeyIndex(self._key_types)
        self._panes = Panes(self._math, lambda: Cells(self._calls))
        #: Rows taken in so far.
        self._sequence = 0
        self._late = Late()
        self._compact_at = _SPARE_SLOTS

    @np.errstate(over="ignore", invalid="ignore")  # infinities and NaN are values like others
    def step(self, ports: Sequence[Rows | None], boundary: int) -> Rows | None:
        rows = ports[0]
        ended: list[_Ended] = []
        if rows is not None and len(rows):
            slots = self._keys.slots([e.evaluate(rows) for e in self._group_by], len(rows))
            arguments = self._calls.evaluate(rows)
            for upto, pane, which in arrivals(self._math, rows, self._on, self._late, self._panes.released):
                if upto > self._panes.released:
                    ended += [self._result(end, members) for end, members in self._panes.release(upto)]
                self._take_in(self._panes.take(pane, first_time(rows, which)), which, slots, arguments)
            self._sequence += len(rows)
        ended += [self._result(end, members) for end, members in self._panes.release(boundary)]
        if not ended:
            return None
        out = self._rows(ended)
        self._tidy(boundary)
        return out

    def _take_in(self, cells: Cells, which: Selection, slots: IndexArray, arguments: list[Column]) -> None:
        cells.thaw()
        sequence: Any = self._sequence
        if isinstance(which, slice):
            count = which.stop - which.start
            sequence += which.start
            if count != len(slots):
                slots = slots[which]
                arguments = [c.slice(which.start, which.stop) for c in arguments]
        else:
            count, sequence, slots = len(which), sequence + which, slots[which]
            arguments = [c.take(which) for c in arguments]
        at = cells.cells_of(slots, self._keys.size, sequence)
        if not self._calls.needs_sequence:
            numbers = at
        elif isinstance(sequence, int):
            numbers = np.arange(sequence, sequence + count)
        else:
            numbers = sequence
        cells.update(at, arguments, numbers)

    def _result(self, end: int, members: list[Cells]) -> _Ended:
        cells = members[0]
        if len(members) > 1:
            cells = Cells(self._calls)
            table = np.full(self._keys.size, -1, np.intp)
            for member in members:
                cells.absorb(member, table)
        elif not self._math.tumbling:
            cells.freeze()  # its arrays leave with the result: copy before the next write
        order: slice | IndexArray = slice(0, cells.count)
        slots = cells.slots
        if self._on is not None:
            order = cells.born.argsort()
            slots = slots[order]
        return _Ended(end, slots, self._calls.results(cells.parts, order))

    def _rows(self, ended: list[_Ended]) -> Rows:
        slots = ended[0].slots if len(ended) == 1 else np.concatenate([e.slots for e in ended])
        counts = [len(e.slots) for e in ended]
        ends = saturated([e.end for e in ended]).repeat(counts)
        starts = np.array([e.end - self._math.size for e in ended], np.int64).repeat(counts)
        time = ends - 1
        results = [joined(columns) for columns in zip(*[e.results for e in ended])]
        return Rows(time, time, (*self._keys.columns(slots), Column(starts), Column(ends), *results))

    def _tidy(self, boundary: int) -> None:
        """Frees the lookups of panes that have passed, and keys that no pane has any more."""
        if self._on is None:
            for cells in self._panes.passed(boundary):
                cells.close()
        size = self._keys.size
        if size <= self._compact_at:
            return
        live = np.unique(np.concatenate([np.empty(0, np.intp), *[c.slots for c in self._panes.by_number.values()]]))
        if 2 * len(live) < size:
            self._keys, slots = self._keys.compacted(live)
            renumbered = np.full(size, -1, np.intp)
            renumbered[live] = slots
            for cells in self._panes.by_number.values():
                cells.renumber(renumbered)
        self._compact_at = 2 * self._keys.size + _SPARE_SLOTS

    def snapshot(self) -> Mapping[str, Any]:
        return {
            "released": self._panes.released,
            "sequence": self._sequence,
            "late": self._late.state(),
            "since": list(self._panes.since.values()),
            "keys": self._keys.snapshot(),
            "panes": [(number, cells.freeze()) for number, cells in self._panes.by_number.items()],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self._reset()
        self._sequence = state["sequence"]
        self._late = Late(*state["late"])
        self._keys = KeyIndex.restored(self._key_types, state["keys"])
        panes = {number: Cells.loaded(self._calls, saved) for number, saved in state["panes"]}
        self._panes.load(panes, state["since"], state["released"])
        self._compact_at = 2 * self._keys.size + _SPARE_SLOTS

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
