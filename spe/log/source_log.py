"""Records of a source's durable log: each is a batch or a lease, with the state of the source after it.

The state makes a restart exact: ids, stamps and the reader continue where the last acknowledged record ended.  Ground
truth and ``spe reference`` read the same records, so this module is in the lowest package.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Final, NamedTuple

from spe.errors import LogCorrupt, other_version
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

RECORD_VERSION: Final = 1
#: Version, lengths of the cursor and of the rejected rows, zero, and the numbers of the state; then the cursor, the
#: rejected rows, and the batch.
_HEAD: Final = struct.Struct("<4I9q")

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
      left_out: count of consumed rows that became no tuple, being malformed or refused.
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
    left_out: int = 0
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
    *numbers, cursor, count = state
    rows = b"" if rejected is None else encode_standalone(rejected, REJECTED)
    return _HEAD.pack(RECORD_VERSION, len(cursor), len(rows), 0, *numbers, count) + cursor + rows


def _layout(body: bytes) -> _Layout:
    """Raises LogCorrupt: these bytes are no source record, or one of another version."""
    if len(body) < _HEAD.size:
        raise LogCorrupt(f"a source record of {len(body)} bytes; at least {_HEAD.size} were expected")
    version, cursor, rejected, *_ = _HEAD.unpack_from(body)
    if why := other_version("a source record", version, RECORD_VERSION):
        raise LogCorrupt(why)
    behind = _HEAD.size + cursor
    end = behind + rejected
    if len(body) < end:
        raise LogCorrupt(f"a source record of {len(body)} bytes; at least {end} were expected")
    return _Layout(slice(_HEAD.size, behind), slice(behind, end), end)


def decode_source_state(body: bytes) -> SourceState:
    """Decodes the state alone, without the tuples.

    Raises:
      LogCorrupt: the bytes are no source record (another program's log).
    """
    cursor = bytes(body[_layout(body).cursor])
    _, _, _, _, *numbers, count = _HEAD.unpack_from(body)
    return SourceState(*numbers)._replace(cursor=cursor, rejected=count)


def decode_source_batch(body: bytes, schema: Schema, pool: StringPool) -> Batch | None:
    """Decodes the tuples of a record; None for a lease.

    Raises:
     LogCorrupt: the bytes hold other data.
    """
    return _batch(body[_layout(body).batch :], schema, pool)


def decode_rejected(body: bytes, pool: StringPool) -> Batch | None:
    """Decodes the rejected rows of a record (``spe.log.rejected_rows``); None if it has none.

    Raises:
     LogCorrupt: the bytes hold other data.
    """
    return _batch(body[_layout(body).rejected], REJECTED, pool)


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
    if state.consumed - state.left_out != state.last_id:
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
