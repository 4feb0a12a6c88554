"""Maps keys of one or more attributes to dense slots.

Each attribute has its own ids; several are combined pairwise into one.  Null is an ordinary value here, as in SQL's
GROUP BY; a join removes rows with null keys beforehand.  NaN equals NaN.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from operators import steps
from operators.ids import IndexArray, IntegerIds
from operators.steps import Steps, finished, portions
from operators.texts import TextIds
from spe.stream.batch import BoolArray, Column, Int64Array, canonical
from spe.stream.schema import AttributeType

#: Bits of the second id in a pair if there are many pairs: both ids are below 2**31.
_WIDE: Final = 32


class _Attribute:
    """Ids of one attribute: 0 is null, values count from 1."""

    __slots__ = ("_type", "integers", "strings")

    def __init__(self, type_: AttributeType) -> None:
        self._type = type_
        self.strings = TextIds() if type_ is AttributeType.STRING else None
        self.integers = None if type_ in (AttributeType.STRING, AttributeType.BOOL) else IntegerIds(start=1)

    @property
    def count(self) -> int:
        if self.strings is not None:
            return self.strings.count
        return 3 if self.integers is None else self.integers.count

    def ids(self, column: Column) -> Steps[IndexArray]:
        if self.strings is not None:
            ids = yield from self.strings.ids_in_portions(column)
        elif self.integers is None:
            ids = column.values.astype(np.intp) + 1
        elif self._type is AttributeType.FLOAT64:
            ids = self.integers.ids(canonical(column.values).view(np.int64))
        else:
            ids = self.integers.ids(column.values)
        return ids if column.valid is None else np.where(column.valid, ids, 0)

    def column(self, ids: IndexArray) -> Column:
        valid: BoolArray | None = None
        if len(ids) and ids.min() == 0:
            valid = ids > 0
        if self.strings is not None:
            codes, dictionary = self.strings.column(ids)
            return Column(codes, valid, dictionary)
        if self.integers is None:
            return Column(ids == 2, valid)
        values: npt.NDArray[Any] = self.integers.values().take(ids)
        return Column(values.view(np.float64) if self._type is AttributeType.FLOAT64 else values, valid)

    def close(self) -> None:
        if self.strings is not None:
            self.strings.close()
        elif self.integers is not None:
            self.integers.close()

    def snapshot(self) -> Mapping[str, Any]:
        if self.strings is not None:
            return self.strings.snapshot()
        return {} if self.integers is None else self.integers.snapshot()

    def restore(self, state: Mapping[str, Any]) -> Steps[None]:
        if self.strings is not None:
            self.strings = yield from TextIds.restoring(state)
        elif self.integers is not None:
            self.integers = yield from IntegerIds.restoring(state)

    def reserve(self, more: int) -> Steps[None]:
        if self.strings is not None:
            yield from self.strings.reserve(more)
        elif self.integers is not None:
            yield from self.integers.reserve(more)


class _Pairs:
    """Maps (id, id) to ids.

    If there are few pairs, the second id has only the bits that it needs, so that small key sets stay in a direct
    table.  If there are many, it has all bits that it can ever need: widening would rebuild the table.
    """

    __slots__ = ("_bits", "_pairs")

    def __init__(self) -> None:
        self._bits = 4
        self._pairs = IntegerIds()

    @property
    def count(self) -> int:
        return self._pairs.count

    def ids(self, first: IndexArray, second: IndexArray, second_count: int) -> IndexArray:
        many = self.count > steps.INDEXED
        if second_count > 1 << self._bits or (many and self._bits < _WIDE):
            self._widen(_WIDE if many else (2 * second_count).bit_length())
        return self._pairs.ids((first << self._bits) | second)

    def _widen(self, bits: int) -> None:
        first, second = self.parts(np.arange(self.count))
        self._bits = bits
        self._pairs = IntegerIds()
        if len(first):
            self._pairs.ids((first << self._bits) | second)

    def parts(self, ids: IndexArray) -> tuple[IndexArray, IndexArray]:
        pairs = self._pairs.values().take(ids)
        return pairs >> self._bits, pairs & ((1 << self._bits) - 1)

    def close(self) -> None:
        self._pairs.close()

    def snapshot(self) -> Mapping[str, Any]:
        return {"bits": self._bits, "pairs": self._pairs.snapshot()}

    def restore(self, state: Mapping[str, Any]) -> Steps[None]:
        self._bits = state["bits"]
        self._pairs = yield from IntegerIds.restoring(state["pairs"])

    def reserve(self, more: int) -> Steps[None]:
        yield from self._pairs.reserve(more)


class KeyIndex:
    """Maps keys to slots.  Without attributes there is one key, in slot 0."""

    __slots__ = ("_attributes", "_pairs", "types")

    def __init__(self, types: Sequence[AttributeType]) -> None:
        self.types = tuple(types)
        self._attributes = [_Attribute(t) for t in self.types]
        self._pairs = [_Pairs() for _ in self.types[1:]]

    @property
    def size(self) -> int:
        """One past the largest slot; slots below it may lack a key."""
        if self._pairs:
            return self._pairs[-1].count
        return self._attributes[0].count if self._attributes else 1

    def reserve(self, more: int) -> Steps[None]:
        """Makes room for the keys of ``more`` rows, in portions."""
        for attribute in self._attributes:
            yield from attribute.reserve(more)
        for pairs in self._pairs:
            yield from pairs.reserve(more)

    def slots(self, columns: Sequence[Column], count: int) -> IndexArray:
        """Returns the slot of each of ``count`` rows."""
        return finished(self.slots_in_portions(columns, count))

    def slots_in_portions(self, columns: Sequence[Column], count: int) -> Steps[IndexArray]:
        """Returns the slot of each of ``count`` rows; in portions if many texts are new."""
        if not columns:
            return np.zeros(count, np.intp)
        slots = yield from self._attributes[0].ids(columns[0])
        for pairs, attribute, column in zip(self._pairs, self._attributes[1:], columns[1:]):
            second = yield from attribute.ids(column)
            slots = pairs.ids(slots, second, attribute.count)
        return slots

    def columns(self, slots: IndexArray) -> tuple[Column, ...]:
        """Returns the keys of slots, which must have one."""
        if not self._attributes:
            return ()
        ids = []
        for pairs in reversed(self._pairs):
            slots, second = pairs.parts(slots)
            ids.append(second)
        ids.append(slots)
        return tuple([a.column(i) for a, i in zip(self._attributes, reversed(ids))])

    def column(self, number: int, slots: IndexArray) -> Column:
        """Returns one attribute of the keys of slots, which must have one."""
        for place in range(len(self._attributes) - 1, number, -1):
            slots = self._pairs[place - 1].parts(slots)[0]
        if number:
            slots = self._pairs[number - 1].parts(slots)[1]
        return self._attributes[number].column(slots)

    def compacted(self, live: IndexArray) -> Steps[tuple[KeyIndex, IndexArray]]:
        """Returns an index of the keys of ``live`` only (ascending), and their slots in it (ascending too)."""
        fresh, slots = KeyIndex(self.types), np.empty(len(live), np.intp)
        for start, stop in portions(len(live), steps.RELEASED):
            if start:
                yield
            yield from fresh.reserve(stop - start)
            some = fresh.slots(self.columns(live[start:stop]), stop - start)
            assert (some[1:] > some[:-1]).all(), "ascending: runs of a join stay in the order of their keys"
            slots[start:stop] = some
        return fresh, slots

    def close(self) -> None:
        """Frees the lookup tables until the next call of :meth:`slots`."""
        for attribute in self._attributes:
            attribute.close()
        for pairs in self._pairs:
            pairs.close()

    def snapshot(self) -> Mapping[str, Any]:
        return {
            "attributes": [a.snapshot() for a in self._attributes],
            "pairs": [p.snapshot() for p in self._pairs],
        }

    @classmethod
    def restoring(cls, types: Sequence[AttributeType], state: Mapping[str, Any]) -> Steps[KeyIndex]:
        """Restores a snapshot."""
        index = cls(types)
        for attribute, saved in zip(index._attributes, state["attributes"]):
            yield from attribute.restore(saved)
        for pairs, saved in zip(index._pairs, state["pairs"]):
            yield from pairs.restore(saved)
        return index


def without_nulls(columns: Sequence[Column]) -> BoolArray | None:
    """Returns the rows where every column has a value; None: all."""
    valid: BoolArray | None = None
    for column in columns:
        if column.valid is not None:
            valid = column.valid if valid is None else valid & column.valid
    return None if valid is None or valid.all() else valid


def group_ids(columns: Sequence[Column], count: int) -> Int64Array:
    """Returns a number per row, equal exactly for equal keys; for one-off grouping."""
    groups, bound = np.zeros(count, np.int64), 1
    for column in columns:
        ids, size = _local_ids(column)
        if bound * size > 2**62:
            distinct, groups = np.unique(groups, return_inverse=True)
            bound = len(distinct)
        groups, bound = groups * size + ids, bound * size
    return groups


def _local_ids(column: Column) -> tuple[Int64Array, int]:
    """Returns numbers below a bound that identify the values of a column, and the bound."""
    ids: Int64Array
    if column.dictionary is not None or column.values.dtype == np.bool_:
        size = 2 if column.dictionary is None else len(column.dictionary)
        ids = column.values.astype(np.int64)
    elif column.values.dtype == np.int32:  # ids of strings (operators/strings.py)
        ids, size = column.values.astype(np.int64), int(column.values.max(initial=0)) + 1
    else:
        values: npt.NDArray[Any] = column.values
        if values.dtype == np.float64:
            values = canonical(values).view(np.int64)
        distinct, ids = np.unique(values, return_inverse=True)
        size = len(distinct)
    if column.valid is not None:
        ids, size = np.where(column.valid, ids + 1, 0), size + 1
    return ids, max(size, 1)
