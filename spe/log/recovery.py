"""Reads the segments of a log and compares them with its synced mark: acknowledged, tail, or damaged."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath

from spe.errors import LogCorrupt
from spe.log.format import HEADER_BYTES, Position, Record, RecordScan, Segment, check_version, header_fault
from spe.log.log_start import KeptLog, read_kept
from spe.log.marks import Mark, read_mark
from spe.runtime.env import Storage


def live_segments(names: list[str]) -> list[Segment]:
    """The segments that make up the log, in order.

    A newer writer begins a segment at the sequence number at which it takes over; later records of an older writer are
    stale, even if a power failure undid their removal.
    """
    live: list[Segment] = []
    for segment in sorted(s for s in map(Segment.parse, names) if s is not None):
        if live and live[-1].epoch > segment.epoch:
            continue
        if live and live[-1].first == segment.first:
            live.pop()
        live.append(segment)
    return live


def kept_segments(storage: Storage, folder: PurePosixPath) -> tuple[KeptLog, list[Segment]]:
    """Returns the start of a log and its live segments; its writer may be deleting the oldest (E4).

    Raises:
      LogCorrupt: the first segment is gone.
    """
    start = read_kept(storage, folder)
    while True:
        segments = live_segments(storage.list(folder))
        if start == (start := read_kept(storage, folder)):
            break
    segments = [s for s in segments if s.first >= start.first]
    if segments and segments[0].first != start.first:
        raise LogCorrupt(f"{folder}: the first segment is gone; the log begins with record {segments[0].first}")
    return start, segments


class Recovery:
    """Reads a log once and checks it.

    Damage at or before the mark is LogCorrupt.  Records beyond it were never acknowledged: they may be torn, with any
    of their blocks missing, and end at the first record that is not whole.

    Attributes:
      mark: the newest mark; (0, 0) for a log that does not exist yet.
      kept: the start of the log.
      segments: live segments from there on, in order.
      sizes: bytes of each segment that was read, by its first record.
      tail: after :meth:`acknowledged` is exhausted, the whole records beyond the mark.
    """

    def __init__(self, storage: Storage, folder: PurePosixPath) -> None:
        self._storage = storage
        self._folder = folder
        mark = read_mark(storage, folder)
        self.mark = mark if mark is not None else Mark(0, 0)
        self.sizes: dict[int, int] = {}
        self.tail: list[Record] = []
        try:
            self.kept, self.segments = kept_segments(storage, folder)
        except LogCorrupt as error:
            if mark is None:
                raise self._no_mark() from None
            raise LogCorrupt(f"{error}; {self._acknowledged_text()}") from None
        if mark is None and self.segments:  # a log has a mark before it has a segment
            raise self._no_mark()
        if self.mark.sequence and not self.segments:
            raise LogCorrupt(f"{folder}: the first segment is gone; {self._acknowledged_text()}")

    def _no_mark(self) -> LogCorrupt:
        return LogCorrupt(f"{self._folder}: there are segments, but no readable synced mark (mark.0, mark.1)")

    def acknowledged(self, index: int) -> Iterator[Record]:
        """Reads the records of segment ``index`` up to the mark.  To be called for each index in turn.

        Raises:
          LogCorrupt: a record is damaged or missing; the error names segment and offset.
        """
        segment, mark = self.segments[index], self.mark.sequence
        last = self.segments[index + 1].first - 1 if index + 1 < len(self.segments) else None
        try:
            data = self._storage.read(self._folder / segment.name)
        except FileNotFoundError:
            raise LogCorrupt(f"{self._folder / segment.name} was deleted while the log was read") from None
        check_version(data, self._folder / segment.name)
        self.sizes[segment.first] = len(data)
        scan = RecordScan(memoryview(data)[HEADER_BYTES:], Position(segment.first, segment.first, HEADER_BYTES))
        fault = header_fault(data, segment)
        if not fault:
            for record in scan:
                sequence = record.position.sequence
                if last is not None and sequence > last:
                    return
                if sequence <= mark:
                    yield record
                elif sequence == mark + len(self.tail) + 1:
                    self.tail.append(record)
            fault = scan.fault or "the segment ends"
        if scan.next.sequence <= (mark if last is None else min(mark, last)):
            offset = scan.next.offset if len(data) >= HEADER_BYTES else 0
            raise LogCorrupt(f"{self._folder / segment.name} at offset {offset}: {fault}; {self._acknowledged_text()}")

    def _acknowledged_text(self) -> str:
        return f"records up to {self.mark.sequence} were acknowledged"


def read_log(storage: Storage, folder: PurePosixPath) -> Iterator[Record]:
    """Reads the records acknowledged at the time of the call, in order.  Takes no lock, so a writer may be active.

    Raises:
      LogCorrupt: one of these is damaged or missing; the error names segment and offset.
    """
    recovery = Recovery(storage, folder)
    for index, segment in enumerate(recovery.segments):
        if segment.first <= recovery.mark.sequence:
            yield from recovery.acknowledged(index)
