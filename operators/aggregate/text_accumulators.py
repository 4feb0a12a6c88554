"""Accumulators whose value is a text: smallest, largest, first, last.

Each has a dictionary of its own, so what a pane holds goes with the pane and no code outlives its dictionary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from operators import steps
from operators.aggregate.accumulators import NEVER, ArrayAccumulator, Cells, GroupPosition
from operators.ids import IndexArray, Int64Array
from operators.steps import Steps, portions
from spe.stream.batch import Column
from spe.stream.frozen import FrozenArray
from spe.stream.strings import StringDictionary


class _Texts(ArrayAccumulator):
    """One text per cell: 0 for none, else code + 1 in a dictionary of our own.

    The dictionary only grows, so a snapshot, and whoever is restored from it, share it.
    """

    def __init__(self) -> None:
        super().__init__(np.int64, 0)
        self._dictionary = StringDictionary([""])

    def texts(self, ids: Int64Array) -> list[str]:
        strings = self._dictionary.strings
        return [strings[i - 1] for i in ids.tolist()]

    def put(self, cells: IndexArray, texts: list[str]) -> None:
        """Sets distinct cells."""
        self.values[cells] = self._dictionary.encode(texts).astype(np.int64) + 1

    def reserve(self, rows: int) -> Steps[None]:
        """Drops texts that no cell has any more, once they are many."""
        if len(self._dictionary) + rows <= 2 * (self._columns.count + rows) + steps.SPARE:
            return
        fresh, ids = StringDictionary([""]), np.zeros_like(self.values)
        for start, stop in portions(self._columns.count, steps.RELEASED):
            if start:
                yield
            used = start + (self.values[start:stop] > 0).nonzero()[0]
            ids[used] = fresh.encode(self.texts(self.values[used])).astype(np.int64) + 1
        self._columns.replace(self._first, ids)
        self._dictionary = fresh

    def column(self, cells: Cells) -> Column:
        return Column(np.maximum(self.values[cells] - 1, 0).astype(np.int32), None, self._dictionary)

    def freeze(self, arrays: Sequence[FrozenArray]) -> Mapping[str, Any]:
        return {**super().freeze(arrays), "dictionary": self._dictionary}

    def load(self, state: Mapping[str, Any]) -> Steps[None]:
        self._dictionary = state["dictionary"]
        yield from ()


class ExtremeText(_Texts):
    """The first or last text in code point order, which is Spark's."""

    def __init__(self, largest: bool) -> None:
        super().__init__()
        self._largest = largest

    def update(self, cells: IndexArray, column: Column, sequence: Int64Array) -> None:
        assert column.dictionary is not None
        strings = column.dictionary.strings
        codes, which = np.unique(column.values, return_inverse=True)
        texts = [strings[c] for c in codes.tolist()]
        # Texts are compared once per distinct text of the batch, rows by the rank of their text.
        order = sorted(range(len(texts)), key=texts.__getitem__)
        ranks = np.empty(len(order), np.int64)
        ranks[order] = np.arange(len(order))
        touched, at = np.unique(cells, return_inverse=True)
        best = np.full(len(touched), -1 if self._largest else NEVER, np.int64)
        (np.maximum if self._largest else np.minimum).at(best, at, ranks[which])
        self._offer(touched, [texts[order[r]] for r in best.tolist()])

    def _offer(self, cells: IndexArray, texts: list[str]) -> None:
        """Takes each text that is better than what its cell has; cells are distinct."""
        now = self.values[cells].tolist()
        strings, largest = self._dictionary.strings, self._largest
        wins = [
            i
            for i, (held, text) in enumerate(zip(now, texts))
            if held == 0 or ((text > strings[held - 1]) if largest else (text < strings[held - 1]))
        ]
        if wins:
            self.put(cells[wins], [texts[i] for i in wins])

    def absorb(self, other: ExtremeText, theirs: Cells, mine: IndexArray) -> None:
        ids = other.values[theirs]
        set_ = (ids > 0).nonzero()[0]
        self._offer(mine[set_], other.texts(ids[set_]))


class PickText(_Texts):
    """The first or last text by arrival."""

    needs_sequence = True

    def __init__(self, last: bool) -> None:
        super().__init__()
        self._position = GroupPosition(last)
        self.kinds = {**self.kinds, "positions": self._position.kind}

    @property
    def positions(self) -> Int64Array:
        return self._columns.arrays[self._first + 1]

    def update(self, cells: IndexArray, column: Column, sequence: Int64Array) -> None:
        assert column.dictionary is not None
        rows = self._position.winners(self.positions, cells, sequence)
        strings = column.dictionary.strings
        self.put(cells[rows], [strings[c] for c in column.values[rows].tolist()])

    def absorb(self, other: PickText, theirs: Cells, mine: IndexArray) -> None:
        ids = other.values[theirs]
        rows = self._position.winners(self.positions, mine, other.positions[theirs])
        rows = rows[ids[rows] > 0]
        self.put(mine[rows], other.texts(ids[rows]))
