"""Columnar rows inside a unit, and the closed set of stream elements between units.

Operators work on ``Rows``, which have no kind and no ids, since operators never use either.  ``Batch`` adds a kind and
an id range to rows for a stream.  All arrays are treated as immutable once they are in a Column: to write, copy first.
The classes are not ``frozen`` because freezing triples the cost of making an object, and they are made once per small
batch on the hot path; nothing assigns to their fields.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Union

import numpy as np
import numpy.typing as npt

from spe.stream.names import Kind, NodeState
from spe.stream.schema import Attribute, AttributeType, Schema
from spe.stream.strings import SHORT_TEXT, StringDictionary, StringPool
from spe.stream.times import BEFORE_TIME, format_timestamp

Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
AnyArray = npt.NDArray[Any]


#: Average bytes per row up to which equal texts are not searched for.
_LITTLE_TEXT: Final = 16


class Column:
    """One attribute of many tuples.

    Attributes:
      values: shape (n,); dtype by attribute type.  Under a null the value is unspecified but initialised.
      valid: shape (n,), False where null; None if nothing is null.
      dictionary: for strings, the dictionary of the int32 codes in ``values``; else None.
    """

    __slots__ = ("dictionary", "valid", "values")

    def __init__(
        self, values: AnyArray, valid: BoolArray | None = None, dictionary: StringDictionary | None = None
    ) -> None:
        self.values = values
        self.valid = valid
        self.dictionary = dictionary

    def __len__(self) -> int:
        return len(self.values)

    def take(self, index: AnyArray) -> Column:
        valid = self.valid
        return Column(self.values.take(index), None if valid is None else valid.take(index), self.dictionary)

    def select(self, mask: BoolArray) -> Column:
        valid = self.valid
        return Column(self.values[mask], None if valid is None else valid[mask], self.dictionary)

    def slice(self, start: int, stop: int) -> Column:
        valid = self.valid
        return Column(self.values[start:stop], None if valid is None else valid[start:stop], self.dictionary)

    @property
    def text_bytes(self) -> int:
        """Approximate memory of the long texts, each counted once however many rows have it."""
        dictionary = self.dictionary
        if dictionary is None or dictionary.longest <= SHORT_TEXT or not len(self.values):
            return 0
        codes = self.values if self.valid is None else self.values[self.valid]
        total = int(np.add.reduce(dictionary.sizes_of(codes), dtype=np.int64))
        if len(codes) == 1 or total <= _LITTLE_TEXT * len(codes):
            return total
        if len(dictionary) <= len(codes):
            is_used = np.zeros(len(dictionary), np.bool_)
            np.put(is_used, codes, True, mode="clip")
            codes = np.flatnonzero(is_used)
        else:
            codes = np.sort(codes)
            different = codes[1:] != codes[:-1]
            if different.all():
                return total
            codes = np.append(codes[1:][different], codes[0])
        return int(np.add.reduce(dictionary.sizes_of(codes), dtype=np.int64))

    def in_dictionary(self, target: StringDictionary) -> Column:
        """Returns the column with its strings coded in ``target``."""
        if self.dictionary is target or self.dictionary is None:
            return self
        return Column(self.dictionary.translated(self.values, target), self.valid, target)

    def to_list(self) -> list[Any]:
        """Returns Python objects, None for null.  For sinks and tests, not for the hot path."""
        out: list[Any]
        if self.dictionary is not None:
            texts = self.dictionary.strings
            if self.valid is None:
                return [texts[c] for c in self.values.tolist()]
            return [texts[c] if v else None for c, v in zip(self.values.tolist(), self.valid.tolist())]
        out = self.values.tolist()
        if self.valid is not None:
            out = [x if v else None for x, v in zip(out, self.valid.tolist())]
        return out

    @classmethod
    def from_list(
        cls, items: Sequence[Any], type_: AttributeType, dictionary: StringDictionary | None = None
    ) -> Column:
        """Makes a column of Python objects, None for null.

        Raises:
          TypeError, ValueError, OverflowError: an item does not fit the type.
        """
        valid = None
        if any(x is None for x in items):
            valid = np.array([x is not None for x in items], np.bool_)
        if type_ is AttributeType.STRING:
            dictionary = dictionary if dictionary is not None else StringDictionary()
            dictionary.code("")  # the value under a null
            return cls(dictionary.encode(["" if x is None else x for x in items]), valid, dictionary)
        zero: Any = False if type_ is AttributeType.BOOL else 0
        values = np.array([zero if x is None else x for x in items], type_.dtype)
        return cls(canonical(values), valid)


def canonical(values: AnyArray) -> AnyArray:
    """Replaces −0.0 by 0.0 and every NaN by the same NaN, so that equal values have equal bits (rule U12)."""
    if values.dtype != np.float64 or len(values) == 0:
        return values
    values = values + 0.0  # −0.0 + 0.0 is 0.0; also makes a copy that we may write to
    nan = np.isnan(values)
    if nan.any():
        values[nan] = np.nan
    return values


class Rows:
    """Tuples without kind or id, as operators get them.

    Attributes:
      time: shape (n,) int64, microseconds.
      t_max: shape (n,) int64; the *same object* as ``time`` where they are equal, which is nearly always.
      columns: one Column of length n per attribute of the stream's schema.
    """

    __slots__ = ("_span", "columns", "t_max", "time")

    _span: tuple[bool, int, int] | None

    def __init__(self, time: Int64Array, t_max: Int64Array, columns: tuple[Column, ...]) -> None:
        self.time = time
        self.t_max = t_max
        self.columns = columns
        self._span = None

    def __len__(self) -> int:
        return len(self.time)

    def take(self, index: AnyArray) -> Rows:
        time = self.time.take(index)
        t_max = time if self.t_max is self.time else self.t_max.take(index)
        return Rows(time, t_max, tuple([c.take(index) for c in self.columns]))

    def select(self, mask: BoolArray) -> Rows:
        time = self.time[mask]
        t_max = time if self.t_max is self.time else self.t_max[mask]
        return Rows(time, t_max, tuple([c.select(mask) for c in self.columns]))

    def slice(self, start: int, stop: int) -> Rows:
        time = self.time[start:stop]
        t_max = time if self.t_max is self.time else self.t_max[start:stop]
        part = Rows(time, t_max, tuple([c.slice(start, stop) for c in self.columns]))
        if self._span is not None and self._span[0] and len(time):  # parts of sorted rows are sorted
            part._span = (True, time.item(0), time.item(-1))
        return part

    def span(self) -> tuple[bool, int, int]:
        """(sorted by time?, smallest time, largest) of at least one row.  Cached, since several modules use it."""
        span = self._span
        if span is None:
            time = self.time
            first, last = time.item(0), time.item(-1)
            if len(time) < 2 or not np.count_nonzero(time[1:] < time[:-1]):
                span = (True, first, last)
            else:
                span = (False, int(np.minimum.reduce(time)), int(np.maximum.reduce(time)))
            self._span = span
        return span

    def with_columns(self, columns: tuple[Column, ...]) -> Rows:
        return Rows(self.time, self.t_max, columns)

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays, and of the long texts in them: a function of the rows, not of dictionaries."""
        total = self.time.nbytes + (0 if self.t_max is self.time else self.t_max.nbytes)
        for column in self.columns:
            total += column.values.nbytes + (0 if column.valid is None else column.valid.nbytes)
            if column.dictionary is not None:
                total += column.text_bytes
        return total

    @property
    def text_bytes(self) -> int:
        """The part of :attr:`nbytes` for texts."""
        return sum([c.text_bytes for c in self.columns])

    def to_tuples(self) -> list[tuple[Any, ...]]:
        """Returns attribute values per row.  For sinks and tests, not for the hot path."""
        return list(zip(*[c.to_list() for c in self.columns])) if self.columns else [()] * len(self)

    @classmethod
    def empty(cls, schema: Schema) -> Rows:
        time = np.empty(0, np.int64)
        columns = [
            Column(
                np.empty(0, a.type.dtype),
                None,
                StringDictionary() if a.type is AttributeType.STRING else None,
            )
            for a in schema
        ]
        return cls(time, time, tuple(columns))

    @classmethod
    def from_tuples(
        cls,
        schema: Schema,
        time: Sequence[int] | Int64Array,
        rows: Iterable[Sequence[Any]],
        pool: StringPool | None = None,
    ) -> Rows:
        """Makes rows of Python tuples, with ``t_max`` = ``time``.  For readers and tests."""
        stamps = np.asarray(time, np.int64)
        cells = list(zip(*rows)) or [()] * len(schema)
        dictionary = pool.current() if pool is not None else None
        columns = tuple(column_from(a, list(items), dictionary) for a, items in zip(schema, cells))
        return cls(stamps, stamps, columns)


def column_from(attribute: Attribute, items: list[Any], dictionary: StringDictionary | None) -> Column:
    """Makes a column of Python objects and checks nullability.  Raises as :meth:`Column.from_list`."""
    if not attribute.nullable and any(x is None for x in items):
        raise ValueError(f"attribute {attribute.name!r} is not nullable")
    return Column.from_list(items, attribute.type, dictionary)


def concat_columns(columns: Sequence[Column]) -> Column:
    """Concatenates columns; strings are coded in the last column's dictionary."""
    if len(columns) == 1:
        return columns[0]
    dictionary = columns[-1].dictionary
    if dictionary is not None:
        columns = [c.in_dictionary(dictionary) for c in columns]
    values = np.concatenate([c.values for c in columns])
    for column in columns:
        if column.valid is not None:
            return Column(values, _masks(columns), dictionary)
    return Column(values, None, dictionary)


def concat_rows(parts: Sequence[Rows]) -> Rows:
    """Concatenates parts in their order; needs at least one part."""
    if len(parts) == 1:
        return parts[0]
    t_max = time = np.concatenate([p.time for p in parts])
    for part in parts:
        if part.t_max is not part.time:
            t_max = np.concatenate([p.t_max for p in parts])
            break
    columns = tuple([concat_columns(cs) for cs in zip(*[p.columns for p in parts])])
    return Rows(time, t_max, columns)


def merge_rows(parts: Sequence[Rows]) -> Rows:
    """Merges parts, in any order within, into one order: (time, part, position in part).

    A stable sort of the concatenation gives exactly that order, and timsort finds the sorted runs.  Nothing is moved if
    the parts are consecutive in time.
    """
    if in_order(parts):
        return _sorted(concat_rows(parts))
    concatenate = np.concatenate
    time = concatenate([p.time for p in parts])
    order = time.argsort(kind="stable")
    time = time.take(order)
    t_max = time
    for part in parts:
        if part.t_max is not part.time:
            t_max = concatenate([p.t_max for p in parts]).take(order)
            break
    columns = []
    for column in zip(*[p.columns for p in parts]):
        last = column[-1].dictionary
        valid, pieces = None, []
        for part_column in column:
            pieces.append(
                part_column.values if part_column.dictionary is last else part_column.in_dictionary(last).values
            )
            if part_column.valid is not None:
                valid = part_column.valid
        if valid is not None:
            valid = _masks(column).take(order)
        columns.append(Column(concatenate(pieces).take(order), valid, last))
    return _sorted(Rows(time, t_max, tuple(columns)))


def _sorted(rows: Rows) -> Rows:
    """Marks rows as sorted by time, so that :meth:`Rows.span` need not compute it."""
    if len(rows.time):
        rows._span = (True, rows.time.item(0), rows.time.item(-1))
    return rows


def _masks(columns: Sequence[Column]) -> BoolArray:
    return np.concatenate([np.ones(len(c.values), np.bool_) if c.valid is None else c.valid for c in columns])


def in_order(parts: Sequence[Rows]) -> bool:
    """Is each part sorted, and does none begin before the end of the previous one?"""
    end = BEFORE_TIME
    for rows in parts:
        if len(rows.time):
            in_order, low, high = rows.span()
            if low < end or not in_order:
                return False
            end = high
    return True


@dataclass(slots=True, eq=False)
class Batch:
    """Tuples of one kind on a stream, with the range of ids that they cover.

    Attributes:
      kind: stable batches are final; tentative ones may be undone.
      from_id, upto_id: the half-open range (from_id, upto_id] of ids of the *full* stream that this covers.
      ids: shape (n,) int64, the rows' ids; None if they are exactly from_id + 1 … upto_id.  A substream (hash
        filter) covers a range and has only some of its rows, so "id = last + 1" does not hold for it.
      rows: the tuples; for all streams but a source's, sorted by time.
    """

    kind: Kind
    from_id: int
    upto_id: int
    ids: Int64Array | None
    rows: Rows

    def __len__(self) -> int:
        return len(self.rows)

    def row_ids(self) -> Int64Array:
        if self.ids is not None:
            return self.ids
        return np.arange(self.from_id + 1, self.upto_id + 1, dtype=np.int64)

    def select(self, mask: BoolArray) -> Batch:
        """Selects the rows of ``mask``; the batch still covers the same ids."""
        return Batch(self.kind, self.from_id, self.upto_id, self.row_ids()[mask], self.rows.select(mask))

    def after(self, last_id: int) -> Batch:
        """Returns the part after ``last_id``, which must be in (or before) the covered range."""
        if last_id <= self.from_id:
            return self
        if self.ids is None:
            skip = last_id - self.from_id
            return Batch(self.kind, last_id, self.upto_id, None, self.rows.slice(skip, len(self.rows)))
        skip = int(self.ids.searchsorted(last_id, side="right"))
        return Batch(self.kind, last_id, self.upto_id, self.ids[skip:], self.rows.slice(skip, len(self.rows)))

    def numbered_after(self, last_id: int) -> Batch:
        """Renumbers the rows with the ids that follow ``last_id``, as consumers number tentative tuples."""
        if self.ids is None and self.from_id == last_id:
            return self
        return Batch(self.kind, last_id, last_id + len(self), None, self.rows)

    def __repr__(self) -> str:
        mark = "S" if self.kind is Kind.STABLE else "T"
        return f"<{mark} ({self.from_id}, {self.upto_id}] {len(self.rows)} rows>"


@dataclass(slots=True, eq=False)
class Boundary:
    """The promise that no later tuple of this kind's stream has a smaller ``time``.

    Attributes:
      kind: a stable boundary is final; a tentative one is undone with the tentative suffix.
      time: microseconds; END_OF_TIME ends the stream.
      upto_id: for a stable boundary, the id of the last stable tuple before it in the full stream.
    """

    kind: Kind
    time: int
    upto_id: int

    def __repr__(self) -> str:
        return f"<{'B' if self.kind is Kind.STABLE else 'b'} {format_timestamp(self.time)} ({self.upto_id})>"


@dataclass(slots=True, eq=False)
class Undo:
    """Deletes every tuple after ``upto_id``: the whole tentative suffix of this subscription (rule V1)."""

    upto_id: int


@dataclass(slots=True, eq=False)
class RecDone:
    """The correction that began with an undo is complete; ``state`` is the producer's state after it."""

    state: NodeState


Element = Union[Batch, Boundary, Undo, RecDone]  # noqa: UP007 - evaluated at run time
