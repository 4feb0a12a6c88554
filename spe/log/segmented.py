"""The writer of a log: opening with recovery, appending, group commit, reading back.

Each writer begins a new segment.  A full segment is left at once, and counts as closed when all of it is synced and
marked; later segments are synced after it.  At open the whole records beyond the mark are appended again: after a
failed sync of an earlier process they may be in the page cache only, and a later sync would skip them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from contextlib import suppress
from pathlib import PurePosixPath
from typing import Final

import trio

from spe.errors import LogCorrupt, LogError, LogFull
from spe.log.format import (
    HEADER_BYTES,
    RECORD_BYTES_MAX,
    RECORD_HEADER_BYTES,
    Position,
    Record,
    RecordScan,
    Segment,
    begin_segment,
    is_torn,
    record_header,
    write_whole,
)
from spe.log.log_start import KeptLog, repair_kept, write_kept
from spe.log.marks import Mark, Marks
from spe.log.recovery import Recovery
from spe.runtime.env import AppendFile, Storage

#: A segment is left at the first record past this size.
SEGMENT_BYTES: Final = 64 << 20
Visit = Callable[[Record], None]


class SegmentedLog:
    """The only writer of a log.  Made by :meth:`open`.

    ``append`` writes to the file and returns at once; a record is acknowledged when a ``sync`` that began later has
    returned.  After a torn write or a failed sync the log is read-only for good: a failed sync is never repeated,
    since a second one may report success for pages that the kernel has dropped.

    Attributes:
      epoch: 1 for the first writer, one more for each later one.
      last_sequence: number of the last record appended.
      synced_sequence: number of the last record acknowledged.
      fault: the reason why the log is read-only; None while it can be written.
      kept: the start of the log.
    """

    def __init__(self, storage: Storage, folder: PurePosixPath, recovery: Recovery, segment_bytes: int) -> None:
        self._storage = storage
        self._folder = folder
        self._segment_bytes = segment_bytes
        self._segments = [s for s in recovery.segments if s.first <= recovery.mark.sequence]
        #: Bytes of each closed segment, by its first record.
        self._sizes = recovery.sizes
        self.kept = recovery.kept
        self._marks = Marks(storage, folder)
        self._active: AppendFile | None = None
        #: The next record begins a segment, however small the active one is.
        self._leaves = False
        #: Segments before the active one that are complete, but not yet synced as a whole.
        self._left: list[tuple[Segment, AppendFile]] = []
        self._reading: tuple[Segment, AppendFile] | None = None
        self._syncing = False
        self.fault: LogError | None = None
        self.epoch = recovery.mark.epoch + 1
        self.last_sequence = self.synced_sequence = recovery.mark.sequence

    @classmethod
    async def open(
        cls, storage: Storage, folder: PurePosixPath, visit: Visit | None = None, *, segment_bytes: int = SEGMENT_BYTES
    ) -> SegmentedLog:
        """Takes the lock, checks every record, cuts a torn tail and begins a new epoch.

        Args:
          visit: called with each recovered record in order, since a log may be far larger than memory.

        Raises:
          LogError: another process writes this log, or the disk refuses.
          LogCorrupt: an acknowledged record is damaged or missing; the error names segment and offset.
        """
        storage.lock(folder / "lock")
        recovery = Recovery(storage, folder)
        for index in range(len(recovery.segments)):
            for record in recovery.acknowledged(index):
                if visit is not None:
                    visit(record)
            await trio.lowlevel.checkpoint()  # a long log must not block the event loop
        try:
            log = cls(storage, folder, recovery, segment_bytes)
            await log._take_over(recovery.tail, visit)
        except OSError as error:
            raise LogError(f"log {folder}: cannot be opened for writing: {error}") from error
        return log

    async def _take_over(self, tail: list[Record], visit: Visit | None) -> None:
        await self._marks.write(Mark(self.epoch, self.synced_sequence))
        await repair_kept(self._storage, self._folder)
        for record in tail:
            position = self.append(record.body)
            if visit is not None:
                visit(Record(position, record.body))
        await self.sync()
        for name in self._storage.list(self._folder):
            segment = Segment.parse(name)
            if segment is not None and segment not in self._segments:
                self._storage.remove(self._folder / name)

    def append(self, *parts: bytes | memoryview) -> Position:
        """Writes a record; returns its position.

        Args:
          parts: consecutive parts of its body; views are of bytes.

        Raises:
          LogFull: the disk refused it.  A partial record is removed, and the record can be appended again later.
          LogError: the log is read-only because of an earlier failure, or of this one, whose partial record could not
            be removed; or the record is too large.
        """
        if self.fault is not None:
            raise self.fault
        if (size := sum(map(len, parts))) > RECORD_BYTES_MAX:
            raise LogError(f"log {self._folder}: a record of {size} bytes; at most {RECORD_BYTES_MAX}")
        sequence = self.last_sequence + 1
        try:
            file, offset = self._active, 0 if self._active is None else self._active.size()
            if file is None or self._is_full(offset):
                file = self._begin_segment(sequence)
                offset = file.size()
        except OSError as error:
            raise LogFull(f"log {self._folder}: the disk refused record {sequence}: {error}") from error
        try:
            write_whole(file, record_header(sequence, *parts), *parts)
        except OSError as error:
            if is_torn(file, offset):  # nothing may follow a torn record
                self.fault = LogError(f"log {self._folder}: record {sequence} is torn, read-only from here on: {error}")
                raise self.fault from error
            raise LogFull(f"log {self._folder}: the disk refused record {sequence}: {error}") from error
        self.last_sequence = sequence
        return Position(sequence, self._segments[-1].first, offset)

    def _is_full(self, size: int) -> bool:
        return (self._leaves or size >= self._segment_bytes) and not self._is_empty()

    def _is_empty(self) -> bool:
        """Has the active segment no record, because the disk refused its first one?"""
        return self._segments[-1].first > self.last_sequence

    def _begin_segment(self, first: int) -> AppendFile:
        segment = Segment(first, self.epoch)
        file = begin_segment(self._storage, self._folder, segment)
        if self._active is not None:
            self._left.append((self._segments[-1], self._active))
        self._active = file
        self._leaves = False
        self._segments.append(segment)
        return file

    async def sync(self) -> int:
        """Acknowledges the records appended before the call; returns the last sequence number.

        One call at a time; records may be appended during it.

        Raises:
          LogFull: there was no room for the mark; to be called again.
          LogError: the disk refused, or a newer writer took over.  Nothing more is acknowledged.
        """
        if self._syncing:
            raise RuntimeError("one sync at a time")
        if self.fault is not None:
            raise self.fault
        target, file, left = self.last_sequence, self._active, self._left[:]
        if file is None or (target == self.synced_sequence and not left):
            return target
        self._syncing = True
        try:
            for _, full in left:
                await full.sync()
            await file.sync()
            await self._marks.write(Mark(self.epoch, target))
        except OSError as error:
            self.fault = LogError(f"log {self._folder}: a sync failed, read-only from here on: {error}")
            raise self.fault from error
        except LogFull:
            raise
        except LogError as error:
            self.fault = error
            raise
        finally:
            self._syncing = False
        self.synced_sequence = target
        for segment, full in left:
            self._sizes[segment.first] = full.size()
            full.close()
        del self._left[: len(left)]
        if file is self._active and self.last_sequence == target and self._is_full(file.size()):
            self.leave()
        return target

    def leave(self) -> None:
        """Ends the active segment; it is closed once all of it is synced.

        Nothing happens if it has no record, or if one before it is not closed yet.
        """
        if self._active is None or self._left or self.fault or self._is_empty():
            return
        self._leaves = True
        if not self._syncing and self.last_sequence == self.synced_sequence:
            self._sizes[self._segments[-1].first] = self._active.size()
            self._active.close()
            self._active = None

    @property
    def open_first(self) -> int | None:
        """The first record after the closed segments; None if the next record begins a segment."""
        return None if self._active is None else self._segments[len(self.closed())].first

    @property
    def nbytes(self) -> int:
        """Bytes of all segments."""
        left = sum(file.size() for _, file in self._left)
        return sum(size for _, size in self.closed()) + left + (0 if self._active is None else self._active.size())

    def closed(self) -> list[tuple[Segment, int]]:
        """Segments that are complete and synced, and their bytes, in order."""
        segments = self._segments if self._active is None else self._segments[: -1 - len(self._left)]
        return [(segment, self._sizes[segment.first]) for segment in segments]

    def contents(self, segment: Segment) -> bytes:
        """Reads all bytes of a closed segment."""
        return self._storage.read(self._folder / segment.name)

    async def release(self, start: KeptLog) -> None:
        """Removes the segments before a record, which becomes the start of the log (E4).

        Args:
          start: the new start; its first record begins a segment, and all records before it are acknowledged.

        Raises:
          OSError: the disk refused.  Nothing has changed, or ``kept`` holds and files are left, for
            :meth:`remove_released` or the next time that the log is opened.
        """
        if all(segment.first != start.first for segment in self._segments):
            raise ValueError(f"record {start.first} begins no segment")
        await write_kept(self._storage, self._folder, start)
        self.kept = start
        self.remove_released()

    def remove_released(self) -> None:
        """Removes files that a failed release left, if there are any.  Raises OSError."""
        first = self.kept.first
        if self._reading is not None and self._reading[0].first < first:
            self._reading[1].close()
            self._reading = None
        while self._segments and self._segments[0].first < first:
            with suppress(FileNotFoundError):
                self._storage.remove(self._folder / self._segments[0].name)
            del self._sizes[self._segments[0].first], self._segments[0]

    def read(self, position: Position, limit_bytes: int) -> tuple[list[Record], Position]:
        """Reads acknowledged records from ``position`` on: about ``limit_bytes`` of them, at least one if there is one.

        Returns:
          the records, and the position after them.

        Raises:
          LogCorrupt: a record has been damaged since it was written.
        """
        if position.sequence > self.synced_sequence:
            return [], position
        segment, last = self._segment_of(position.sequence)
        if segment.first != position.segment:  # the segment before had ended when the position was made
            position = Position(position.sequence, segment.first, HEADER_BYTES)
        file = self._open_for_reading(segment)
        wanted = limit_bytes
        while True:
            scan = RecordScan(file.read(position.offset, wanted), position)
            records = [r for r in scan if r.position.sequence <= last]
            if records or not scan.missing or wanted + position.offset >= file.size():
                break
            wanted += scan.missing
        if not records:
            raise LogCorrupt(f"{self._folder / segment.name} at offset {position.offset}: {scan.fault or 'cut off'}")
        at, body = records[-1]
        return records, Position(at.sequence + 1, segment.first, at.offset + RECORD_HEADER_BYTES + len(body))

    def _segment_of(self, sequence: int) -> tuple[Segment, int]:
        """Returns the segment that holds a record, and the last acknowledged record in it."""
        index = bisect_right(self._segments, sequence, key=lambda s: s.first) - 1
        if index + 1 < len(self._segments):
            return self._segments[index], min(self.synced_sequence, self._segments[index + 1].first - 1)
        return self._segments[index], self.synced_sequence

    def _open_for_reading(self, segment: Segment) -> AppendFile:
        if self._active is not None and segment == self._segments[-1]:
            return self._active
        if self._reading is None or self._reading[0] != segment:
            if self._reading is not None:
                self._reading[1].close()
            self._reading = (segment, self._storage.open(self._folder / segment.name))
        return self._reading[1]

    def close(self) -> None:
        """Closes the files.  Unsynced records are left to the operating system."""
        self._marks.close()
        for _, file in self._left:
            file.close()
        if self._active is not None:
            self._active.close()
        if self._reading is not None:
            self._reading[1].close()
