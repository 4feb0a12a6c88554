"""The bytes of a segment: a header, then records.  Files are handled elsewhere.

    segment = magic with the version | epoch u64 | first sequence u64 | crc32 over (magic, epoch, first)
    record  = length u32 | crc32 over (sequence, body) u32 | sequence u64 | body

All little-endian.  The checksum covers the sequence, so a stale block of an earlier file is never mistaken for a
record of this one.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Final, NamedTuple

from spe.checksum import crc32
from spe.errors import LogCorrupt, other_version
from spe.runtime.env import AppendFile, Storage

#: Largest body.  Far above a chunk of rows, as a source writes it; bounds the damage of a flipped bit in a length.
RECORD_BYTES_MAX: Final = 64 << 20

_NAME: Final = re.compile(r"([0-9]{20})-([0-9]{8,})\.seg")
#: Version of segments, and of all that their records hold.
LOG_VERSION: Final = 1
_LOG: Final = b"SPELOG"
_MAGIC: Final = b"%b%d\n" % (_LOG, LOG_VERSION)
_HEADER: Final = struct.Struct("<8sQQI")
_RECORD: Final = struct.Struct("<IIQ")
_SEQUENCE: Final = struct.Struct("<Q")

HEADER_BYTES: Final = _HEADER.size
RECORD_HEADER_BYTES: Final = _RECORD.size
#: Bytes at the beginning of a segment that give the length of its first record.
FIRST_BYTES: Final = HEADER_BYTES + RECORD_HEADER_BYTES


class Segment(NamedTuple):
    """A segment file.  Sorts by first sequence number, then by writer."""

    first: int
    epoch: int

    @property
    def name(self) -> str:
        return f"{self.first:020d}-{self.epoch:08d}.seg"

    @classmethod
    def parse(cls, name: str) -> Segment | None:
        """The inverse of ``name``; None for files that are no segments."""
        match = _NAME.fullmatch(name)
        return cls(int(match[1]), int(match[2])) if match else None


class Position(NamedTuple):
    """Start of a record: its sequence number, the first sequence number of its segment, and the offset in that file."""

    sequence: int
    segment: int
    offset: int


class Record(NamedTuple):
    """One record; sequence numbers count from 1 over the whole log."""

    position: Position
    body: bytes


def encode_header(segment: Segment) -> bytes:
    head = _HEADER.pack(_MAGIC, segment.epoch, segment.first, 0)[:-4]
    return head + struct.pack("<I", crc32(head))


def header_fault(data: bytes, segment: Segment) -> str:
    """The reason why ``data`` does not begin with this segment's header; "" if it does."""
    if len(data) < HEADER_BYTES:
        return "the header is cut off"
    return "" if data[:HEADER_BYTES] == encode_header(segment) else "the header is damaged"


def check_version(data: bytes, path: object) -> None:
    """Raises LogCorrupt for a segment of another version, of which the header is whole."""
    head, crc = data[: HEADER_BYTES - 4], data[HEADER_BYTES - 4 : HEADER_BYTES]
    if head.startswith(_LOG) and not head.startswith(_MAGIC) and crc == struct.pack("<I", crc32(head)):
        version = head[len(_LOG) : len(_MAGIC)].decode("ascii", "replace").strip()
        raise LogCorrupt(other_version(path, version, LOG_VERSION))


def encode_record(sequence: int, body: bytes) -> bytes:
    return record_header(sequence, body) + body


def record_header(sequence: int, *parts: bytes | memoryview) -> bytes:
    """Returns the header of a record whose body is the concatenation of ``parts``; views are of bytes."""
    return _RECORD.pack(sum(map(len, parts)), _checksum(sequence, *parts), sequence)


def record_end(data: bytes | memoryview, at: int, sequence: int) -> int:
    """The end of the record that begins at ``at``; 0 if it is not whole, or another record.  Faster than a scan."""
    body_at = at + RECORD_HEADER_BYTES
    if len(data) < body_at:
        return 0
    length, crc, number = _RECORD.unpack_from(data, at)
    end = int(body_at + length)
    if number != sequence or end > len(data) or length > RECORD_BYTES_MAX:
        return 0
    return end if crc == crc32(data[body_at - _SEQUENCE.size : end]) else 0


def _checksum(sequence: int, *parts: bytes | memoryview) -> int:
    crc = crc32(_SEQUENCE.pack(sequence))
    for part in parts:
        crc = crc32(part, crc)
    return crc


class RecordScan:
    """Iterates over the valid, consecutive records of a buffer; afterwards tells where and why it stopped.

    Args:
      data: bytes of a segment from ``start.offset`` on.
      start: the record expected at ``data[0]``.

    Attributes:
      next: position of the record expected after the last valid one.
      fault: the reason why there is none; "" if the data ends there.
      missing: missing bytes of a record that is cut off.
    """

    __slots__ = ("_at", "_data", "_offset", "fault", "missing", "next")

    def __init__(self, data: bytes | memoryview, start: Position) -> None:
        self._data = data
        self._at = 0
        self._offset = start.offset
        self.next = start
        self.fault = ""
        self.missing = 0

    def __iter__(self) -> Iterator[Record]:
        return self

    def __next__(self) -> Record:
        data, at = self._data, self._at
        body_at = at + RECORD_HEADER_BYTES
        if len(data) < body_at:
            self.missing = body_at - len(data)
            raise self._stop("the record is cut off" if at < len(data) else "")
        length, crc, sequence = _RECORD.unpack_from(data, at)
        if length > RECORD_BYTES_MAX:
            raise self._stop(f"the record claims {length} bytes")
        end = body_at + length
        if len(data) < end:
            self.missing = end - len(data)
            raise self._stop("the record is cut off")
        body = bytes(data[body_at:end])
        if crc != _checksum(sequence, body):
            raise self._stop("the checksum does not match")
        if sequence != self.next.sequence:
            raise self._stop(f"record {sequence} stands where {self.next.sequence} was expected")
        record = Record(self.next, body)
        self._at = end
        self.next = Position(sequence + 1, self.next.segment, self._offset + end)
        return record

    def _stop(self, fault: str) -> StopIteration:
        self.fault = fault
        return StopIteration()


def first_record_bytes(data: bytes) -> int:
    """Returns the size of a segment up to the end of its first record.

    Args:
      data: its first FIRST_BYTES; if it is shorter, or claims more than a record may have, there is no record.
    """
    if len(data) < FIRST_BYTES:
        return len(data)
    length = int(_RECORD.unpack_from(data, HEADER_BYTES)[0])
    return FIRST_BYTES + length if length <= RECORD_BYTES_MAX else len(data)


def write_whole(file: AppendFile, *parts: bytes | memoryview) -> None:
    """Appends all or nothing.  A partial write that cannot be undone leaves a torn tail.  Raises OSError."""
    size = file.size()
    try:
        file.append(*parts)
    except OSError:
        file.truncate(size)
        raise


def is_torn(file: AppendFile, size: int) -> bool:
    """Did a failed :func:`write_whole` leave bytes behind this size, or is the size unknown?"""
    try:
        return file.size() != size
    except OSError:
        return True


def begin_segment(storage: Storage, folder: PurePosixPath, segment: Segment) -> AppendFile:
    """Creates the file of a new segment, with its header.  Raises OSError."""
    file = storage.open(folder / segment.name)
    try:
        file.truncate(0)  # a header that the disk cut short
        file.append(encode_header(segment))
    except OSError:
        file.close()
        raise
    return file
