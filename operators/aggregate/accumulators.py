"""State of an aggregate per cell, where a cell is one group in one pane (or one count window of one group).

Accumulators take rows in their order (``ufunc.at``), so the bits of a float sum do not depend on how the rows were
cut into batches (rules U3, U12).  They never get a null; a result that depends on whether there were values uses a
:class:`Count` as well.  Cell ids are dense, assigned by the owner of the accumulator.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from operators import steps
from operators.columns import Columns, Kind, Leaf, picked
from operators.ids import IndexArray, Int64Array, alone
from operators.keys import KeyIndex
from operators.steps import Steps, portions
from spe.stream.batch import Column, canonical
from spe.stream.frozen import FrozenArray
from spe.stream.schema import AttributeType

#: Larger than every sequence number.
NEVER: Final = 2**62
#: A selection of cells: contiguous, or an index.
Cells = slice | IndexArray


class Accumulator(ABC):
    """State per cell: arrays in the columns of the cells' owner, and possibly other data.

    The owner adds cells, saves them for snapshots before a write, and stores and restores the arrays.
    """

    #: Does ``update`` use the rows' sequence numbers?
    needs_sequence: bool = False
    #: dtype and content of new cells of each array, by its name in a snapshot.
    kinds: Mapping[str, Kind]

    _columns: Columns
    _first: int

    def bind(self, columns: Columns, first: int) -> None:
        """Assigns the columns from number ``first`` on as our arrays."""
        self._columns, self._first = columns, first

    def grow(self, old: int, count: int) -> None:  # noqa: B027 - arrays are filled already
        """Initialises the new cells ``old`` … ``count`` − 1."""

    def reserve(self, rows: int) -> Steps[None]:
        """Makes room for that many rows in data outside of arrays, in portions."""
        yield from ()

    @abstractmethod
    def update(self, cells: IndexArray, column: Column, sequence: Int64Array) -> None:
        """Processes rows: cell, value (not null) and sequence number of each."""

    @abstractmethod
    def absorb(self, other: Any, theirs: Cells, mine: IndexArray) -> None:
        """Adds ``other``'s cells to ours, as if their rows came after ours; ``mine`` are distinct."""

    def copy(self, other: Any, theirs: Cells, mine: IndexArray) -> None:
        """Copies ``other``'s cells to our new cells."""
        self.absorb(other, theirs, mine)

    def absorb_rest(self, other: Any, mine: IndexArray) -> Steps[None]:
        """Adds ``other``'s data outside of arrays, in portions; ``mine`` per cell of ``other``, -1 for none."""
        yield from ()

    @abstractmethod
    def column(self, cells: Cells) -> Column:
        """Results; unspecified for cells without rows."""

    def freeze(self, arrays: Sequence[FrozenArray]) -> Mapping[str, Any]:
        """Returns the state; ``arrays`` are our arrays."""
        return dict(zip(self.kinds, arrays, strict=True))

    def load(self, state: Mapping[str, Any]) -> Steps[None]:
        """Restores data outside of arrays, in portions."""
        yield from ()

    def leaves(self, state: Mapping[str, Any]) -> list[Leaf]:
        """Returns our arrays in a state."""
        return [state[name] for name in self.kinds]

    def footprint(self, cells: IndexArray) -> Steps[dict[str, Any]]:
        """Copies the contents of these cells (ascending), in portions."""
        made: dict[str, Any] = {}
        for number, name in enumerate(self.kinds, self._first):
            made[name] = yield from picked([self._columns.arrays[number]], [cells])
        return made

    def adopt(self, footprint: Mapping[str, Any], which: IndexArray, cells: IndexArray) -> Steps[None]:
        """Puts the entries ``which`` of a footprint (ascending) into the new ``cells``, in portions."""
        for number, name in enumerate(self.kinds, self._first):
            for start, stop in portions(len(which), steps.INDEXED):
                if start:
                    yield
                self._columns.arrays[number][cells[start:stop]] = footprint[name][which[start:stop]]

    def wrote_all(self) -> None:  # noqa: B027 - most have nothing to note
        """Notes that all present cells have a footprint."""

    def close(self) -> None:  # noqa: B027 - most have nothing to free
        """Frees data that can be derived again: no more rows are expected."""


class ArrayAccumulator(Accumulator):
    """One number per cell."""

    def __init__(self, dtype: npt.DTypeLike, fill: Any) -> None:
        self.kinds = {"values": (dtype, fill)}

    @property
    def values(self) -> npt.NDArray[Any]:
        """The cells' numbers, and room for more; adding cells may replace the array."""
        return self._columns.arrays[self._first]

    def column(self, cells: Cells) -> Column:
        return Column(self.values[cells])


class Count(ArrayAccumulator):
    """Counts rows."""

    def __init__(self) -> None:
        super().__init__(np.int64, 0)

    def update(self, cells: IndexArray, column: Column, sequence: Int64Array) -> None:
        np.add.at(self.values, cells, 1)

    def absorb(self, other: Count, theirs: Cells, mine: IndexArray) -> None:
        self.values[mine] += other.values[theirs]


class Folded(ArrayAccumulator):
    """A fold of int64 (which wraps around), float64 (in row order) or bool: :class:`spe.query.aggregates.Fold`."""

    def __init__(self, type_: AttributeType, ufunc: np.ufunc, start: Any) -> None:
        super().__init__(type_.dtype, start)
        self._ufunc = ufunc

    def update(self, cells: IndexArray, column: Column, sequence: Int64Array) -> None:
        self._ufunc.at(self.values, cells, column.values)

    def absorb(self, other: Folded, theirs: Cells, mine: IndexArray) -> None:
        self.values[mine] = self._ufunc(self.values[mine], other.values[theirs])


class Computed(Folded):
    """A fold whose results may be −0.0 or another NaN, unlike an extreme (U12)."""

    def column(self, cells: Cells) -> Column:
        return Column(canonical(self.values[cells]))


def extreme(type_: AttributeType, largest: bool) -> Folded:
    """Returns the smallest or largest number.  NaN is larger than every number, as in Spark."""
    if type_ is AttributeType.FLOAT64:
        # fmin prefers numbers to NaN and starts from NaN; maximum prefers NaN.
        return Folded(type_, np.maximum, -np.inf) if largest else Folded(type_, np.fmin, np.nan)
    if type_ is AttributeType.BOOL:
        return Folded(type_, np.maximum if largest else np.minimum, not largest)
    info = np.iinfo(np.int64)
    return Folded(type_, np.maximum, info.min) if largest else Folded(type_, np.minimum, info.max)


class IntegerSum(Accumulator):
    """The exact sum of int64, rounded once to float64.

    The sum is ``high * 2**32 + low`` with ``0 <= low < 2**32``: 96 bits, enough for 2**32 rows of any value.  Integers
    are added exactly, so neither the batches of the input nor the panes change a bit.
    """

    kinds: Mapping[str, Kind] = {"high": (np.int64, 0), "low": (np.int64, 0)}

    @property
    def _halves(self) -> tuple[Int64Array, Int64Array]:
        return self._columns.arrays[self._first], self._columns.arrays[self._first + 1]

    def update(self, cells: IndexArray, column: Column, sequence: Int64Array) -> None:
        high, low = self._halves
        np.add.at(high, cells, column.values >> _HALF)
        np.add.at(low, cells, column.values & _LOW)
        self._carry(cells)

    def absorb(self, other: IntegerSum, theirs: Cells, mine: IndexArray) -> None:
        for ours, its in zip(self._halves, other._halves):
            ours[mine] += its[theirs]
        self._carry(mine)

    def _carry(self, cells: IndexArray) -> None:
        """Makes ``low`` of these cells smaller than 2**32 again; cells may be repeated."""
        high, low = self._halves
        sums = low[cells]
        high[cells] += sums >> _HALF
        low[cells] = sums & _LOW

    def column(self, cells: Cells) -> Column:
        high, low = (half[cells] for half in self._halves)
        return Column(rounded(high, low))


#: Bits of a half of a sum, and those bits set.
_HALF: Final = 32
_LOW: Final = 2**_HALF - 1
#: Bits of a number that can be shifted left in int64 whatever its sign.
_SHIFTED: Final = 62


def rounded(high: Int64Array, low: Int64Array) -> npt.NDArray[np.float64]:
    """``high * 2**32 + low`` as float64, rounded once, half to even.

    Only the upper 62 bits are converted.  The lowest of them is set if a dropped bit is set, which keeps the number on
    its side of every value halfway between two float64.
    """
    exponents = np.frexp(high.astype(np.float64))[1].astype(np.int64)
    dropped = np.clip(exponents + _HALF - _SHIFTED, 0, _HALF)
    upper = (high << (_HALF - dropped)) | (low >> dropped)
    has_more = (low & ((1 << dropped) - 1)) != 0
    result: npt.NDArray[np.float64] = np.ldexp((upper | has_more).astype(np.float64), dropped)
    return result


class GroupPosition:
    """The sequence number of each cell's first or last row."""

    def __init__(self, last: bool) -> None:
        self._better = np.maximum if last else np.minimum
        self.kind: Kind = (np.int64, -1 if last else NEVER)

    def winners(self, positions: Int64Array, cells: IndexArray, sequence: Int64Array) -> IndexArray:
        """Returns rows that are now the first or last of their cell; at most one per cell."""
        self._better.at(positions, cells, sequence)
        rows: IndexArray = (positions.take(cells) == sequence).nonzero()[0]
        return rows


class Pick(ArrayAccumulator):
    """The first or last value by arrival; numbers, bools and timestamps."""

    needs_sequence = True

    def __init__(self, type_: AttributeType, last: bool) -> None:
        super().__init__(type_.dtype, type_.dtype.type(0))
        self._position = GroupPosition(last)
        self.kinds = {**self.kinds, "positions": self._position.kind}

    @property
    def positions(self) -> Int64Array:
        return self._columns.arrays[self._first + 1]

    def update(self, cells: IndexArray, column: Column, sequence: Int64Array) -> None:
        rows = self._position.winners(self.positions, cells, sequence)
        self.values[cells[rows]] = column.values[rows]

    def absorb(self, other: Pick, theirs: Cells, mine: IndexArray) -> None:
        rows = self._position.winners(self.positions, mine, other.positions[theirs])
        self.values[mine[rows]] = other.values[theirs][rows]


class Distinct(Accumulator):
    """Counts distinct values: an index of (cell, value) pairs, and the derived count per cell."""

    def __init__(self, type_: AttributeType) -> None:
        self._types = (AttributeType.INT64, type_)
        self._pairs = KeyIndex(self._types)
        self.kinds = {"counts": (np.int64, 0)}
        #: Numbers of cells and pairs when all of them had a footprint: a later cell has later pairs only.
        self._written = (0, 0)

    @property
    def _counts(self) -> Int64Array:
        return self._columns.arrays[self._first]

    def reserve(self, rows: int) -> Steps[None]:
        yield from self._pairs.reserve(rows)

    def update(self, cells: IndexArray, column: Column, sequence: Int64Array) -> None:
        before = self._pairs.size
        self._pairs.slots([Column(cells), column], len(cells))
        self._count(before, self._pairs.size)

    def _count(self, start: int, stop: int) -> None:
        """Counts new pairs."""
        if stop > start:
            cells = self._pairs.columns(np.arange(start, stop))[0].values
            np.add.at(self._counts, cells, 1)

    def absorb(self, other: Distinct, theirs: Cells, mine: IndexArray) -> None:
        """Does nothing: the data is in the pairs."""

    def absorb_rest(self, other: Distinct, mine: IndexArray) -> Steps[None]:
        for start, stop in portions(other._pairs.size, steps.RELEASED):
            if start:
                yield
            yield from self.reserve(stop - start)
            cells, values = other._pairs.columns(np.arange(start, stop))
            to = mine.take(cells.values)
            present = (to >= 0).nonzero()[0]
            self.update(to[present], values.take(present), present)

    def column(self, cells: Cells) -> Column:
        return Column(self._counts[cells])

    def footprint(self, cells: IndexArray) -> Steps[dict[str, Any]]:
        """Scans the pairs since the last footprints if all cells are new, else all pairs."""
        first = self._written[1] if len(cells) and cells[0] >= self._written[0] else 0
        places, pairs = [np.empty(0, np.intp)], [np.empty(0, np.intp)]
        for start, stop in portions(self._pairs.size - first if len(cells) else 0, steps.INDEXED):
            if start:
                yield
            some = np.arange(first + start, first + stop)
            owners = self._pairs.column(0, some).values
            place = cells.searchsorted(owners)
            matching = (cells.take(place, mode="clip") == owners).nonzero()[0]
            places.append(place[matching])
            pairs.append(some[matching])
        chosen = yield from picked(pairs, [None] * len(pairs))
        return {
            "places": (yield from picked(places, [None] * len(places))),
            "values": (yield from alone(lambda start, stop: self._pairs.column(1, chosen[start:stop]), len(chosen))),
        }

    def adopt(self, footprint: Mapping[str, Any], which: IndexArray, cells: IndexArray) -> Steps[None]:
        places, values = footprint["places"], footprint["values"]
        for start, stop in portions(len(places), steps.RELEASED):
            if start:
                yield
            yield from self.reserve(stop - start)
            at = which.searchsorted(places[start:stop])
            matching = (which.take(at, mode="clip") == places[start:stop]).nonzero()[0] if len(which) else at[:0]
            self.update(cells[at[matching]], values.slice(start, stop).take(matching), matching)

    def wrote_all(self) -> None:
        self._written = self._columns.count, self._pairs.size

    def freeze(self, arrays: Sequence[FrozenArray]) -> Mapping[str, Any]:
        return {"pairs": self._pairs.snapshot(), "cells": len(arrays[0])}

    def leaves(self, state: Mapping[str, Any]) -> list[Leaf]:
        return [np.broadcast_to(np.int64(0), int(state["cells"]))]

    def load(self, state: Mapping[str, Any]) -> Steps[None]:
        self._pairs = yield from KeyIndex.restoring(self._types, state["pairs"])
        self._written = (0, 0)
        for start, stop in portions(self._pairs.size, steps.INDEXED):
            if start:
                yield
            self._count(start, stop)

    def close(self) -> None:
        self._pairs.close()
