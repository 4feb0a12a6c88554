"""Accumulators with a text as value: smallest, largest, first, last.

They store ids.  The operator stores the texts of all its panes, so that a text in many panes is stored once and panes
need no dictionaries; it drops texts that no cell has any more.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import numpy as np

from operators import steps
from operators.aggregate.accumulators import NEVER, ArrayAccumulator, Cells, GroupPosition
from operators.columns import copied
from operators.ids import IndexArray, Int64Array, alone
from operators.steps import Steps, portions
from operators.strings import KeptStrings
from spe.stream.batch import Column
from spe.stream.strings import Int32Array


class TextAccumulator(ArrayAccumulator):
    """One text per cell, by its id in ``strings``; 0 for none.  Callers of ``update`` make room there beforehand."""

    def __init__(self, strings: KeptStrings) -> None:
        super().__init__(np.int32, 0)
        self._strings = strings

    @property
    def ids(self) -> Int32Array:
        """Ids of all cells."""
        ids: Int32Array = self.values[: self._columns.count]
        return ids

    def renumber(self, ids: Int32Array) -> Steps[None]:
        """Replaces the ids, in portions."""
        larger = np.empty(self._columns.room, np.int32)
        yield from copied(ids, larger, len(ids))
        self._columns.replace(self._first, larger)

    def column(self, cells: Cells) -> Column:
        return self._strings.column(self.values[cells])

    def footprint(self, cells: IndexArray) -> Steps[dict[str, Any]]:
        """Copies the contents of cells, with texts in place of ids, null for none."""
        made = yield from super().footprint(cells)
        ids = made["values"]

        def texts(start: int, stop: int) -> Column:
            column = self._strings.column(ids[start:stop])
            return Column(column.values, ids[start:stop] > 0, column.dictionary)

        return {**made, "values": (yield from alone(texts, len(ids)))}

    def adopt(self, footprint: Mapping[str, Any], which: IndexArray, cells: IndexArray) -> Steps[None]:
        texts, ids = footprint["values"], np.empty(len(footprint["values"]), np.int32)
        for start, stop in portions(len(texts), steps.RELEASED):
            if start:
                yield
            yield from self._strings.reserve(stop - start)
            ids[start:stop] = self._strings.ids(texts.slice(start, stop))
        yield from super().adopt({**footprint, "values": ids}, which, cells)


class ExtremeText(TextAccumulator):
    """The first or last text in code point order, as in Spark."""

    def __init__(self, strings: KeptStrings, largest: bool) -> None:
        super().__init__(strings)
        self._largest = largest

    def update(self, cells: IndexArray, column: Column, sequence: Int64Array) -> None:
        assert column.dictionary is not None
        strings = column.dictionary.strings
        codes, which = np.unique(column.values, return_inverse=True)
        texts = [strings[c] for c in codes.tolist()]
        # Distinct texts of the batch are compared once, rows by the rank of their text.
        order = np.array(sorted(range(len(texts)), key=texts.__getitem__), np.intp)
        ranks = np.empty(len(order), np.int64)
        ranks[order] = np.arange(len(order))
        touched, at = np.unique(cells, return_inverse=True)
        best = np.full(len(touched), -1 if self._largest else NEVER, np.int64)
        (np.maximum if self._largest else np.minimum).at(best, at, ranks[which])
        self._offer(touched, self._strings.ids(Column(codes[order[best]], None, column.dictionary)))

    def _offer(self, cells: IndexArray, ids: Int32Array) -> None:
        """Takes each text that is better than that of its cell; cells are distinct."""
        held = self.values[cells]
        wins = held == 0
        compared = ((held != ids) & ~wins).nonzero()[0]
        if len(compared):
            ours, theirs = self._strings.texts(held[compared]), self._strings.texts(ids[compared])
            is_better = operator.gt if self._largest else operator.lt
            wins[compared] = np.fromiter(map(is_better, theirs, ours), np.bool_, len(compared))
        self.values[cells[wins]] = ids[wins]

    def absorb(self, other: ExtremeText, theirs: Cells, mine: IndexArray) -> None:
        ids = other.values[theirs]
        set_ = (ids > 0).nonzero()[0]
        self._offer(mine[set_], ids[set_])


class PickText(TextAccumulator):
    """The first or last text by arrival."""

    needs_sequence = True

    def __init__(self, strings: KeptStrings, last: bool) -> None:
        super().__init__(strings)
        self._position = GroupPosition(last)
        self.kinds = {**self.kinds, "positions": self._position.kind}

    @property
    def positions(self) -> Int64Array:
        return self._columns.arrays[self._first + 1]

    def update(self, cells: IndexArray, column: Column, sequence: Int64Array) -> None:
        rows = self._position.winners(self.positions, cells, sequence)
        self.values[cells[rows]] = self._strings.ids(column.take(rows))

    def absorb(self, other: PickText, theirs: Cells, mine: IndexArray) -> None:
        ids = other.values[theirs]
        rows = self._position.winners(self.positions, mine, other.positions[theirs])
        rows = rows[ids[rows] > 0]
        self.values[mine[rows]] = ids[rows]
