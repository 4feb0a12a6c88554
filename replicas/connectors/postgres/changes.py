"""Decodes messages of PostgreSQL's logical decoding (plugin pgoutput, version 1, in text).  Pure."""

from __future__ import annotations

import struct
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from spe.errors import RemoteProtocolError

_EPOCH: Final = datetime(2000, 1, 1, tzinfo=UTC)
#: Replaces a large value that an update did not change, and that the server did not send.
UNCHANGED: Final = object()
#: Replaces a null: no text of PostgreSQL has this character.
NULL: Final = "\0"

Cells = tuple[object, ...]


class Began(NamedTuple):
    """Beginning of a committed transaction: position of its commit in the server's log, and its time, as ISO 8601."""

    lsn: int
    at: str


class Ended(NamedTuple):
    """End of the transaction; the next one begins at ``lsn``."""

    lsn: int


class TableSeen(NamedTuple):
    """The columns of a table from here on; ``types`` are the oids of their types."""

    id: int
    schema: str
    name: str
    columns: tuple[str, ...]
    types: tuple[int, ...]


class RowChanged(NamedTuple):
    """A changed row.

    Attributes:
      kind: insert, update or delete.
      old, new: cells as texts, NULL or UNCHANGED; None: not sent.
    """

    table: int
    kind: str
    old: Cells | None
    new: Cells | None


class TableTruncated(NamedTuple):
    tables: tuple[int, ...]


Decoded = Began | Ended | TableSeen | RowChanged | TableTruncated
_KINDS: Final = {ord("I"): "insert", ord("U"): "update", ord("D"): "delete"}


def decode(data: bytes) -> Decoded | None:
    """Decodes a message; None: not relevant.  Raises RemoteProtocolError: invalid."""
    try:
        return _decode(data)
    except (struct.error, IndexError, ValueError) as error:
        raise RemoteProtocolError(f"no message of pgoutput: {data[:40]!r} ({error})") from error


def lsn_text(lsn: int) -> str:
    """Formats a log position as PostgreSQL does: ``16/B374D848``."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def lsn_of(text: str) -> int:
    """Parses a log position."""
    high, low = text.split("/")
    return int(high, 16) << 32 | int(low, 16)


def _decode(data: bytes) -> Decoded | None:
    tag = data[0]
    if tag in _KINDS:
        (table,) = struct.unpack_from(">I", data, 1)
        old, new, at = None, None, 5
        while at < len(data):
            part = data[at : at + 1]
            cells, at = _tuple(data, at + 1)
            if part == b"N":
                new = cells
            elif part in (b"O", b"K"):
                old = cells
            else:
                raise ValueError(f"a tuple of kind {part!r}")
        return RowChanged(table, _KINDS[tag], old, new)
    if tag == ord("B"):
        lsn, us = struct.unpack_from(">Qq", data, 1)
        return Began(lsn, (_EPOCH + timedelta(microseconds=us)).isoformat())
    if tag == ord("C"):
        return Ended(struct.unpack_from(">BQQ", data, 1)[2])
    if tag == ord("R"):
        return _relation(data)
    if tag == ord("T"):
        (count,) = struct.unpack_from(">I", data, 1)
        return TableTruncated(struct.unpack_from(f">{count}I", data, 6))
    return None


def _tuple(data: bytes, at: int) -> tuple[Cells, int]:
    count, at = data[at] << 8 | data[at + 1], at + 2
    cells: list[object] = []
    for _ in range(count):
        kind = data[at]
        at += 1
        if kind == 116:  # t, a text
            end = at + 4 + int.from_bytes(data[at : at + 4], "big")
            if end > len(data):
                raise ValueError("a text is cut off")
            cells.append(data[at + 4 : end].decode())
            at = end
        elif kind == 110:  # n
            cells.append(NULL)
        elif kind == 117:  # u
            cells.append(UNCHANGED)
        else:
            raise ValueError(f"a cell of kind {kind}")
    return tuple(cells), at


def _relation(data: bytes) -> TableSeen:
    (table,) = struct.unpack_from(">I", data, 1)
    schema, at = _name(data, 5)
    name, at = _name(data, at)
    (count,) = struct.unpack_from(">h", data, at + 1)  # after the replica identity
    at += 3
    columns: list[str] = []
    types: list[int] = []
    for _ in range(count):
        column, at = _name(data, at + 1)  # after a flag
        columns.append(column)
        types += struct.unpack_from(">I", data, at)
        at += 8  # and a modifier
    return TableSeen(table, schema or "pg_catalog", name, tuple(columns), tuple(types))


def _name(data: bytes, at: int) -> tuple[str, int]:
    end = data.index(b"\0", at)
    return data[at:end].decode(), end + 1
