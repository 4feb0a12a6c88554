"""Converts changes of a table to rows, in the order of their transactions; leaves out rows read before.  Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from replicas.connectors.postgres.changes import (
    UNCHANGED,
    Began,
    Cells,
    Ended,
    RowChanged,
    TableSeen,
    TableTruncated,
    decode,
    lsn_text,
)
from replicas.connectors.postgres.slot import Watched
from replicas.connectors.reader import CHUNK_BYTES, CHUNK_ROWS

Row = tuple[str, ...]
#: Bytes of a row in a chunk that are not its texts.
_ROW_BYTES: Final = 64
#: Characters of a chunk, each of up to four bytes.
_CHUNK_BYTES: Final = CHUNK_BYTES // 4
#: More rows than a transaction has.
_ALL: Final = 1 << 62
#: Common types of a table, by their oids.
_TYPES: Final = {
    16: "boolean", 17: "bytea", 20: "bigint", 21: "smallint", 23: "integer", 25: "text", 114: "json", 700: "real",
    701: "double precision", 1042: "character", 1043: "character varying", 1082: "date",
    1114: "timestamp without time zone", 1184: "timestamp with time zone", 1700: "numeric", 2950: "uuid", 3802: "jsonb",
}  # fmt: skip
#: Groups of types with the same text format.
_ALIKE: Final = ({20, 21, 23}, {700, 701}, {25, 1043})


class Taken(NamedTuple):
    """Rows that become one chunk, and the position after them.

    Attributes:
      rows: cells of the watched columns, then the kind of change, then the commit time.
      lsn, row: commit of the last row's transaction, and the number of its rows that are read.
      end: next position in the server's log, if that transaction is read as a whole; else 0.
    """

    rows: Sequence[Row]
    lsn: int
    row: int
    end: int


class ChangeRows:
    """Decodes the changes of one read of the slot.

    Args:
      lsn, row: the reached position.
      types: oids of the types of columns at the last read; updated.

    Attributes:
      refused: why the changes after the taken ones are refused; "" if none is.
    """

    def __init__(self, watched: Watched, lsn: int, row: int, types: dict[str, int]) -> None:
        self._watched = watched
        self._types = types
        self._lsn = lsn
        self._row = row
        self._at = ""
        #: Index of each watched column in the rows of a table; by its number at the server.
        self._places: dict[int, list[int]] = {}
        self._keys: dict[int, list[int]] = {}
        self._commit = 0
        #: Number of rows of this transaction so far, and of those read before.
        self._count = self._known = 0
        self.refused = ""

    def taken(self, messages: Sequence[bytes]) -> Iterator[Taken]:
        """Yields the changes after the position; ends at a refused one."""
        rows: list[Row] = []
        size, end = 0, 0
        for data in messages:
            message = decode(data)
            if isinstance(message, RowChanged):
                for row in self._rows(message):
                    self._count += 1
                    if self._count <= self._known:
                        continue
                    rows.append(row)
                    size += _bytes(row)
                    end = 0
                    self._lsn, self._row = self._commit, self._count
                    if len(rows) >= CHUNK_ROWS or size >= _CHUNK_BYTES:
                        yield Taken(rows, self._lsn, self._row, 0)
                        rows, size = [], 0
            elif isinstance(message, Began):
                self._commit, self._at = message.lsn, message.at
                self._count, self._known = 0, 0
                if message.lsn < self._lsn:
                    self._known = _ALL
                elif message.lsn == self._lsn:
                    self._known = self._row
            elif isinstance(message, Ended):
                if self._commit >= self._lsn:
                    self._lsn, self._row, end = self._commit, max(self._count, self._known), message.lsn
            elif isinstance(message, TableSeen):
                self._see(message)
            elif isinstance(message, TableTruncated):
                self._truncated(message)
            if self.refused:
                break
        if rows or end:
            yield Taken(rows, self._lsn, self._row, end)

    @property
    def _new(self) -> bool:
        """This transaction was not read as a whole."""
        return self._known < _ALL

    def _see(self, table: TableSeen) -> None:
        watched = self._watched
        if (table.schema, table.name) != (watched.schema, watched.table):
            return
        if missing := [c for c in (*watched.columns, *watched.key) if c not in table.columns]:
            self.refused = (
                f"from {lsn_text(self._commit)} on, {table.schema}.{table.name} has no column "
                f"{', '.join(map(repr, missing))} any more: it was dropped or renamed; correct `columns` or the schema"
            )
            return
        if self._new:
            self._compare(table)
        self._places[table.id] = [table.columns.index(c) for c in watched.columns]
        self._keys[table.id] = [table.columns.index(c) for c in watched.key]

    def _compare(self, table: TableSeen) -> None:
        """Refuses columns whose text format has changed: their values would all be malformed."""
        changed = []
        for column in self._watched.columns:
            type_ = table.types[table.columns.index(column)]
            known = self._types.get(column, type_)
            if type_ == known or any({type_, known} <= alike for alike in _ALIKE):
                self._types[column] = type_
            else:
                changed.append(f"column {column!r} is {_type(type_)}, and was {_type(known)}")
        if changed:
            self.refused = (
                f"from {lsn_text(self._commit)} on, of {table.schema}.{table.name} {'; '.join(changed)}: change that "
                "back, or correct the schema; a source that is started again takes the values that fit"
            )

    def _truncated(self, message: TableTruncated) -> None:
        if self._new and self._watched.changes != "ignore" and any(t in self._places for t in message.tables):
            self.refused = f"the table was truncated, at {lsn_text(self._commit)}; `changes: ignore` leaves that out"

    def _rows(self, message: RowChanged) -> list[Row]:
        """Returns the rows of a change; none if it is refused."""
        places, changes, kind = self._places.get(message.table), self._watched.changes, message.kind
        if places is None or (kind != "insert" and changes == "ignore"):
            return []
        if kind != "insert" and changes == "refuse":
            if self._new:
                self.refused = (
                    f"{'an update' if kind == 'update' else 'a delete'} of a row, at {lsn_text(self._commit)}, and "
                    "`changes` is refuse; `changes: rows` takes it as a row, `changes: ignore` leaves it out"
                )
            return []
        old, new, key = message.old, message.new, self._keys[message.table]
        if kind == "delete":
            return self._row_of(old, None, places, kind)
        if kind == "update" and old is not None and new is not None and any(_moved(old[k], new[k]) for k in key):
            return [*self._row_of(old, None, places, "delete"), *self._row_of(new, old, places, "insert")]
        return self._row_of(new, old, places, kind)

    def _row_of(self, cells: Cells | None, old: Cells | None, places: Sequence[int], kind: str) -> list[Row]:
        taken = []
        for place in places:
            cell = UNCHANGED if cells is None else cells[place]
            if cell is UNCHANGED and old is not None:
                cell = old[place]
            if not isinstance(cell, str):
                self.refused = f"the server left out values of an {kind}; ALTER TABLE … REPLICA IDENTITY FULL"
                return []
            taken.append(cell)
        return [(*taken, kind, self._at)]


def _type(oid: int) -> str:
    return _TYPES.get(oid, f"of the type with oid {oid}")


def _moved(old: object, new: object) -> bool:
    return new is not UNCHANGED and old != new


def _bytes(row: Row) -> int:
    return _ROW_BYTES + sum(map(len, row))


def parts(rows: Sequence[Row]) -> Iterator[tuple[int, int]]:
    """Yields (start, stop) of parts of rows that fit a chunk."""
    start, size = 0, 0
    for i, row in enumerate(rows):
        size += _bytes(row)
        if size >= _CHUNK_BYTES:
            yield start, i + 1
            start, size = i + 1, 0
    if start < len(rows):
        yield start, len(rows)
