"""Values to dense ids: what a dictionary of Python objects would do, many rows at a time.

An id is an index into arrays of state.  It is given by first appearance and means nothing outside its operator; no
output may depend on it.  Values are kept in append-only buffers, so a snapshot is a view of what is there; the lookup
tables are derived, dropped freely, and built again when they are needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from spe.stream.batch import Column
from spe.stream.strings import StringDictionary

IndexArray = npt.NDArray[np.intp]
Int64Array = npt.NDArray[np.int64]

#: A direct table is used while it has at most this many entries per value, or this many at all.
_SPARSITY: Final = 8
_SMALL_SPAN: Final = 1 << 14
_LARGEST_SPAN: Final = 1 << 22
#: Beyond this the base of a direct table, and differences to it, could overflow.
_DIRECT_LIMIT: Final = 2**61
_SCATTER: Final = np.uint64(0x9E3779B97F4A7C15)


def grown(array: npt.NDArray[Any], used: int, wanted: int, fill: Any = 0) -> npt.NDArray[Any]:
    """A copy with room for ``wanted`` entries and more to come; entries from ``used`` on hold ``fill``."""
    larger = np.full(max(wanted, 2 * len(array), 16), fill, array.dtype)
    larger[:used] = array[:used]
    return larger


def first_appearances(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The distinct values in the order in which they first appear."""
    distinct, first = np.unique(values, return_index=True)
    return distinct[first.argsort()]


def stable_order(ids: IndexArray, bound: int) -> IndexArray:
    """``argsort(kind="stable")`` of ids in [0, bound): a radix sort, in one or two passes of 16 bits."""
    if bound <= 1 << 16:
        return ids.astype(np.uint16).argsort(kind="stable")
    if bound > 1 << 32:
        return ids.argsort(kind="stable")
    order = ids.astype(np.uint16).argsort(kind="stable")  # the lower half; astype drops the upper one
    return order[(ids >> 16).astype(np.uint16)[order].argsort(kind="stable")]


class IntegerIds:
    """int64 -> id, ``start`` upwards.

    Narrow ranges go through a table addressed by the value itself, wide ones through open addressing with linear
    probing, both in a handful of NumPy calls per batch.
    """

    __slots__ = ("_base", "_hash_ids", "_hash_keys", "_shift", "_table", "_values", "count", "start")

    def __init__(self, start: int = 0) -> None:
        self.start = start
        #: One past the largest id.
        self.count = start
        self._values: Int64Array = np.zeros(16, np.int64)
        self._forget()

    def _forget(self) -> None:
        self._table: IndexArray | None = None
        self._base = 0
        self._hash_keys: Int64Array | None = None
        self._hash_ids: IndexArray = np.empty(0, np.intp)
        self._shift = np.uint64(0)

    def values(self) -> Int64Array:
        """The value of each id; below ``start`` unspecified."""
        return self._values[: self.count]

    def ids(self, values: Int64Array) -> IndexArray:
        """The id of each value, new ones where needed."""
        if self._table is None and self._hash_keys is None:
            self._build()
        got = self._find(values)
        if len(got) and got.min() < 0:
            self._add(first_appearances(values[got < 0]))
            got = self._find(values)
        return got

    def _find(self, values: Int64Array) -> IndexArray:
        if self._table is not None:
            # Both ends of the table hold -1, so what is out of range is clipped to "unknown".
            return self._table.take(values - self._base, mode="clip")
        assert self._hash_keys is not None
        where = self._scatter(values)
        got = self._hash_ids.take(where)
        wrong = (self._hash_keys.take(where) != values) & (got >= 0)
        if wrong.any():
            rest = wrong.nonzero()[0]
            where, wanted, last = where[rest], values[rest], len(self._hash_ids) - 1
            while len(rest):
                where = (where + 1) & last
                found = self._hash_ids.take(where)
                got[rest] = found
                on = ((self._hash_keys.take(where) != wanted) & (found >= 0)).nonzero()[0]
                rest, where, wanted = rest[on], where[on], wanted[on]
        return got

    def _scatter(self, values: Int64Array) -> IndexArray:
        bits = np.ascontiguousarray(values).view(np.uint64)
        return (((bits ^ (bits >> np.uint64(32))) * _SCATTER) >> self._shift).view(np.int64)

    def _add(self, new: Int64Array) -> None:
        old, self.count = self.count, self.count + len(new)
        if self.count > len(self._values):
            self._values = grown(self._values, old, self.count)
        self._values[old : self.count] = new
        ids = np.arange(old, self.count)
        if self._table is not None:
            at = new - self._base
            if at.min() > 0 and at.max() < len(self._table) - 1:
                self._table[at] = ids
                return
        elif 2 * self.count <= len(self._hash_ids):
            self._insert(new, ids)
            return
        self._build()

    def _build(self) -> None:
        self._forget()
        known = self._values[self.start : self.count]
        low, high = (int(known.min()), int(known.max())) if len(known) else (0, 0)
        span = high - low + 1
        narrow = span <= min(_LARGEST_SPAN, max(_SMALL_SPAN, _SPARSITY * len(known)))
        if narrow and low > -_DIRECT_LIMIT and high < _DIRECT_LIMIT:
            room = span // 2 + 64  # on both sides: keys that count upwards do not rebuild the table each time
            self._base = low - room
            self._table = np.full(span + 2 * room, -1, np.intp)
            self._table[known - self._base] = np.arange(self.start, self.count)
            return
        bits = max(8, (4 * len(known)).bit_length())
        self._shift = np.uint64(64 - bits)
        self._hash_keys = np.zeros(1 << bits, np.int64)
        self._hash_ids = np.full(1 << bits, -1, np.intp)
        self._insert(known, np.arange(self.start, self.count))

    def _insert(self, values: Int64Array, ids: IndexArray) -> None:
        assert self._hash_keys is not None
        last, where = len(self._hash_ids) - 1, self._scatter(values)
        while len(values):
            free = self._hash_ids.take(where) < 0
            # Several may claim one entry; whoever reads its own id back has it, the others probe on.
            self._hash_ids[where[free]] = ids[free]
            won = free & (self._hash_ids.take(where) == ids)
            self._hash_keys[where[won]] = values[won]
            lost = ~won
            values, ids, where = values[lost], ids[lost], (where[lost] + 1) & last

    def close(self) -> None:
        """Frees the lookup tables until the next call of :meth:`ids`."""
        self._forget()

    def snapshot(self) -> Mapping[str, Any]:
        return {"start": self.start, "values": self.values()}

    @classmethod
    def restored(cls, state: Mapping[str, Any]) -> IntegerIds:
        ids = cls(state["start"])
        ids._values = state["values"]  # full, so the first addition copies it
        ids.count = max(len(ids._values), ids.start)
        return ids


class StringIds:
    """Strings -> id, 1 upwards; id − 1 is the code in a dictionary of our own.

    Streams change their dictionaries; state must outlive them.  Per source dictionary there is a table from its codes
    to our ids, filled with what has been seen only, so our dictionary holds what came in and nothing else.
    """

    __slots__ = ("_tables", "dictionary")

    def __init__(self) -> None:
        #: Code 0 is "", which also stands under nulls.
        self.dictionary = StringDictionary([""])
        self._tables: WeakKeyDictionary[StringDictionary, IndexArray] = WeakKeyDictionary()

    @property
    def count(self) -> int:
        """One past the largest id."""
        return len(self.dictionary) + 1

    def ids(self, column: Column) -> IndexArray:
        """The id of each text; of a null any id."""
        source = column.dictionary
        assert source is not None
        table = self._tables.get(source)
        if table is None:
            table = self._tables[source] = np.full(max(len(source), 1), -1, np.intp)
        elif len(table) < len(source):
            table = self._tables[source] = grown(table, len(table), len(source), -1)
        got = table.take(column.values, mode="clip")
        if len(got) and got.min() < 0:
            self._learn(source, table, np.unique(column.values[got < 0]))
            got = table.take(column.values, mode="clip")
        return got

    def _learn(self, source: StringDictionary, table: IndexArray, codes: npt.NDArray[Any]) -> None:
        texts = source.strings
        for code in codes.clip(0, len(table) - 1).tolist():
            # Under a null there may be a code that the dictionary does not have.
            table[code] = self.dictionary.code(texts[code] if code < len(texts) else "") + 1

    def adopt(self, column: Column) -> Column:
        """The same texts, coded in our dictionary."""
        if column.dictionary is self.dictionary:
            return column
        return Column((self.ids(column) - 1).astype(np.int32), column.valid, self.dictionary)

    def close(self) -> None:
        """Frees the lookup tables until the next call of :meth:`ids`."""
        self._tables = WeakKeyDictionary()

    def snapshot(self) -> Mapping[str, Any]:
        return {"dictionary": self.dictionary, "count": len(self.dictionary)}

    @classmethod
    def restored(cls, state: Mapping[str, Any]) -> StringIds:
        """With a dictionary of its own: whoever was restored from the same snapshot goes on separately."""
        ids = cls()
        ids.dictionary = StringDictionary(state["dictionary"].strings[: state["count"]])
        return ids
