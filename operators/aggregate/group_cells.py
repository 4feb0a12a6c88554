"""A pane's cells: per group, in order of first arrival, what its aggregates have so far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from operators.aggregate.accumulators import Accumulator
from operators.aggregate.calls import Calls
from operators.ids import IndexArray, Int64Array, grown
from spe.stream.batch import Column

#: Rows that are looked at first for groups that are new.
_FIRST_ROWS: Final = 8_192


class Cells:
    """Accumulators of the groups that have come, each in a cell of its own.

    Cell numbers are given by first arrival, so "groups in order of first arrival" costs nothing.  Arrays are shared
    with snapshots and copied on the first write after one.
    """

    __slots__ = ("_born", "_calls", "_cell_of", "_frozen", "_slots", "count", "parts")

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self.parts: list[Accumulator] = calls.new_parts()
        self.count = 0
        self._slots: IndexArray = np.empty(0, np.intp)
        #: Sequence number of the row that made each cell.
        self._born: Int64Array = np.empty(0, np.int64)
        #: slot -> cell, -1 for none; derived from ``_slots``.
        self._cell_of: IndexArray | None = np.empty(0, np.intp)
        self._frozen: Mapping[str, Any] | None = None

    @property
    def slots(self) -> IndexArray:
        return self._slots[: self.count]

    @property
    def born(self) -> Int64Array:
        return self._born[: self.count]

    def thaw(self) -> None:
        """To be called before a write."""
        if self._frozen is not None:
            for part in self.parts:
                part.thaw()
            self._frozen = None

    def add(self, slots: IndexArray, born: Int64Array) -> IndexArray:
        """New empty cells for these slots; returns their numbers."""
        if not len(slots):  # what was restored is read-only until it has grown
            return np.empty(0, np.intp)
        old, self.count = self.count, self.count + len(slots)
        if self.count > len(self._slots):
            self._slots = grown(self._slots, old, self.count)
            self._born = grown(self._born, old, self.count)
        self._slots[old : self.count] = slots
        self._born[old : self.count] = born
        for part in self.parts:
            part.grow(old, self.count)
        return np.arange(old, self.count)

    def cells_of(self, slots: IndexArray, slot_count: int, sequence: int | Int64Array) -> IndexArray:
        """The cell of each row's slot, new ones in order of first appearance.

        Args:
          slots: shape (n,).
          slot_count: one past the largest slot there may be.
          sequence: sequence numbers of the rows; an int is the first of consecutive ones.
        """
        table = self._cell_of
        if table is None or len(table) < slot_count:
            table = self._cell_of = np.full(slot_count + slot_count // 2 + 8, -1, np.intp)
            table[self.slots] = np.arange(self.count)
        cells = table.take(slots)
        if not len(cells) or cells.min() >= 0:
            return cells
        missing = (cells < 0).nonzero()[0]
        # In a pane that begins everything is missing; after the first rows nearly all groups are known.
        self._add_missing(table, slots, missing[:_FIRST_ROWS], sequence)
        if len(missing) > _FIRST_ROWS:
            rest = missing[_FIRST_ROWS:]
            self._add_missing(table, slots, rest[table.take(slots.take(rest)) < 0], sequence)
        return table.take(slots)

    def _add_missing(
        self, table: IndexArray, slots: IndexArray, missing: IndexArray, sequence: int | Int64Array
    ) -> None:
        """Cells for the slots of these rows (ascending), none of which has one."""
        wanted = slots[missing]
        # Of several rows with one slot the last to be written stays: backwards, that is the first.
        table[wanted[::-1]] = missing[::-1]
        rows = missing[table.take(wanted) == missing]
        new = slots[rows]
        table[new] = self.add(new, rows + sequence if isinstance(sequence, int) else sequence[rows])

    def update(self, cells: IndexArray, arguments: Sequence[Column], sequence: Int64Array) -> None:
        self._calls.update(self.parts, cells, arguments, sequence)

    def absorb(self, other: Cells, table: IndexArray) -> None:
        """Adds all of ``other``'s cells, as if its rows came after ours.

        ``table`` maps slots to our cells, -1 for none; new ones are put into it.
        """
        slots, born = other.slots, other.born
        cells = table.take(slots)
        new = (cells < 0).nonzero()[0]
        if len(new):
            cells[new] = self.add(slots[new], born[new])
            table[slots[new]] = cells[new]
        self._born[cells] = np.minimum(self._born[cells], born)
        for mine, theirs in zip(self.parts, other.parts):
            mine.absorb(theirs, slice(0, other.count), cells)

    def selected(self, cells: IndexArray) -> Cells:
        """A copy with only these cells, in this order."""
        copy = Cells(self._calls)
        mine = copy.add(self.slots[cells], self.born[cells])
        for new, old in zip(copy.parts, self.parts):
            new.absorb(old, cells, mine)
        return copy

    def renumber(self, slots: IndexArray) -> None:
        """The groups' slots have changed; ``slots[old]`` is the new one."""
        self._slots = slots.take(self.slots)
        self._cell_of = None
        self._frozen = None if self._frozen is None else {**self._frozen, "slots": self._slots}

    def close(self) -> None:
        """No more rows are expected: frees what can be made again."""
        self._cell_of = None
        for part in self.parts:
            part.close()

    def freeze(self) -> Mapping[str, Any]:
        if self._frozen is None:
            self._frozen = {
                "slots": self.slots,
                "born": self.born,
                "parts": [p.freeze(self.count) for p in self.parts],
            }
        return self._frozen

    @classmethod
    def loaded(cls, calls: Calls, state: Mapping[str, Any]) -> Cells:
        cells = cls(calls)
        cells._slots, cells._born = state["slots"], state["born"]
        cells.count = len(cells._slots)
        for part, saved in zip(cells.parts, state["parts"]):
            part.load(saved)
        cells._cell_of = None
        cells._frozen = state
        return cells
