"""What an aggregate keeps per cell, where a cell is one group in one pane (or one count window of one group).

Accumulators take rows in their order (``ufunc.at``), so the bits of a float sum do not depend on how the rows were
cut into batches (protocol.md U3, U12).  They never see a null; a result that needs "was there anything?" asks a
:class:`Count` beside it.  Cell ids are dense, given by whoever owns the accumulator.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from operators.ids import IndexArray, Int64Array, grown
from operators.keys import KeyIndex
from spe.batch import Column, canonical
from spe.schema import AttributeType
from spe.strings import StringDictionary

#: Before any sequence number, and after all of them.
NEVER: Final = 2**62
#: Texts that an accumulator may hold beyond twice its cells before it drops those no longer referred to.
_SPARE_TEXTS: Final = 1024

#: Which cells: contiguous, or an index.
Cells = slice | IndexArray


class Accumulator(ABC):
    """State per cell.

    ``freeze`` shares the arrays with a snapshot; the owner calls ``thaw`` before the next write.
    """

    #: Does ``update`` use the rows' sequence numbers?
    needs_sequence: bool = False

    @abstractmethod
    def grow(self, used: int, wanted: int) -> None:
        """Makes room for cells 0 … wanted − 1; those from ``used`` on are empty."""

    @abstractmethod
    def update(self, cells: IndexArray, column: Column, sequence: Int64Array) -> None:
        """Takes rows in: cell, value (none is null) and sequence number of each."""

    @abstractmethod
    def absorb(self, other: Any, theirs: Cells, mine: IndexArray) -> None:
        """Adds what ``other``'s cells hold to ours, as if their rows came after ours; ``mine`` are distinct."""

    @abstractmethod
    def column(self, cells: Cells) -> Column:
        """Results; unspecified for cells that took nothing in."""

    @abstractmethod
    def freeze(self, used: int) -> Mapping[str, Any]:
        """The state of cells 0 … used − 1, by reference."""

    @abstractmethod
    def thaw(self) -> None:
        """Copies what is shared with a snapshot and about to be written to."""

    @abstractmethod
    def load(self, state: Mapping[str, Any]) -> None:
        """Takes over a frozen state; ``thaw`` follows before the first write."""

    def close(self) -> None:  # noqa: B027 - most have nothing to free
        """No more rows are expected: frees what can be made again."""


class _ArrayAccumulator(Accumulator):
    """One number per cell."""

    def __init__(self, dtype: npt.DTypeLike, fill: Any) -> None:
        self.values: npt.NDArray[Any] = np.full(0, fill, dtype)
        self._fill = fill

    def grow(self, used: int, wanted: int) -> None:
        if wanted > len(self.values):
            self.values = grown(self.values, used, wanted, self._fill)

    def column(self, cells: Cells) -> Column:
        return Column(self.values[cells])

    def freeze(self, used: int) -> Mapping[str, Any]:
        return {"values": self.values[:used]}

    def thaw(self) -> None:
        self.values = self.values.copy()

    def load(self, state: Mapping[str, Any]) -> None:
        self.values = state["values"]


class Count(_ArrayAccumulator):
    """Rows."""

    def __init__(self) -> None:
        super().__init__(np.int64, 0)

    def update(self, cells: IndexArray, column: Column, sequence: Int64Array) -> None:
        np.add.at(self.values, cells, 1)

    def absorb(self, other: Count, theirs: Cells, mine: IndexArray) -> None:
        self.values[mine] += other.values[theirs]


class Sum(_ArrayAccumulator):
    """int64 (wraps around) or float64 (in row order)."""

    def __init__(self, type_: AttributeType) -> None:
        super().__init__(type_.dtype, 0)

    def update(self, cells: IndexArray, column: Column, sequence: Int64Array) -> None:
        np.add.at(self.values, cells, column.values)

    def absorb(self, other: Sum, theirs: Cells, mine: IndexArray) -> None:
        self.values[mine] += other.values[theirs]

    def column(self, cells: Cells) -> Column:
        return Column(canonical(self.values[cells]))


def _extreme(type_: AttributeType, largest: bool) -> Any:
    """What every value of the type replaces."""
    if type_ is AttributeType.FLOAT64:
        return -np.inf if largest else np.nan
    if type_ is AttributeType.BOOL:
        return not largest
    info = np.iinfo(np.int64)
    return info.min if largest else info.max


class Extreme(_ArrayAccumulator):
    """The smallest or largest number.  NaN is larger than every number, as in Spark."""

    def __init__(self, type_: AttributeType, largest: bool) -> None:
        super().__init__(type_.dtype, _extreme(type_, largest))
        # fmin prefers numbers to NaN and starts from NaN; maximum prefers NaN.
        self._better = np.maximum if largest else np.fmin if type_ is AttributeType.FLOAT64 else np.minimum

    def update(self, cells: IndexArray, column: Column, sequence: Int64Array) -> None:
        self._better.at(self.values, cells, column.values)

    def absorb(self, other: Extreme, theirs: Cells, mine: IndexArray) -> None:
        self.values[mine] = self._better(self.values[mine], other.values[theirs])


class _Texts(_ArrayAccumulator):
    """One text per cell: 0 for none, else code + 1 in a dictionary of our own."""

    def __init__(self) -> None:
        super().__init__(np.int64, 0)
        self._dictionary = StringDictionary([""])
        self._borrowed = False

    def texts(self, ids: Int64Array) -> list[str]:
        strings = self._dictionary.strings
        return [strings[i - 1] for i in ids.tolist()]

    def put(self, cells: IndexArray, texts: list[str]) -> None:
        """Sets distinct cells."""
        if len(self._dictionary) + len(texts) > 2 * len(self.values) + _SPARE_TEXTS:
            self._drop_unused()
        self.values[cells] = self._dictionary.encode(texts).astype(np.int64) + 1

    def _drop_unused(self) -> None:
        used = (self.values > 0).nonzero()[0]
        texts = self.texts(self.values[used])
        self._dictionary = StringDictionary([""])
        self.values[used] = self._dictionary.encode(texts).astype(np.int64) + 1

    def column(self, cells: Cells) -> Column:
        return Column(np.maximum(self.values[cells] - 1, 0).astype(np.int32), None, self._dictionary)

    def freeze(self, used: int) -> Mapping[str, Any]:
        return {"values": self.values[:used], "dictionary": self._dictionary}

    def thaw(self) -> None:
        super().thaw()
        if self._borrowed:
            # Whoever else was restored from the same snapshot fills its own.
            self._dictionary = StringDictionary(self._dictionary.strings)
            self._borrowed = False

    def load(self, state: Mapping[str, Any]) -> None:
        super().load(state)
        self._dictionary = state["dictionary"]
        self._borrowed = True


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


class _Position:
    """The sequence number of each cell's first or last row."""

    __slots__ = ("_better", "_fill", "values")

    def __init__(self, last: bool) -> None:
        self._better = np.maximum if last else np.minimum
        self._fill = -1 if last else NEVER
        self.values: Int64Array = np.empty(0, np.int64)

    def grow(self, used: int, wanted: int) -> None:
        if wanted > len(self.values):
            self.values = grown(self.values, used, wanted, self._fill)

    def winners(self, cells: IndexArray, sequence: Int64Array) -> IndexArray:
        """Rows that are now the first or last of their cell; at most one per cell."""
        self._better.at(self.values, cells, sequence)
        rows: IndexArray = (self.values.take(cells) == sequence).nonzero()[0]
        return rows


class Pick(_ArrayAccumulator):
    """The first or last value by arrival; numbers, bools and timestamps."""

    needs_sequence = True

    def __init__(self, type_: AttributeType, last: bool) -> None:
        super().__init__(type_.dtype, type_.dtype.type(0))
        self._position = _Position(last)

    def grow(self, used: int, wanted: int) -> None:
        super().grow(used, wanted)
        self._position.grow(used, wanted)

    def update(self, cells: IndexArray, column: Column, sequence: Int64Array) -> None:
        rows = self._position.winners(cells, sequence)
        self.values[cells[rows]] = column.values[rows]

    def absorb(self, other: Pick, theirs: Cells, mine: IndexArray) -> None:
        rows = self._position.winners(mine, other._position.values[theirs])
        self.values[mine[rows]] = other.values[theirs][rows]

    def freeze(self, used: int) -> Mapping[str, Any]:
        return {"values": self.values[:used], "positions": self._position.values[:used]}

    def thaw(self) -> None:
        super().thaw()
        self._position.values = self._position.values.copy()

    def load(self, state: Mapping[str, Any]) -> None:
        super().load(state)
        self._position.values = state["positions"]


class PickText(_Texts):
    """The first or last text by arrival."""

    needs_sequence = True

    def __init__(self, last: bool) -> None:
        super().__init__()
        self._position = _Position(last)

    def grow(self, used: int, wanted: int) -> None:
        super().grow(used, wanted)
        self._position.grow(used, wanted)

    def update(self, cells: IndexArray, column: Column, sequence: Int64Array) -> None:
        assert column.dictionary is not None
        rows = self._position.winners(cells, sequence)
        strings = column.dictionary.strings
        self.put(cells[rows], [strings[c] for c in column.values[rows].tolist()])

    def absorb(self, other: PickText, theirs: Cells, mine: IndexArray) -> None:
        ids = other.values[theirs]
        rows = self._position.winners(mine, other._position.values[theirs])
        rows = rows[ids[rows] > 0]
        self.put(mine[rows], other.texts(ids[rows]))

    def freeze(self, used: int) -> Mapping[str, Any]:
        return {**super().freeze(used), "positions": self._position.values[:used]}

    def thaw(self) -> None:
        super().thaw()
        self._position.values = self._position.values.copy()

    def load(self, state: Mapping[str, Any]) -> None:
        super().load(state)
        self._position.values = state["positions"]


class Distinct(Accumulator):
    """How many different values: an index of (cell, value) pairs, and their count per cell."""

    def __init__(self, type_: AttributeType) -> None:
        self._types = (AttributeType.INT64, type_)
        self._pairs = KeyIndex(self._types)
        self._counts: Int64Array = np.zeros(0, np.int64)

    def grow(self, used: int, wanted: int) -> None:
        if wanted > len(self._counts):
            self._counts = grown(self._counts, used, wanted)

    def update(self, cells: IndexArray, column: Column, sequence: Int64Array) -> None:
        before = self._pairs.size
        self._pairs.slots([Column(cells), column], len(cells))
        if self._pairs.size > before:
            np.add.at(self._counts, self._cells(before), 1)

    def _cells(self, since: int) -> Int64Array:
        cells: Int64Array = self._pairs.columns(np.arange(since, self._pairs.size))[0].values
        return cells

    def absorb(self, other: Distinct, theirs: Cells, mine: IndexArray) -> None:
        cells, values = other._pairs.columns(np.arange(other._pairs.size))
        target = np.full(len(other._counts), -1, np.int64)
        target[theirs] = mine
        to = target.take(cells.values)
        kept = (to >= 0).nonzero()[0]
        self.update(to[kept], values.take(kept), kept)

    def column(self, cells: Cells) -> Column:
        return Column(self._counts[cells])

    def freeze(self, used: int) -> Mapping[str, Any]:
        return {"pairs": self._pairs.snapshot(), "cells": used}

    def thaw(self) -> None:
        """Nothing is shared: pairs are only ever added, and the counts are ours."""

    def load(self, state: Mapping[str, Any]) -> None:
        self._pairs = KeyIndex.restored(self._types, state["pairs"])
        self._counts = np.zeros(state["cells"], np.int64)
        np.add.at(self._counts, self._cells(0), 1)

    def close(self) -> None:
        self._pairs.close()
