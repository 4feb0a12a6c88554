"""Records of a source's durable log: each is a batch or a lease, with the state of the source after it.

The state makes a restart exact: ids, stamps and the reader continue where the last acknowledged record ended.  Ground
truth and ``spe reference`` read the same records, so this module is in the lowest package.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Final, NamedTuple

from spe.errors import LogCorrupt
from spe.log import read_log
from spe.log.log_start import need_whole
from spe.log.rejected_rows import REJECTED
from spe.runtime.env import Storage
from spe.stream.batch import Batch, Boundary, Element
from spe.stream.names import Kind, StreamId
from spe.stream.schema import Schema
from spe.stream.strings import StringPool
from spe.stream.times import BEFORE_TIME, END_OF_TIME
from spe.wire.codec import decode_standalone, encode_standalone, standalone_parts

#: Version of the state, negative, since a record of version 1 began with an id.
_VERSION: Final = -2
_HEAD: Final = struct.Struct("<9q")
_HEAD_OF_1: Final = struct.Struct("<7q")
#: Version of a record with a cursor: after the head come the length of the cursor, and the cursor.
_VERSION_WITH_CURSOR: Final = -3
#: Version of a record of a source with ``rejected``: after the head come the number of rows rejected so far; then the
#: cursor, which may be empty, and the rejected rows, each after its length.
_VERSION_WITH_REJECTED: Final = -4
_LENGTH: Final = struct.Struct("<I")
_FIRST: Final = struct.Struct("<q")

#: Number of rows from which copying the columns is slower than writing each of them.
_ROWS_OF_PARTS: Final = 1_000
#: Longest cursor: every record of its source contains one.
CURSOR_BYTES_MAX: Final = 64 << 10


class SourceState(NamedTuple):
    """State of a source proxy after a record.

    Attributes:
      last_id: id of the last tuple.
      max_event_us: largest raw event time so far.
      lease_us: logged promise: no later tuple has a smaller ``time``.
      bound_us: largest boundary that the log implies here: from the tuples or the lease, at a boundary interval.
      consumed: rows taken from the reader, malformed and refused ones included.
      origin_us: event time at which the replay or the generator began.
      begun_us: wall time at which it began.
      left_out: count of consumed rows that became no tuple, being malformed or refused; None: unknown, in a
        record of version 1.
      cursor: position from which the reader continues after these rows (S9); empty if it needs none.
      rejected: count of left-out rows that the log stores, for the sink of rejected rows (E8).
    """

    last_id: int = 0
    max_event_us: int = BEFORE_TIME
    lease_us: int = BEFORE_TIME
    bound_us: int = BEFORE_TIME
    consumed: int = 0
    origin_us: int = BEFORE_TIME
    begun_us: int = BEFORE_TIME
    left_out: int | None = 0
    cursor: bytes = b""
    rejected: int = 0

    @property
    def reached_us(self) -> int:
        """Upper bound of the times of all tuples so far; the lease of an ended source does not count."""
        return self.max_event_us if self.lease_us >= END_OF_TIME else max(self.max_event_us, self.lease_us)


def source_folder(stream: StreamId) -> PurePosixPath:
    """Returns the folder of a source's log, relative to the storage root."""
    return PurePosixPath("sources", stream)


class _Layout(NamedTuple):
    """Places of the parts of a record; the batch is last."""

    cursor: slice
    rejected: slice
    batch: int


def encode_source_record(
    state: SourceState, batch: Batch | None, schema: Schema, rejected: Batch | None = None
) -> bytes:
    """Encodes a record with a batch, or (None) with a lease alone.

    Args:
      state: with ``left_out``.
      rejected: rows rejected since the previous record, the last ones counted by ``state.rejected``.
    """
    head = _encode_head(state, rejected)
    return head if batch is None else encode_standalone(batch, schema, head)


def source_record_parts(
    state: SourceState, batch: Batch | None, schema: Schema, rejected: Batch | None = None
) -> list[bytes | memoryview]:
    """Encodes a record in parts; the parts of a large batch are views of its columns, not copies."""
    if batch is None or len(batch) < _ROWS_OF_PARTS:
        return [encode_source_record(state, batch, schema, rejected)]
    return [_encode_head(state, rejected), *standalone_parts(batch, schema)]


def _encode_head(state: SourceState, rejected: Batch | None) -> bytes:
    *numbers, left_out, cursor, count = state
    assert left_out is not None
    version = _VERSION_WITH_REJECTED if count else _VERSION_WITH_CURSOR if cursor else _VERSION
    head = _HEAD.pack(version, *numbers, left_out)
    if count:
        rows = b"" if rejected is None else encode_standalone(rejected, REJECTED)
        head += _FIRST.pack(count) + _LENGTH.pack(len(cursor)) + cursor + _LENGTH.pack(len(rows)) + rows
    elif cursor:
        head += _LENGTH.pack(len(cursor)) + cursor
    return head


def _version(body: bytes) -> int:
    """Returns the version, negative; 0 or more, an id, in version 1.  Raises LogCorrupt."""
    version = int(_FIRST.unpack_from(body)[0]) if len(body) >= _FIRST.size else 0
    if version < _VERSION_WITH_REJECTED or version == -1:
        raise LogCorrupt(f"a source record of version {-version}; this release knows up to {-_VERSION_WITH_REJECTED}")
    _need(body, _HEAD.size if version < 0 else _HEAD_OF_1.size)
    return version


def _need(body: bytes, size: int) -> None:
    if len(body) < size:
        raise LogCorrupt(f"a source record of {len(body)} bytes; at least {size} were expected")


def _layout(body: bytes, version: int) -> _Layout:
    """Returns the places of the parts.  Raises LogCorrupt."""
    at = _HEAD.size if version < 0 else _HEAD_OF_1.size
    if version > _VERSION_WITH_CURSOR:
        return _Layout(slice(at, at), slice(at, at), at)
    if version == _VERSION_WITH_CURSOR:
        cursor = _section(body, at)
        return _Layout(cursor, slice(cursor.stop, cursor.stop), cursor.stop)
    cursor = _section(body, at + _FIRST.size)
    rejected = _section(body, cursor.stop)
    return _Layout(cursor, rejected, rejected.stop)


def _section(body: bytes, at: int) -> slice:
    """Returns the place of bytes that follow their length.  Raises LogCorrupt."""
    begin = at + _LENGTH.size
    _need(body, begin)
    end = begin + int(_LENGTH.unpack_from(body, at)[0])
    _need(body, end)
    return slice(begin, end)


def decode_source_state(body: bytes) -> SourceState:
    """Decodes the state alone, without the tuples.

    Raises:
      LogCorrupt: the bytes are no source record (another program's log).
    """
    version = _version(body)
    if version >= 0:
        return SourceState(*_HEAD_OF_1.unpack_from(body))._replace(left_out=None)
    _, *numbers = _HEAD.unpack_from(body)
    state = SourceState(*numbers)
    if version == _VERSION:
        return state
    cursor = bytes(body[_layout(body, version).cursor])
    rejected = _FIRST.unpack_from(body, _HEAD.size)[0] if version == _VERSION_WITH_REJECTED else 0
    return state._replace(cursor=cursor, rejected=rejected)


def decode_source_batch(body: bytes, schema: Schema, pool: StringPool) -> Batch | None:
    """Decodes the tuples of a record; None for a lease.

    Raises:
     LogCorrupt: the bytes hold other data.
    """
    return _batch(body[_layout(body, _version(body)).batch :], schema, pool)


def decode_rejected(body: bytes, pool: StringPool) -> Batch | None:
    """Decodes the rejected rows of a record (``spe.log.rejected_rows``); None if it has none.

    Raises:
     LogCorrupt: the bytes hold other data.
    """
    return _batch(body[_layout(body, _version(body)).rejected], REJECTED, pool)


def _batch(data: bytes, schema: Schema, pool: StringPool) -> Batch | None:
    if not len(data):
        return None
    element = decode_standalone(data, schema, pool)
    if not isinstance(element, Batch):
        raise LogCorrupt(f"a source record holds a {type(element).__name__}; a batch was expected")
    return element


def check_record(before_id: int | None, state: SourceState, batch: Batch | None) -> None:
    """Checks that a record continues the one before it, and accounts for every row of its reader.

    Args:
      before_id: id of the last tuple before it; None: unknown.

    Raises:
      LogCorrupt: a record or a row is missing or extra.
    """
    first = state.last_id if batch is None else batch.from_id
    if before_id is not None and first != before_id:
        raise LogCorrupt(
            f"tuple {first + 1} follows tuple {before_id}: something between them is missing or came twice"
        )
    if batch is not None and (batch.upto_id != state.last_id or batch.upto_id - batch.from_id != len(batch)):
        raise LogCorrupt(f"{len(batch)} tuples take the ids {first + 1} to {state.last_id}")
    if state.left_out is not None and state.consumed - state.left_out != state.last_id:
        raise LogCorrupt(
            f"{state.consumed} rows were read and {state.left_out} of them left out, which does not leave the "
            f"{state.last_id} tuples that are counted"
        )


def read_source_log(
    storage: Storage, folder: PurePosixPath, schema: Schema, pool: StringPool | None = None
) -> Iterator[Element]:
    """Reads the stable stream that a log implies: batches, each followed by the boundary that it allows.

    Raises:
      LogCorrupt: the log is damaged; the error names segment and offset, or the record.
      LogCut: its beginning was deleted.
    """
    need_whole(storage, folder)
    pool = pool if pool is not None else StringPool()
    bound, last_id = BEFORE_TIME, 0
    for record in read_log(storage, folder):
        state = decode_source_state(record.body)
        batch = decode_source_batch(record.body, schema, pool)
        try:
            check_record(last_id, state, batch)
        except LogCorrupt as error:
            raise LogCorrupt(f"{folder}: record {record.position.sequence}: {error}") from None
        last_id = state.last_id
        if batch is not None:
            yield batch
        if state.bound_us > bound:
            bound = state.bound_us
            yield Boundary(Kind.STABLE, bound, state.last_id)
