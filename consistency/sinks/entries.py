"""Entries of a sink as columns: rows and undos in the order in which they apply, and the answer that they give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from spe.stream.batch import BoolArray, Column, Int64Array, Rows, concat_rows
from spe.stream.schema import AttributeType, Schema
from spe.stream.times import parse_timestamp

#: The types of Python that a cell may have.
_TYPES: Final[Mapping[AttributeType, frozenset[type]]] = {
    AttributeType.INT64: frozenset({int}),
    AttributeType.FLOAT64: frozenset({float, int}),
    AttributeType.BOOL: frozenset({bool}),
    AttributeType.STRING: frozenset({str}),
    AttributeType.TIMESTAMP: frozenset({int}),
}


class Entries(NamedTuple):
    """What a sink has of some channels.

    Attributes:
      partition, ids: of each entry.
      undo, done: which entries are no rows; the values of these mean nothing.
      tentative: rows that may still be withdrawn.
    """

    partition: Int64Array
    ids: Int64Array
    undo: BoolArray
    done: BoolArray
    tentative: BoolArray
    rows: Rows

    def of(self, partition: int) -> Entries:
        """The entries of one partition."""
        mask = self.partition == partition
        marks = (self.undo[mask], self.done[mask], self.tentative[mask])
        return Entries(self.partition[mask], self.ids[mask], *marks, self.rows.select(mask))

    def answer(self) -> tuple[Int64Array, Rows, int]:
        """Ids and rows that are final when all entries of one partition are applied, and how many are tentative."""
        there = ~(self.undo | self.done)
        for at in np.flatnonzero(self.undo).tolist():
            there[:at] &= self.ids[:at] <= self.ids[at]
        final = there & ~self.tentative
        return self.ids[final], self.rows.select(final), int((there & self.tentative).sum())


def entries_of(cells: Mapping[str, Sequence[Any]], schema: Schema, partition: int = 0) -> Entries:
    """Entries of columns with the names that sinks give them.

    Args:
      partition: of all, where there is no column ``_partition``.

    Raises:
      KeyError: a column is missing.
      ValueError, TypeError: a cell has another type than its attribute.
    """
    count = len(cells["_id"])
    kinds = np.array(cells.get("_kind", ["insert"] * count), np.str_)
    if other := set(kinds.tolist()) - {"insert", "undo", "done"}:
        raise ValueError(f"expected insert, undo or done, got {other.pop()!r}")
    time = _column([0 if t is None else t for t in cells["_time"]], AttributeType.TIMESTAMP, "_time").values
    return Entries(
        np.array(cells.get("_partition", [partition] * count), np.int64),
        _column(cells["_id"], AttributeType.INT64, "_id").values,
        kinds == "undo",
        kinds == "done",
        np.array([bool(t) for t in cells.get("_tentative", [False] * count)], np.bool_),
        Rows(time, time, tuple(_column(cells[a.name], a.type, a.name) for a in schema)),
    )


def joined(parts: Sequence[Entries], schema: Schema) -> Entries:
    """All entries, in the order of the parts."""
    if not parts:
        return entries_of({"_id": (), "_time": (), **{name: () for name in schema.names}}, schema)
    columns = list(zip(*(part[:-1] for part in parts)))
    partition, ids, undo, done, tentative = (np.concatenate(some) for some in columns)
    return Entries(partition, ids, undo, done, tentative, concat_rows([part.rows for part in parts]))


def _column(items: Sequence[Any], type_: AttributeType, name: str) -> Column:
    if type_ is AttributeType.TIMESTAMP and any(isinstance(x, str) for x in items):
        items = [parse_timestamp(x) if isinstance(x, str) else x for x in items]
    if type_ is AttributeType.FLOAT64 and any(isinstance(x, str) for x in items):  # JSON has neither NaN nor infinity
        items = [float(x) if x in ("NaN", "Infinity", "-Infinity") else x for x in items]
    if wrong := {type(x) for x in items} - _TYPES[type_] - {type(None)}:
        raise ValueError(f"{name}: expected {type_}, got {wrong.pop().__name__}")
    return Column.from_list(items, type_)
