"""Spill files: where a buffer puts its oldest part when memory is short, and reads it back in pieces.

What is spilled is lost with the process, as memory would be: nothing is synced, and what an earlier process left is
removed at the start.  Each buffer has a :class:`Shelf` with segments of its own, so that what is forgotten in order
frees its space in order.  A piece is one batch in the wire's encoding with a CRC-32; a damaged one is never served.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final, Protocol

from spe.errors import LogError, RemoteProtocolError
from spe.runtime.env import AppendFile, Storage
from spe.stream.batch import Batch
from spe.stream.schema import Schema
from spe.stream.strings import StringPool
from spe.wire.codec import decode_standalone, encode_standalone

#: Size after which a segment is closed for writing; its space comes back when its last piece is forgotten.
SEGMENT_BYTES: Final = 32 << 20
#: Largest piece aimed at: large enough that a file costs nothing beside its contents, small enough to yield after.
PIECE_BYTES: Final = 1 << 20
#: How long a disk that refused a write is left alone.
RETRY_US: Final = 5_000_000


class SpillDamaged(LogError):
    """A piece does not read back as it was written: it is given up, and never served."""


@dataclass(frozen=True, slots=True)
class Handle:
    """Where a piece lies."""

    segment: int
    offset: int
    length: int
    crc: int


class Spill(Protocol):
    """Where a pure machine puts batches that it does not want to keep in memory."""

    def write(self, batch: Batch) -> Handle | None:
        """None: there is no room, or the disk refuses; the batch stays with its owner."""
        ...

    def read(self, handle: Handle) -> Batch:
        """Raises SpillDamaged."""
        ...

    def forget(self, handle: Handle) -> None: ...


def piece_bytes(cap_bytes: int) -> int:
    """Size of the pieces of a buffer with this cap: several of them fit."""
    return max(1, min(PIECE_BYTES, cap_bytes // 8))


class SpillFolder:
    """All spill files of a process.

    Args:
      folder: theirs alone; what is in it is removed.
      limit_bytes: of all files together.
      now: monotonic microseconds.
      told: called when spilling stops working, with the reason, and with "" when it works again.
    """

    def __init__(
        self,
        storage: Storage,
        folder: PurePosixPath,
        limit_bytes: int,
        *,
        now: Callable[[], int],
        told: Callable[[str], None],
    ) -> None:
        self._storage = storage
        self._folder = folder
        self._limit = limit_bytes
        self._now = now
        self._told = told
        self._trouble = ""
        self._retry_at = 0
        self._segments = 0
        #: Bytes of all files.
        self.used = 0
        #: Pieces written, read back, refused for lack of room or by the disk, and found damaged.
        self.written = self.read = self.refused = self.damaged = 0
        for name in storage.list(folder):
            storage.remove(folder / name)

    def shelf(self, schema: Schema) -> Shelf:
        """A place for the batches of one buffer."""
        return Shelf(self, schema)

    def has_room(self, length: int) -> bool:
        """May this many bytes be written now?"""
        if self._now() < self._retry_at:
            self.refused += 1
            return False
        if self.used + length > self._limit:
            self.fail(f"{self._limit} bytes are in use, which is the limit", retry=False)
            return False
        return True

    def fail(self, why: str, *, retry: bool = True) -> None:
        """A write was refused: said once, until one works again."""
        self.refused += 1
        self._retry_at = self._now() + RETRY_US if retry else 0
        if not self._trouble:
            self._told(why)
        self._trouble = why

    def works(self) -> None:
        self.written += 1
        if self._trouble:
            self._trouble = ""
            self._told("")

    def create(self) -> tuple[int, AppendFile]:
        """A new segment.  Raises OSError."""
        self._segments += 1
        return self._segments, self._storage.open(self._path(self._segments))

    def remove(self, segment: int, size: int) -> None:
        self.used -= size
        with suppress(OSError):  # what is left goes at the next start
            self._storage.remove(self._path(segment))

    def statistics(self) -> dict[str, int]:
        return {
            "spill_bytes": self.used,
            "spill_written": self.written,
            "spill_read": self.read,
            "spill_refused": self.refused,
            "spill_damaged": self.damaged,
        }

    def _path(self, segment: int) -> PurePosixPath:
        return self._folder / f"{segment:08d}.spill"


class _Segment:
    __slots__ = ("file", "pieces", "size")

    def __init__(self, file: AppendFile) -> None:
        self.file = file
        self.size = 0
        #: How many of its pieces are still wanted.
        self.pieces = 0


class Shelf:
    """The spilled part of one buffer; a :class:`Spill`."""

    def __init__(self, folder: SpillFolder, schema: Schema) -> None:
        self._folder = folder
        self._schema = schema
        self._pool = StringPool()
        self._segments: dict[int, _Segment] = {}
        #: The segment that is written to; None: the next piece begins one.
        self._current: int | None = None

    def write(self, batch: Batch) -> Handle | None:
        folder = self._folder
        data = encode_standalone(batch, self._schema)
        if not folder.has_room(len(data)):
            return None
        try:
            if self._current is None:
                self._current, file = folder.create()
                self._segments[self._current] = _Segment(file)
            number, segment = self._current, self._segments[self._current]
            segment.file.append(data)
        except OSError as error:
            folder.fail(f"{error.strerror or error}")
            self._end_segment()  # a part of the piece may be in it
            return None
        handle = Handle(number, segment.size, len(data), zlib.crc32(data))
        segment.size += len(data)
        segment.pieces += 1
        folder.used += len(data)
        folder.works()
        if segment.size >= SEGMENT_BYTES:
            self._end_segment()
        return handle

    def read(self, handle: Handle) -> Batch:
        try:
            data = self._segments[handle.segment].file.read(handle.offset, handle.length)
            if len(data) != handle.length or zlib.crc32(data) != handle.crc:
                raise SpillDamaged(f"spill segment {handle.segment}, offset {handle.offset}: the piece is damaged")
            element = decode_standalone(data, self._schema, self._pool)
        except (OSError, RemoteProtocolError) as error:
            self._folder.damaged += 1
            raise SpillDamaged(f"spill segment {handle.segment}, offset {handle.offset}: {error}") from error
        except SpillDamaged:
            self._folder.damaged += 1
            raise
        assert type(element) is Batch
        self._folder.read += 1
        return element

    def forget(self, handle: Handle) -> None:
        segment = self._segments[handle.segment]
        segment.pieces -= 1
        if not segment.pieces and handle.segment != self._current:
            self._remove(handle.segment)
        elif not segment.pieces:
            self._end_segment()

    def close(self) -> None:
        """Nothing of this shelf is wanted any more."""
        self._current = None
        for number in list(self._segments):
            self._remove(number)

    def _end_segment(self) -> None:
        number, self._current = self._current, None
        if number is not None and not self._segments[number].pieces:
            self._remove(number)

    def _remove(self, number: int) -> None:
        segment = self._segments.pop(number)
        with suppress(OSError):
            segment.file.close()
        self._folder.remove(number, segment.size)
