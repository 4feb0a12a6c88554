"""What an aggregate keeps per cell, where a cell is one group in one pane (or one count window of one group).

Accumulators take rows in their order (``ufunc.at``), so the bits of a float sum do not depend on how the rows were
cut into batches (docs/rules.md U3, U12).  They never see a null; a result that needs "was there anything?" asks a
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
from spe.stream.batch import Column, canonical
from spe.stream.schema import AttributeType

#: Before any sequence number, and after all of them.
NEVER: Final = 2**62
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


class ArrayAccumulator(Accumulator):
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


class Count(ArrayAccumulator):
    """Rows."""

    def __init__(self) -> None:
        super().__init__(np.int64, 0)

    def update(self, cells: IndexArray, column: Column, sequence: Int64Array) -> None:
        np.add.at(self.values, cells, 1)

    def absorb(self, other: Count, theirs: Cells, mine: IndexArray) -> None:
        self.values[mine] += other.values[theirs]


class Sum(ArrayAccumulator):
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


class Extreme(ArrayAccumulator):
    """The smallest or largest number.  NaN is larger than every number, as in Spark."""

    def __init__(self, type_: AttributeType, largest: bool) -> None:
        super().__init__(type_.dtype, _extreme(type_, largest))
        # fmin prefers numbers to NaN and starts from NaN; maximum prefers NaN.
        self._better = np.maximum if largest else np.fmin if type_ is AttributeType.FLOAT64 else np.minimum

    def update(self, cells: IndexArray, column: Column, sequence: Int64Array) -> None:
        self._better.at(self.values, cells, column.values)

    def absorb(self, other: Extreme, theirs: Cells, mine: IndexArray) -> None:
        self.values[mine] = self._better(self.values[mine], other.values[theirs])


class Position:
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


class Pick(ArrayAccumulator):
    """The first or last value by arrival; numbers, bools and timestamps."""

    needs_sequence = True

    def __init__(self, type_: AttributeType, last: bool) -> None:
        super().__init__(type_.dtype, type_.dtype.type(0))
        self._position = Position(last)

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
