"""Encoding of a checkpoint log: its records, and the joint content of two copies of a segment.  Uses no files.

Records and segments have the format of ``spe.log.format``.  Both copies hold the same bytes at the same offsets, so
each record is taken from a copy in which it is whole.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from spe.errors import LogError
from spe.log.format import (
    HEADER_BYTES,
    RECORD_BYTES_MAX,
    RECORD_HEADER_BYTES,
    Segment,
    encode_header,
    record_end,
    record_header,
)

#: Kinds and payloads of records; a view is of bytes.
Records = Sequence[tuple["LogKind", bytes | memoryview]]
#: Kind, slice end, and for a commit the first record that it needs.
_HEAD: Final = struct.Struct("<BqQ")


class LogKind(IntEnum):
    """The content of a record of a slice."""

    OUTPUT = 1
    FOOTPRINTS = 2
    CLOSINGS = 3
    COMMIT = 4


_KINDS: Final = {int(kind): kind for kind in LogKind}
_COMMIT: Final = int(LogKind.COMMIT)


class LogRecord(NamedTuple):
    """A record.

    Attributes:
      time: end of its slice.
      needs: for a commit, the first record that a reader needs; else 0.
    """

    sequence: int
    kind: LogKind
    time: int
    needs: int
    payload: bytes


class Commit(NamedTuple):
    """The commit of a slice.

    Attributes:
      time: slice end.
      first, last: records of its slice; the commit itself is the last one.
      needs: the first record that a reader of it needs.
    """

    time: int
    first: int
    last: int
    needs: int


def encode_slice(first: int, time: int, records: Records, commit: bytes, needs: int) -> tuple[bytes, int]:
    """Returns the bytes of a slice whose first record has the number ``first``, and the number of its commit.

    Raises LogError: a record is too large.
    """
    assert LogKind.COMMIT not in [kind for kind, _ in records], "G1: a slice has one commit, its last record"
    bodies = [(_HEAD.pack(kind, time, 0), payload) for kind, payload in records]
    bodies.append((_HEAD.pack(LogKind.COMMIT, time, needs), commit))
    if (largest := max(_HEAD.size + len(payload) for _, payload in bodies)) > RECORD_BYTES_MAX:
        raise LogError(f"a record of {largest} bytes for a checkpoint log: at most {RECORD_BYTES_MAX} can be read")
    pieces: list[bytes | memoryview] = []
    for sequence, body in enumerate(bodies, first):
        pieces += (record_header(sequence, *body), *body)
    return b"".join(pieces), first + len(bodies) - 1


class Content(NamedTuple):
    """The joint content of two copies of a segment.

    Attributes:
      data: its bytes, header and records.
      last: number of the last of these records; the one before the first if there is none.
      commits: the commits among them.
    """

    data: bytes
    last: int
    commits: list[Commit]


#: Reads a copy of a segment, 0 or 1; returns b"" where it is missing or unreadable.
ReadCopy = Callable[[int], bytes]


class Copies:
    """One segment in two copies, each read at most once, and the second only on demand.

    Args:
      before: the first record of the next segment; None: there is none.
    """

    def __init__(self, segment: Segment, before: int | None, read: ReadCopy) -> None:
        self._segment = segment
        self._before = before
        self._read = read
        self._bytes: dict[int, bytes] = {}
        self._views: dict[int, memoryview] = {}

    def copy(self, index: int) -> memoryview:
        if index not in self._views:
            self._bytes[index] = self._read(index)
            self._views[index] = memoryview(self._bytes[index])
        return self._views[index]

    def places(self) -> Iterator[tuple[int, memoryview, int, int]]:
        """Yields (number, bytes, start, end) of each record: consecutive, up to the first that is whole in neither
        copy.
        """
        at, sequence, data = HEADER_BYTES, self._segment.first, self.copy(0)
        while sequence != self._before:
            end = record_end(data, at, sequence)
            if not end:
                data = self.copy(1)
                end = record_end(data, at, sequence)
                if not end:
                    return
                yield sequence, data, at, end
                data = self.copy(0)
            else:
                yield sequence, data, at, end
            at, sequence = end, sequence + 1

    def records(self) -> Iterator[LogRecord]:
        """Yields the whole records.  Raises LogError: a record is of an unknown kind."""
        for sequence, data, start, end in self.places():
            kind, time, needs = _HEAD.unpack_from(data, start + RECORD_HEADER_BYTES)
            if kind not in _KINDS:
                raise LogError(
                    f"record {sequence} of a checkpoint log is of kind {kind}, which is none of this version"
                )
            yield LogRecord(
                sequence, _KINDS[kind], time, needs, bytes(data[start + RECORD_HEADER_BYTES + _HEAD.size : end])
            )

    def content(self, last: int | None = None) -> Content:
        """Returns the segment's content up to the record ``last``; None: up to its last commit."""
        commits: list[Commit] = []
        first, last_kept, runs, length = self._segment.first, self._segment.first - 1, 0, 0
        pieces: list[tuple[memoryview, int, int]] = []  # of consecutive records in one copy
        for sequence, data, start, end in self.places():
            if last is not None and sequence > last:
                break
            if pieces and pieces[-1][0] is data:
                pieces[-1] = data, pieces[-1][1], end
            else:
                pieces.append((data, start, end))
            kind, time, needs = _HEAD.unpack_from(data, start + RECORD_HEADER_BYTES)
            if kind == _COMMIT:
                commits.append(Commit(time, first, sequence, needs))
                first = sequence + 1
            if kind == _COMMIT or last is not None:
                runs, length, last_kept = len(pieces), end, sequence
        whole = [data[start:end] for data, start, end in pieces[:runs]]
        if whole:
            whole[-1] = pieces[runs - 1][0][pieces[runs - 1][1] : length]
        return Content(b"".join([encode_header(self._segment), *whole]), last_kept, commits)

    def holds(self, index: int, data: bytes) -> bool:
        """Returns whether a copy holds exactly these bytes."""
        self.copy(index)
        return self._bytes[index] == data
