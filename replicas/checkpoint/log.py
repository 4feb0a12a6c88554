"""The checkpoint log on disk: slices of records, each ended by a commit, in two copies (rules G1 and G5).

Records and segments are those of ``spe.log.format``, the marks those of ``spe.log.marks``.  Both copies hold the same
bytes at the same offsets, so a record that is damaged in one is read from the other.  What follows the last whole
commit is void.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from enum import IntEnum
from pathlib import PurePosixPath
from typing import Final, NamedTuple

import trio

from spe.errors import LogCorrupt, LogError, LogFull
from spe.log.format import (
    HEADER_BYTES,
    Position,
    RecordScan,
    Segment,
    begin_segment,
    encode_header,
    encode_record,
    write_whole,
)
from spe.log.marks import Mark, Marks, read_mark
from spe.log.recovery import live_segments
from spe.runtime.env import AppendFile, Storage

#: Folders of the two copies.
COPIES: Final = ("0", "1")
#: A segment is left at the first commit past this size; only whole segments are cut off.
SEGMENT_BYTES: Final = 8 << 20
#: Kind, slice end, and of a commit the first record that it needs.
_HEAD: Final = struct.Struct("<BqQ")


class LogKind(IntEnum):
    """What a record holds of its slice."""

    OUTPUT = 1
    FOOTPRINTS = 2
    CLOSINGS = 3
    COMMIT = 4


class LogRecord(NamedTuple):
    """Attributes: ``time``: end of its slice; ``needs``: of a commit, the first record that a reader needs; else 0."""

    sequence: int
    kind: LogKind
    time: int
    needs: int
    payload: bytes


class Commit(NamedTuple):
    """Attributes: ``time``: slice end; ``first``, ``last``: records of its slice, the commit itself being the last;
    ``needs``: the first record that a reader of it needs.
    """

    time: int
    first: int
    last: int
    needs: int


class _Copy:
    """One of the two: its marks, and the file of the segment being written."""

    def __init__(self, storage: Storage, folder: PurePosixPath) -> None:
        self.folder = folder
        self.marks = Marks(storage, folder)
        self.file: AppendFile | None = None
        self.fault: OSError | LogError | None = None
        self.synced = 0

    def fails(self, error: OSError | LogError) -> None:
        """Written no more until it is restored: a sync that was refused is never tried again."""
        self.fault = error
        self.leave()

    def leave(self) -> None:
        """Closes the file of its segment."""
        if self.file is not None:
            self.file.close()
        self.file = None


class CheckpointLog:
    """The one writer of a checkpoint log.  Made by :meth:`open`.

    Attributes:
      commits: of the slices that the log holds, oldest first.
      last_sequence: number of the newest record.
      faults: why a copy is no longer written, by its folder.
    """

    def __init__(self, storage: Storage, folder: PurePosixPath, segment_bytes: int) -> None:
        self._storage = storage
        self._folder = folder
        self._segment_bytes = segment_bytes
        self._epoch = 0
        self._segments: list[Segment] = []
        self._copies: list[_Copy] = []
        self._begins = True
        self._busy = False
        self._restoring = False
        self.commits: list[Commit] = []
        self.last_sequence = 0

    @classmethod
    async def open(
        cls, storage: Storage, folder: PurePosixPath, *, segment_bytes: int = SEGMENT_BYTES
    ) -> CheckpointLog:
        """Takes the lock, reads every record, drops what follows the last commit and makes both copies whole.

        Raises:
          LogError: another process writes this log, or neither copy can be written.
          LogCorrupt: what both held is damaged or missing in both.
        """
        storage.lock(folder / "lock")
        log = cls(storage, folder, segment_bytes)
        try:
            await log._recover()
        except OSError as error:
            raise LogError(f"checkpoint log {folder}: cannot be opened: {error}") from error
        return log

    async def _recover(self) -> None:
        folders = [self._folder / name for name in COPIES]
        marks = [m for m in (read_mark(self._storage, f) for f in folders) if m is not None]
        known = min((m.sequence for m in marks), default=0)
        self._epoch = max((m.epoch for m in marks), default=0) + 1
        self._segments = live_segments(sorted({n for f in folders for n in self._storage.list(f)}))
        if self._segments and not marks:
            raise LogCorrupt(f"{self._folder}: there are segments, but no readable synced mark")
        if known and not self._segments:
            raise LogCorrupt(f"{self._folder}: all segments are gone; records up to {known} were acknowledged")
        end = first = self._segments[0].first if self._segments else 1
        for index, segment in enumerate(self._segments):
            if segment.first != end:
                break
            for record, _ in self._merged(index, self._copies_of(segment)):
                end = record.sequence + 1
                if record.kind == LogKind.COMMIT:
                    self.commits.append(Commit(record.time, first, record.sequence, record.needs))
                    first = end
            await trio.lowlevel.checkpoint()  # a long log must not block the event loop
        self.last_sequence = first - 1
        if self.last_sequence < known:
            raise LogCorrupt(
                f"{self._folder}: record {end} is damaged or missing in both copies; up to {known} were acknowledged"
            )
        if self.commits and (needs := self.commits[-1].needs) < self._segments[0].first:
            raise LogCorrupt(f"{self._folder}: begins with record {self._segments[0].first}; record {needs} is needed")
        self._segments = [s for s in self._segments if s.first <= self.last_sequence]
        self._copies = [_Copy(self._storage, folder) for folder in folders]
        for copy in self._copies:
            await self._make_whole(copy)
        self._check_one_left()

    def _copies_of(self, segment: Segment) -> list[bytes]:
        paths = [self._folder / name / segment.name for name in COPIES]
        found = []
        for path in paths:
            try:
                found.append(self._storage.read(path) if self._storage.exists(path) else b"")
            except OSError:  # a block that cannot be read: the other copy has it
                found.append(b"")
        return found

    def _merged(self, index: int, copies: list[bytes]) -> Iterator[tuple[LogRecord, bytes]]:
        """The records of a segment, each from a copy in which it is whole, with all its bytes."""
        segment = self._segments[index]
        later = self._segments[index + 1 :]
        at = Position(segment.first, segment.first, HEADER_BYTES)
        while not later or at.sequence < later[0].first:
            for data in copies:
                scan = RecordScan(memoryview(data)[at.offset :], at)
                record = next(scan, None)
                if record is not None:
                    break
            else:
                return
            kind, time, needs = _HEAD.unpack_from(record.body)
            whole = data[at.offset : scan.next.offset]
            yield LogRecord(at.sequence, LogKind(kind), time, needs, record.body[_HEAD.size :]), whole
            at = scan.next

    async def _make_whole(self, copy: _Copy) -> None:
        """Brings a copy to all records up to the last commit, and syncs them, also those of a sync that failed."""
        try:
            for index, segment in enumerate(self._segments):
                copies = self._copies_of(segment)
                whole = [b for r, b in self._merged(index, copies) if r.sequence <= self.last_sequence]
                data = b"".join([encode_header(segment), *whole])
                path = copy.folder / segment.name
                unsynced = segment.first + len(whole) - 1 > copy.marks.last.sequence
                if unsynced or copies[self._copies.index(copy)] != data:
                    await self._storage.write_atomic(path, data)
            await copy.marks.write(Mark(self._epoch, self.last_sequence))
            for name in self._storage.list(copy.folder):
                found = Segment.parse(name)
                if found is not None and found not in self._segments:
                    self._storage.remove(copy.folder / name)
        except (OSError, LogError) as error:
            copy.fails(error)
            return
        copy.fault, copy.synced = None, self.last_sequence

    @property
    def faults(self) -> dict[str, str]:
        return {str(c.folder): str(c.fault) for c in self._copies if c.fault is not None}

    @property
    def held_by_both(self) -> Commit | None:
        """The newest commit that is synced in both copies: no later one counts for an acknowledgement."""
        synced = min(c.synced for c in self._copies)
        index = bisect_right(self.commits, synced, key=lambda c: c.last)
        return self.commits[index - 1] if index else None

    def at(self, time: int) -> Commit | None:
        """The newest commit whose slice end is at or before ``time``."""
        index = bisect_right(self.commits, time, key=lambda c: c.time)
        return self.commits[index - 1] if index else None

    def write(self, time: int, records: list[tuple[LogKind, bytes]], commit: bytes, needs: int | None = None) -> Commit:
        """Writes a slice: its records, and last the commit.  Nothing counts before a later :meth:`sync`.

        Args:
          time: its end, after that of the slice before.
          needs: the first record that a reader of this commit needs; None: the first of this slice.

        Raises:
          LogFull: neither copy has room; the slice is not in the log.
          LogError: no copy can be written.
        """
        if self._restoring:  # the copies would no longer be equal
            raise RuntimeError("written while a copy is restored")
        if self.commits and time <= self.commits[-1].time:
            raise LogError(f"checkpoint log {self._folder}: slice {time} after slice {self.commits[-1].time}")
        self._check_one_left()
        first = self.last_sequence + 1
        needs = first if needs is None else needs
        bodies = [_HEAD.pack(kind, time, 0) + payload for kind, payload in records]
        bodies.append(_HEAD.pack(LogKind.COMMIT, time, needs) + commit)
        data = b"".join(encode_record(first + i, body) for i, body in enumerate(bodies))
        segment = Segment(first, self._epoch) if self._begins else self._segments[-1]
        refused: OSError | None = None
        for copy in (c for c in self._copies if c.fault is None):
            try:
                if copy.file is None:
                    copy.file = begin_segment(self._storage, copy.folder, segment)
                write_whole(copy.file, data)
            except OSError as error:
                copy.fails(refused := error)
        if all(c.fault is not None for c in self._copies):
            raise LogFull(f"checkpoint log {self._folder}: the disk refused slice {time}: {refused}") from refused
        if self._begins:
            self._segments.append(segment)
            self._begins = False
        self.commits.append(Commit(time, first, first + len(bodies) - 1, needs))
        self.last_sequence = self.commits[-1].last
        return self.commits[-1]

    async def sync(self) -> Commit | None:
        """Syncs what was written before the call; returns the newest commit that both copies hold.

        Raises:
          LogError: no copy is left.
        """
        self._enter()
        try:
            target = self.last_sequence
            for copy in self._copies:
                if copy.fault is None and copy.file is not None and copy.synced < target:
                    try:
                        await copy.file.sync()
                        await copy.marks.write(Mark(self._epoch, target))
                        copy.synced = target
                    except (OSError, LogError) as error:
                        copy.fails(error)
            self._check_one_left()
            files = [c.file for c in self._copies if c.file is not None]
            if self.last_sequence == target and any(f.size() >= self._segment_bytes for f in files):
                self._leave_segment()
        finally:
            self._busy = False
        return self.held_by_both

    async def restore(self) -> None:
        """Makes a copy whole again that failed, from the other one; nothing is written meanwhile.

        Raises:
          LogError: none can be made whole.
          LogCorrupt: what was written is damaged in both.
        """
        if any(copy.fault is None for copy in self._copies):
            await self.sync()
        self._enter()
        self._restoring = True
        try:
            deque(self.read(self._segments[0].first if self._segments else 1), 0)  # before anything is replaced
            self._leave_segment()
            for copy in self._copies:
                if copy.fault is not None:
                    await self._make_whole(copy)
            self._check_one_left()
        finally:
            self._busy = self._restoring = False

    def read(self, first: int) -> Iterator[LogRecord]:
        """Records from ``first`` on.

        Raises:
          LogCorrupt: one has been damaged in both copies, or is not in the log.
        """
        index = max(bisect_right(self._segments, first, key=lambda s: s.first) - 1, 0)
        expected = first
        for at in range(index, len(self._segments)):
            for record, _ in self._merged(at, self._copies_of(self._segments[at])):
                if record.sequence == expected <= self.last_sequence:
                    yield record
                    expected += 1
        if expected <= self.last_sequence:
            raise LogCorrupt(f"{self._folder}: record {expected} is damaged or missing in both copies")

    def cut(self) -> None:
        """Forgets whole segments below what the commit that both copies hold needs.  Raises OSError; what is left over
        goes next time.
        """
        held = self.held_by_both
        while held is not None and len(self._segments) > 1 and self._segments[1].first <= held.needs:
            segment = self._segments[0]
            for copy in self._copies:
                if self._storage.exists(copy.folder / segment.name):
                    self._storage.remove(copy.folder / segment.name)
            self._segments.pop(0)
        start = self._segments[0].first if self._segments else 1
        self.commits = self.commits[bisect_right(self.commits, start - 1, key=lambda c: c.last) :]

    def close(self) -> None:
        """Closes the files.  What was not synced is left to the operating system."""
        for copy in self._copies:
            copy.leave()
            copy.marks.close()

    def _leave_segment(self) -> None:
        self._begins = True
        for copy in self._copies:
            copy.leave()

    def _enter(self) -> None:
        if self._busy:
            raise RuntimeError("one sync at a time")
        self._busy = True

    def _check_one_left(self) -> None:
        if all(copy.fault is not None for copy in self._copies):
            raise LogError(f"checkpoint log {self._folder}: no copy can be written: {self.faults}")
