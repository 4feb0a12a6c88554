"""A client's recording: per channel a folder of segments, with a record per element and its time of arrival.

Segments are those of ``spe.log``, without marks: a client acknowledges only synced elements, and a power failure
destroys no more than the end of a session.  A crash may leave a torn record at the end of a session, which readers
skip; the next session begins a new segment.  ``replicas.client.recorder`` writes recordings and the proof reads them,
so this module is in the lowest package.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Final, NamedTuple

from spe.errors import LogCorrupt, RemoteProtocolError
from spe.log.format import HEADER_BYTES, Position, Record, RecordScan, Segment, check_version, header_fault
from spe.log.recovery import kept_segments
from spe.runtime.env import Storage
from spe.stream.batch import Element
from spe.stream.ids import Channel
from spe.stream.schema import Schema
from spe.stream.strings import StringPool
from spe.wire.codec import decode_standalone, encode_standalone

_ARRIVED: Final = struct.Struct("<q")
#: Bytes at the beginning of a body that hold its time of receipt.
RECEIVED_BYTES: Final = _ARRIVED.size


class Recorded(NamedTuple):
    """An element and its time of receipt.

    Attributes:
      sequence: number of its record, from 1.
      arrived_us: wall time of arrival, microseconds since the epoch.
    """

    sequence: int
    arrived_us: int
    element: Element


def client_folder(name: str) -> PurePosixPath:
    """Returns the folder of a client's recording, relative to the run's folder."""
    return PurePosixPath("clients", name)


def channel_folder(folder: PurePosixPath, channel: Channel) -> PurePosixPath:
    """Returns the folder of a channel below a client's folder."""
    return folder / f"{channel.stream}.{channel.partition}"


def encode_recorded(arrived_us: int, element: Element, schema: Schema) -> bytes:
    """Encodes the body of a record, with all the strings that the element uses."""
    return encode_standalone(element, schema, _ARRIVED.pack(arrived_us))


def received_us(body: bytes) -> int:
    """Reads the time of receipt from the first RECEIVED_BYTES of a body, or more."""
    (arrived_us,) = _ARRIVED.unpack_from(body)
    return int(arrived_us)


def decode_recorded(record: Record, schema: Schema, pool: StringPool, folder: PurePosixPath) -> Recorded:
    """Decodes a record of :func:`encode_recorded`.  Raises LogCorrupt if it is no change of this schema."""
    try:
        (arrived_us,) = _ARRIVED.unpack_from(record.body)
        element = decode_standalone(record.body[_ARRIVED.size :], schema, pool)
    except (struct.error, RemoteProtocolError) as error:
        raise LogCorrupt(f"{folder}: record {record.position.sequence} is no change of this schema: {error}") from error
    return Recorded(record.position.sequence, arrived_us, element)


def scan_segment(storage: Storage, folder: PurePosixPath, segment: Segment) -> RecordScan:
    """Scans the records of a segment; none if its header was never whole.  Raises LogCorrupt: another version."""
    data = storage.read(folder / segment.name)
    check_version(data, folder / segment.name)
    records = memoryview(b"" if header_fault(data, segment) else data)[HEADER_BYTES:]
    return RecordScan(records, Position(segment.first, segment.first, HEADER_BYTES))


def read_segments(storage: Storage, folder: PurePosixPath) -> Iterator[Record]:
    """Reads the records of a folder, in order; a writer may be active.

    A session may end in a torn record; the next session reuses its number.

    Deleted segments at the beginning are skipped (E4).

    Raises:
      LogCorrupt: damage anywhere but at the end of a session.
    """
    start, segments = kept_segments(storage, folder)
    expected, reason = start.first, ""
    for segment in segments:
        if segment.first != expected:
            raise LogCorrupt(f"{folder / segment.name}: begins with record {segment.first}, not {expected}{reason}")
        scan = scan_segment(storage, folder, segment)
        yield from scan
        expected = scan.next.sequence
        reason = f"; {segment.name} at offset {scan.next.offset}: {scan.fault or 'the segment ends'}"


def read_recorded(
    storage: Storage, folder: PurePosixPath, schema: Schema, pool: StringPool | None = None
) -> Iterator[Recorded]:
    """Reads the elements of a channel in order of arrival, as :func:`read_segments` does.

    Args:
      folder: the folder of the channel (:func:`channel_folder`).

    Raises:
      LogCorrupt: damage anywhere but at the end of a session.
    """
    pool = pool if pool is not None else StringPool()
    for record in read_segments(storage, folder):
        yield decode_recorded(record, schema, pool, folder)
