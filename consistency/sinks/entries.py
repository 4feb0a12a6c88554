"""Entries of a sink as columns: rows and undos in the order in which they apply, and the rows that result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from spe.stream.batch import BoolArray, Column, Int64Array, Rows, concat_rows
from spe.stream.schema import AttributeType, Schema
from spe.stream.times import parse_timestamp

#: Python types allowed in a cell.
_TYPES: Final[Mapping[AttributeType, frozenset[type]]] = {
    AttributeType.INT64: frozenset({int}),
    AttributeType.FLOAT64: frozenset({float, int}),
    AttributeType.BOOL: frozenset({bool}),
    AttributeType.STRING: frozenset({str}),
    AttributeType.TIMESTAMP: frozenset({int}),
}


class Entries(NamedTuple):
    """The entries of a channel in a sink.

    Attributes:
      ids: id of each entry.
      undo: entries that withdraw all earlier ones with a larger id; the values of their rows are undefined.
      tentative: rows that may still be withdrawn.
    """

    ids: Int64Array
    undo: BoolArray
    tentative: BoolArray
    rows: Rows

    def answer(self) -> tuple[Int64Array, Rows, int]:
        """Returns ids and rows that are final when all entries are applied, and the number of tentative ones."""
        there = ~self.undo
        for at in np.flatnonzero(self.undo).tolist():
            there[:at] &= self.ids[:at] <= self.ids[at]
        final = there & ~self.tentative
        return self.ids[final], self.rows.select(final), int((there & self.tentative).sum())


def entries_of(cells: Mapping[str, Sequence[Any]], schema: Schema) -> Entries:
    """Returns entries from columns with the names that sinks use.

    Raises:
      KeyError: a column is missing.
      ValueError, TypeError: a cell has another type than its attribute.
    """
    count = len(cells["_id"])
    kinds = np.array(cells.get("_kind", ["insert"] * count), np.str_)
    if other := set(kinds.tolist()) - {"insert", "undo", "done"}:
        raise ValueError(f"expected insert, undo or done, got {other.pop()!r}")
    time = _column([0 if t is None else t for t in cells["_time"]], AttributeType.TIMESTAMP, "_time").values
    rows = Rows(time, time, tuple(_column(cells[a.name], a.type, a.name) for a in schema))
    tentative = np.array([bool(t) for t in cells.get("_tentative", [False] * count)], np.bool_)
    ids, entries = _column(cells["_id"], AttributeType.INT64, "_id").values, kinds != "done"
    return Entries(ids[entries], kinds[entries] == "undo", tentative[entries], rows.select(entries))


def joined(parts: Sequence[Entries], schema: Schema) -> Entries:
    """Joins entries in the order of the parts."""
    if not parts:
        return entries_of({"_id": (), "_time": (), **{name: () for name in schema.names}}, schema)
    ids, undo, tentative = (np.concatenate(some) for some in zip(*(part[:-1] for part in parts)))
    return Entries(ids, undo, tentative, concat_rows([part.rows for part in parts]))


def _column(items: Sequence[Any], type_: AttributeType, name: str) -> Column:
    if type_ is AttributeType.TIMESTAMP and any(isinstance(x, str) for x in items):
        items = [parse_timestamp(x) if isinstance(x, str) else x for x in items]
    if type_ is AttributeType.FLOAT64 and any(isinstance(x, str) for x in items):  # JSON has neither NaN nor infinity
        items = [float(x) if x in ("NaN", "Infinity", "-Infinity") else x for x in items]
    if wrong := {type(x) for x in items} - _TYPES[type_] - {type(None)}:
        raise ValueError(f"{name}: expected {type_}, got {wrong.pop().__name__}")
    return Column.from_list(items, type_)
