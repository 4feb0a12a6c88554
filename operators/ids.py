"""Maps values to dense ids, as a dictionary of Python objects would, for many rows at a time.

An id is an index into arrays of state.  Ids are assigned by first appearance and are internal to an operator; no
output may depend on them.  Values are in append-only columns; the lookup tables are derived, may be dropped, and are
rebuilt on demand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from operators import steps
from operators.columns import Columns
from operators.steps import Steps, finished, portions
from spe.stream.batch import Column, concat_columns
from spe.stream.strings import StringDictionary

IndexArray = npt.NDArray[np.intp]
Int64Array = npt.NDArray[np.int64]

#: A direct table has at most this many entries per value, or at most this many in all.
_SPARSITY: Final = 8
_SMALL_SPAN: Final = 1 << 14
#: Limit beyond which the base of a direct table, and differences to it, could overflow.
_DIRECT_LIMIT: Final = 2**61
_SCATTER: Final = np.uint64(0x9E3779B97F4A7C15)


def grown(array: npt.NDArray[Any], used: int, wanted: int, fill: Any = 0) -> npt.NDArray[Any]:
    """Copies an array, with room for ``wanted`` entries and more; entries from ``used`` on are ``fill``."""
    larger = np.full(max(wanted, 2 * len(array), 16), fill, array.dtype)
    larger[:used] = array[:used]
    return larger


def first_appearances(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Returns the distinct values in order of first appearance."""
    distinct, first = np.unique(values, return_index=True)
    return distinct[first.argsort()]


def stable_order(ids: IndexArray, bound: int) -> IndexArray:
    """Computes ``argsort(kind="stable")`` of ids in [0, bound) by radix sort, in one or two passes of 16 bits."""
    if bound <= 1 << 16:
        return ids.astype(np.uint16).argsort(kind="stable")
    if bound > 1 << 32:
        return ids.argsort(kind="stable")
    order = ids.astype(np.uint16).argsort(kind="stable")  # the lower half; astype drops the upper one
    return order[(ids >> 16).astype(np.uint16)[order].argsort(kind="stable")]


class IntegerIds:
    """Maps int64 to ids from ``start`` upwards.

    Few values in a narrow range use a table indexed by the value itself, all others open addressing with linear
    probing, both in a handful of NumPy calls per batch.  Many are moved to a new table in portions (:meth:`reserve`),
    so that the time of a step does not grow with their number.
    """

    __slots__ = ("_base", "_direct", "_hashed", "_shift", "_values", "start")

    def __init__(self, start: int = 0) -> None:
        self.start = start
        self._values = Columns([(np.int64, 0)])
        self._values.add(start)
        self._forget()

    def _forget(self) -> None:
        self._direct: IndexArray | None = None
        self._base = 0
        #: Entry -> id + 1, 0 for none.
        self._hashed: npt.NDArray[np.int32] | None = None
        self._shift = np.uint64(0)

    @property
    def count(self) -> int:
        """One past the largest id."""
        return self._values.count

    def values(self) -> Int64Array:
        """Returns the value of each id; below ``start`` unspecified."""
        return self._values.arrays[0][: self.count]

    def reserve(self, more: int) -> Steps[None]:
        """Makes room for ``more`` values, in portions.  A few values are moved at once, when they come."""
        if self.count <= steps.INDEXED:
            return
        yield from self._values.reserve(more)
        if self._hashed is None or 2 * (self.count + more) > len(self._hashed):
            yield from self._build(more)

    def ids(self, values: Int64Array) -> IndexArray:
        """Returns the id of each value, and adds new ones."""
        got = self.find(values)
        if len(got) and got.min() < 0:
            self.add(first_appearances(values[got < 0]))
            got = self._find(values)
        return got

    def find(self, values: Int64Array) -> IndexArray:
        """Returns the id of each value, -1 if it has none."""
        if self._direct is None and self._hashed is None:
            finished(self._build())
        return self._find(values)

    def _find(self, values: Int64Array) -> IndexArray:
        if self._direct is not None:
            # Both ends of the table are -1, so values out of range are clipped to "unknown".
            return self._direct.take(values - self._base, mode="clip")
        hashed, known = self._hashed, self._values.arrays[0]
        assert hashed is not None
        where = _scatter(values, self._shift)
        got = hashed.take(where).astype(np.intp)
        got -= 1
        wrong = (known.take(got) != values) & (got >= 0)
        if wrong.any():
            rest = wrong.nonzero()[0]
            where, wanted, last = where[rest], values[rest], len(hashed) - 1
            while len(rest):
                where = (where + 1) & last
                ids = hashed.take(where).astype(np.intp) - 1
                got[rest] = ids
                on = ((known.take(ids) != wanted) & (ids >= 0)).nonzero()[0]
                rest, where, wanted = rest[on], where[on], wanted[on]
        return got

    def add(self, new: Int64Array) -> None:
        """Assigns the next ids to distinct new values; to be called after :meth:`find`."""
        old = self._values.add(len(new))
        self._values.arrays[0][old : self.count] = new
        if self._direct is not None:
            at = new - self._base
            if at.min() > 0 and at.max() < len(self._direct) - 1:
                self._direct[at] = np.arange(old, self.count)
                return
        elif self._hashed is not None and 2 * self.count <= len(self._hashed):
            _insert(self._hashed, self._shift, new, old)
            return
        finished(self._build())

    def _build(self, more: int = 0) -> Steps[None]:
        """Builds a table of all values, with room for more."""
        known = self._values.arrays[0][self.start : self.count]
        if len(known) <= steps.INDEXED and self._build_direct(known):
            return
        bits = max(8, (4 * (len(known) + more)).bit_length())
        table, shift = np.empty(1 << bits, np.int32), np.uint64(64 - bits)
        for start, stop in portions(len(table), 2 * steps.COPIED):
            if start:
                yield
            table[start:stop] = 0
        for start, stop in portions(len(known), steps.INDEXED):
            if start:
                yield
            _insert(table, shift, known[start:stop], self.start + start)
        self._forget()
        self._hashed, self._shift = table, shift

    def _build_direct(self, known: Int64Array) -> bool:
        low, high = (int(known.min()), int(known.max())) if len(known) else (0, 0)
        span = high - low + 1
        if span > max(_SMALL_SPAN, _SPARSITY * len(known)) or low <= -_DIRECT_LIMIT or high >= _DIRECT_LIMIT:
            return False
        self._forget()
        room = span // 2 + 64  # on both sides, so that ascending keys do not rebuild the table each time
        self._base = low - room
        self._direct = np.full(span + 2 * room, -1, np.intp)
        self._direct[known - self._base] = np.arange(self.start, self.count)
        return True

    def close(self) -> None:
        """Frees the lookup tables until the next call of :meth:`ids`, or of :meth:`reserve`."""
        self._forget()

    def snapshot(self) -> Mapping[str, Any]:
        return {"start": self.start, "values": self._values.freeze()[0]}

    @classmethod
    def restoring(cls, state: Mapping[str, Any]) -> Steps[IntegerIds]:
        """Restores a snapshot, with its table if there are many values."""
        ids = cls(state["start"])
        yield from ids._values.load([state["values"]])
        ids._values.add(max(0, ids.start - ids.count))
        yield from ids.reserve(0)
        return ids


def _scatter(values: Int64Array, shift: np.uint64) -> IndexArray:
    bits = np.ascontiguousarray(values).view(np.uint64)
    return (((bits ^ (bits >> np.uint64(32))) * _SCATTER) >> shift).view(np.int64)


def _insert(table: npt.NDArray[np.int32], shift: np.uint64, values: Int64Array, first_id: int) -> None:
    """Inserts distinct new values, with ascending ids, into a table with room for them."""
    last, where = len(table) - 1, _scatter(values, shift)
    entries = np.arange(first_id + 1, first_id + 1 + len(values), dtype=np.int32)
    while len(values):
        free = table.take(where) == 0
        # Several values may write to one entry.  The one that reads back its id has it; the others probe on.
        table[where[free]] = entries[free]
        lost = ~(free & (table.take(where) == entries))
        values, entries, where = values[lost], entries[lost], (where[lost] + 1) & last


#: For each dictionary of a stream, a table from its codes to our ids; -1: not used yet.
IdTables = WeakKeyDictionary[StringDictionary, IndexArray]


def id_table(tables: IdTables, source: StringDictionary) -> IndexArray:
    """Returns the table of a dictionary, with room for all its codes."""
    table = tables.get(source)
    if table is None:
        table = tables[source] = np.full(max(len(source), 1), -1, np.intp)
    elif len(table) < len(source):
        table = tables[source] = grown(table, len(table), len(source), -1)
    return table


class StringIds:
    """Maps strings to ids from 1 upwards; id − 1 is the code in our dictionary.  For keys: operators/texts.py.

    Streams change their dictionaries; state must outlive them.  Per source dictionary there is a table from its codes
    to our ids, filled on first use, so our dictionary holds only strings of rows.
    """

    __slots__ = ("_tables", "dictionary")

    def __init__(self) -> None:
        #: Code 0 is "", also for nulls.
        self.dictionary = StringDictionary([""])
        self._tables: IdTables = WeakKeyDictionary()

    def ids(self, column: Column) -> IndexArray:
        """Returns the id of each text; any id for a null."""
        source = column.dictionary
        assert source is not None
        table = id_table(self._tables, source)
        got = table.take(column.values, mode="clip")
        if len(got) and got.min() < 0:
            self._learn(source, table, np.unique(column.values[got < 0]))
            got = table.take(column.values, mode="clip")
        return got

    def _learn(self, source: StringDictionary, table: IndexArray, codes: npt.NDArray[Any]) -> None:
        texts = source.strings
        for code in codes.clip(0, len(table) - 1).tolist():
            # The code under a null may be out of range.
            table[code] = self.dictionary.code(texts[code] if code < len(texts) else "") + 1

    def adopt(self, column: Column) -> Column:
        """Returns the same texts, coded in our dictionary."""
        if column.dictionary is self.dictionary:
            return column
        return Column((self.ids(column) - 1).astype(np.int32), column.valid, self.dictionary)


def alone(part: Callable[[int, int], Column], count: int) -> Steps[Column]:
    """Makes a column of ``count`` entries, in portions; strings are in a dictionary without others."""
    parts, strings = [part(0, 0)], StringIds()
    for start, stop in portions(count, steps.RELEASED):
        if start:
            yield
        parts.append(part(start, stop))
    if parts[0].dictionary is not None:
        for at, column in enumerate(parts):
            if at:
                yield
            parts[at] = strings.adopt(column)
    return concat_columns(parts)
