"""What a source's durable log holds: each record is a batch or a lease, with the state of the source after it.

The state makes a restart exact: ids, stamps and the reader go on where the last acknowledged record ended.  Ground
truth and ``spe reference`` read the same records, so this is on the lowest floor.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Final, NamedTuple

from spe.errors import LogCorrupt
from spe.log import read_log
from spe.runtime.env import Storage
from spe.stream.batch import Batch, Boundary, Element
from spe.stream.names import Kind, StreamId
from spe.stream.schema import Schema
from spe.stream.strings import StringPool
from spe.stream.times import BEFORE_TIME
from spe.wire.codec import decode_standalone, encode_standalone

_HEAD: Final = struct.Struct("<7q")


class SourceState(NamedTuple):
    """A source proxy after some record.

    Attributes:
      last_id: id of the last tuple.
      max_event_us: largest raw event time so far.
      lease_us: promise that was logged: no later tuple has a smaller ``time``.
      bound_us: largest boundary that the log implies here: from the tuples or the lease, at a boundary interval.
      consumed: rows taken from the reader, malformed ones included.
      origin_us: event time at which the replay or the generator began.
      begun_us: wall clock at which it did.
    """

    last_id: int = 0
    max_event_us: int = BEFORE_TIME
    lease_us: int = BEFORE_TIME
    bound_us: int = BEFORE_TIME
    consumed: int = 0
    origin_us: int = BEFORE_TIME
    begun_us: int = BEFORE_TIME


def source_folder(stream: StreamId) -> PurePosixPath:
    """Where a source's log lies below the storage root."""
    return PurePosixPath("sources", stream)


def encode_source_record(state: SourceState, batch: Batch | None, schema: Schema) -> bytes:
    """A batch, or (None) a lease alone."""
    return _HEAD.pack(*state) + (b"" if batch is None else encode_standalone(batch, schema))


def decode_source_state(body: bytes) -> SourceState:
    """The state alone, without decoding the tuples.

    Raises:
      LogCorrupt: these bytes are no source record (another program's log).
    """
    if len(body) < _HEAD.size:
        raise LogCorrupt(f"a source record of {len(body)} bytes; at least {_HEAD.size} were expected")
    return SourceState(*_HEAD.unpack_from(body))


def decode_source_batch(body: bytes, schema: Schema, pool: StringPool) -> Batch | None:
    """The tuples of a record; None for a lease.

    Raises:
      LogCorrupt: these bytes hold something else.
    """
    if len(body) == _HEAD.size:
        return None
    element = decode_standalone(body[_HEAD.size :], schema, pool)
    if not isinstance(element, Batch):
        raise LogCorrupt(f"a source record holds a {type(element).__name__}; a batch was expected")
    return element


def read_source_log(
    storage: Storage, folder: PurePosixPath, schema: Schema, pool: StringPool | None = None
) -> Iterator[Element]:
    """The stable stream that a log implies: batches, each followed by the boundary that it allows.

    Raises:
      LogCorrupt: the log is damaged; names segment and offset.
    """
    pool = pool if pool is not None else StringPool()
    bound = BEFORE_TIME
    for record in read_log(storage, folder):
        state = decode_source_state(record.body)
        batch = decode_source_batch(record.body, schema, pool)
        if batch is not None:
            yield batch
        if state.bound_us > bound:
            bound = state.bound_us
            yield Boundary(Kind.STABLE, bound, state.last_id)
