"""Reads a checkpoint log without writing: on a full or failing disk, or while another process writes it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import PurePosixPath
from typing import Final, TypeVar

import trio

from replicas.checkpoint.log_records import Commit, Copies, LogRecord
from spe.errors import LogCorrupt
from spe.log.format import Segment, check_version
from spe.log.marks import Mark, read_mark
from spe.log.recovery import live_segments
from spe.runtime.env import Compute, Storage

T = TypeVar("T")
#: Folders of the two copies.
COPIES: Final = ("0", "1")


class LogReader:
    """The contents of a log at opening.  Takes no lock, so a writer may be active, and may cut off a segment.

    Attributes:
      commits: commits of the slices in the log, oldest first.
      last_sequence: number of the newest record.
    """

    def __init__(self, storage: Storage, folder: PurePosixPath, compute: Compute | None) -> None:
        self._storage = storage
        self._folder = folder
        self._compute = compute
        self._segments: list[Segment] = []
        #: Newest mark of each copy; None: it has none, or none that can be read.
        self._marks: list[Mark | None] = [None, None]
        #: Damaged segments of each copy.
        self._damaged: list[set[Segment]] = [set(), set()]
        self._readings: list[int] = []
        #: Bytes of each segment, in one copy.
        self._bytes: dict[Segment, int] = {}
        self.commits: list[Commit] = []
        self.last_sequence = 0

    @classmethod
    async def open_to_read(cls, storage: Storage, folder: PurePosixPath, compute: Compute | None = None) -> LogReader:
        """Reads each file once, a segment at a time.

        Args:
          compute: runs the reading; None: in this task.

        Raises:
          LogCorrupt: a record is damaged or missing in both copies.
        """
        log = LogReader(storage, folder, compute)
        await log._scan()
        return log

    async def _run(self, function: Callable[[], T]) -> T:
        """Runs a function off the event loop; other tasks run between two calls."""
        if self._compute is not None:
            return await self._compute.run(function)
        await trio.lowlevel.checkpoint()
        return function()

    async def _scan(self) -> None:
        await self._run(self._find)
        marks = [m for m in self._marks if m is not None]
        known = min((m.sequence for m in marks), default=0)
        if self._segments and not marks:
            raise LogCorrupt(f"{self._folder}: there are segments, but no readable synced mark")
        if known and not self._segments:
            raise LogCorrupt(f"{self._folder}: all segments are gone; records up to {known} were acknowledged")
        end = self._segments[0].first if self._segments else 1
        for index, segment in enumerate(self._segments):
            if segment.first != end:
                break
            commits, damaged, self._bytes[segment] = await self._run(partial(self._scan_segment, index))
            self.commits += commits
            end = commits[-1].last + 1 if commits else end
            for copy in damaged:
                self._damaged[copy].add(segment)
        self.last_sequence = end - 1
        if self.last_sequence < known:
            raise LogCorrupt(
                f"{self._folder}: record {self._damaged_from(end)} is damaged or missing in both copies; "
                f"up to {known} were acknowledged"
            )
        if self.commits and (needs := self.commits[-1].needs) < self._segments[0].first:
            raise LogCorrupt(f"{self._folder}: begins with record {self._segments[0].first}; record {needs} is needed")
        self._segments = [s for s in self._segments if s.first <= self.last_sequence]

    def _find(self) -> None:
        names: set[str] = set()
        for copy in range(len(COPIES)):
            folder = self._copy_folder(copy)
            try:
                names |= set(self._storage.list(folder))
                self._marks[copy] = read_mark(self._storage, folder)
            except OSError:  # the other copy may be readable
                continue
        self._segments = live_segments(sorted(names))

    @property
    def kept_bytes(self) -> int:
        """Bytes of one copy on disk."""
        return sum(self._bytes[segment] for segment in self._segments)

    def _scan_segment(self, index: int) -> tuple[list[Commit], list[int], int]:
        """Returns a segment's commits, the copies that differ from its content up to the last of them, and its
        bytes.
        """
        copies = self._copies(index)
        data, _, commits = copies.content()
        return commits, [copy for copy in range(len(COPIES)) if not copies.holds(copy, data)], len(data)

    def _damaged_from(self, end: int) -> int:
        """Returns the first record from ``end`` on that is whole in neither copy: the whole ones before have no
        commit.
        """
        for index, segment in enumerate(self._segments):
            for sequence, *_ in self._copies(index).places() if segment.first <= end else ():
                end = max(end, sequence + 1)
        return end

    def _copies(self, index: int, last: int | None = None) -> Copies:
        """Returns the copies of a segment.

        Args:
          last: its last record, if known.
        """
        later = self._segments[index + 1 : index + 2]
        before = last + 1 if last is not None else later[0].first if later else None
        segment = self._segments[index]
        return Copies(segment, before, partial(self._read_copy, segment))

    def _read_copy(self, segment: Segment, copy: int) -> bytes:
        path = self._copy_folder(copy) / segment.name
        try:
            data = self._storage.read(path) if self._storage.exists(path) else b""
        except OSError:  # an unreadable block: the other copy has it
            return b""
        check_version(data, path)
        return data

    def _copy_folder(self, copy: int) -> PurePosixPath:
        return self._folder / COPIES[copy]

    def at(self, time: int) -> Commit | None:
        """Returns the newest commit whose slice end is at or before ``time``."""
        index = bisect_right(self.commits, time, key=lambda c: c.time)
        return self.commits[index - 1] if index else None

    def read(self, first: int) -> Iterator[LogRecord]:
        """Yields the records from ``first`` on; :meth:`reading` is for long reads.

        Raises:
          LogCorrupt: a record is damaged in both copies, or is not in the log.
        """
        with self.reading(first) as portions:
            for portion in portions:
                yield from portion

    def reading(self, first: int) -> AbstractContextManager[Iterator[list[LogRecord]]]:
        """Opens the records from ``first`` to the current newest, a segment at a time.  The iterator may be used in a
        thread while the log is written; the records are not cut off before the block ends.

        Raises:
          LogCorrupt: (from the iterator) a record is damaged in both copies, or is not in the log.
        """
        return self._reading(first)

    @contextmanager
    def _reading(self, first: int) -> Iterator[Iterator[list[LogRecord]]]:
        self._readings.append(first)
        try:
            index = max(bisect_right(self._segments, first, key=lambda s: s.first) - 1, 0)
            copies = [self._copies(at, self._last_of(at)) for at in range(index, len(self._segments))]
            yield self._portions(copies, first, self.last_sequence)
        finally:
            self._readings.remove(first)

    def _portions(self, copies: list[Copies], first: int, last: int) -> Iterator[list[LogRecord]]:
        expected = first
        while copies:
            segment_copies = copies.pop(0)  # it holds a segment's bytes
            records = [r for r in segment_copies.records() if first <= r.sequence <= last]
            if records and records[0].sequence != expected:
                break
            expected += len(records)
            if records:  # nothing is readable where both copies are damaged
                yield records
        if expected <= last:
            raise LogCorrupt(f"{self._folder}: record {expected} is damaged or missing in both copies")

    async def _mended(self, index: int, copy: int, *, sure: bool) -> bytes | None:
        """Returns the correct content of a copy of a segment; None: the copy is correct.

        Args:
          sure: the copy is known to be damaged, whatever it looks like.

        Raises:
          LogCorrupt: a record is damaged in both copies.
        """
        wanted = self._last_of(index)
        copies = self._copies(index, wanted)

        def compared() -> tuple[bytes, int, bool]:
            data, last, _ = copies.content(wanted)
            return data, last, not sure and copies.holds(copy, data)

        data, last, good = await self._run(compared)
        if last < wanted:
            raise LogCorrupt(f"{self._folder}: record {last + 1} is damaged or missing in both copies")
        return None if good else data

    def _last_of(self, index: int) -> int:
        """Returns the last record of a segment."""
        return self._segments[index + 1].first - 1 if index + 1 < len(self._segments) else self.last_sequence
