"""Readers of source logs and recordings that continue where a step ended, and the portion that each step takes.

Only the times, ids and boundaries of elements are read here.  Spark reads the values.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict

from consistency.proof.follow.prefix import Prefix
from consistency.proof.follow.track import ChannelTrack, Heard, Wrong
from consistency.proof.recorded.records import KINDS, Stretch, Table, scan_stretch
from consistency.proof.recorded.table_source import stretches
from spe.errors import LogCorrupt
from spe.log.format import HEADER_BYTES, RECORD_HEADER_BYTES, Record
from spe.log.recording import decode_recorded
from spe.log.source_log import check_record, decode_source_batch, decode_source_state
from spe.stream.batch import Batch, Boundary, Undo
from spe.stream.names import Kind
from spe.stream.strings import StringPool
from spe.stream.times import BEFORE_TIME


class RecordPlace(BaseModel):
    """Position at which a record begins, or the next one will."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    sequence: int = 1
    segment: int = 1
    offset: int = HEADER_BYTES


class LogProgress(BaseModel):
    """Position of the proof in a source's log.

    Attributes:
      start: first record with rows that are still needed.
      done: everything before was read.
      start_id, last_id: of the last tuple before each of these.
      bound_us: lower bound of the times of tuples from ``done`` on.
      peak_us, promise_us: for the times by rule S1 (``consistency.proof.recorded.stamps``).
      prefix: digests of the part read.
    """

    model_config = ConfigDict(extra="forbid")
    start: RecordPlace = RecordPlace()
    done: RecordPlace = RecordPlace()
    start_id: int = 0
    last_id: int = 0
    bound_us: int = BEFORE_TIME
    peak_us: int = BEFORE_TIME
    promise_us: int = BEFORE_TIME
    prefix: Prefix = Prefix()


class ChannelProgress(BaseModel):
    """Position of the proof in the recording of a channel; as :class:`LogProgress`."""

    model_config = ConfigDict(extra="forbid")
    start: RecordPlace = RecordPlace()
    done: RecordPlace = RecordPlace()
    track: ChannelTrack = ChannelTrack()
    prefix: Prefix = Prefix()


class _Head(NamedTuple):
    """A record: its place and the next one's, the times of its tuples, and the tuple time reached behind it."""

    at: RecordPlace
    next: RecordPlace
    first_us: int | None
    last_us: int | None
    reach_us: int
    last_id: int = 0
    heard: Heard | None = None


class _Reader(ABC):
    """Reads the records of one log from ``start`` on, in order."""

    def __init__(self, table: Table, partition: int, start: RecordPlace, done: RecordPlace) -> None:
        self.table = table
        self.partition = partition
        self.folder = Path(table.folders[partition])
        self.heads: list[_Head] = []
        #: Bytes of records that no earlier step read.
        self.new_bytes = 0
        self._done = done
        self._pool = StringPool()
        self._records = self._behind(start)
        self._next: _Head | None = None

    def _behind(self, start: RecordPlace) -> Iterator[Record]:
        for stretch in between(self.table, self.partition, start, None):
            yield from scan_stretch(self.folder, stretch)

    @abstractmethod
    def _head(self, record: Record) -> _Head: ...

    def again(self) -> None:
        """Reads the records between ``start`` and ``done`` again, which an earlier step read."""
        while (self.heads[-1].next if self.heads else None) != self._done and self._upto_done():
            pass

    def _upto_done(self) -> bool:
        record = next(self._records, None)
        if record is None:
            return False
        if record.position.sequence >= self._done.sequence:
            self._next = self._head(record)
            return False
        self.heads.append(self._head(record))
        return True

    def pull(self) -> bool:
        """Reads one more record; returns False if there is none yet."""
        if self._next is None:
            record = next(self._records, None)
            if record is None:
                return False
            self._next = self._head(record)
        head, self._next = self._next, None
        self.heads.append(head)
        self.new_bytes += head.next.offset - head.at.offset
        return True

    def new(self) -> list[_Head]:
        """Returns the records that no earlier step read."""
        return [h for h in self.heads if h.at.sequence >= self._done.sequence]

    def _place(self, record: Record) -> tuple[RecordPlace, RecordPlace]:
        sequence, segment, offset = record.position
        end = offset + RECORD_HEADER_BYTES + len(record.body)
        at = RecordPlace(sequence=sequence, segment=segment, offset=offset)
        return at, RecordPlace(sequence=sequence + 1, segment=segment, offset=end)

    def ends(self, heads: list[_Head]) -> list[tuple[str, int, int]]:
        """Returns (file, bytes, tuple time) of each segment of some records, for their digests."""
        names = {s.segment.first: s.segment.name for s in stretches(self.table, self.partition, None)}
        last: dict[int, tuple[int, int]] = {}
        for head in heads:
            last[head.at.segment] = head.next.offset, head.reach_us
        return [(names[first], *last[first]) for first in sorted(last)]


class LogOfSource(_Reader):
    """Reads a source's log."""

    def __init__(self, table: Table, known: LogProgress) -> None:
        super().__init__(table, 0, known.start, known.done)
        self._last_id = known.start_id
        self._bound_us = known.bound_us if known.start == known.done else BEFORE_TIME
        self.known = known
        self.again()

    @property
    def bound_us(self) -> int:
        """Tuple time up to which the part read tells the truth."""
        return max(self.known.bound_us, self.heads[-1].reach_us if self.heads else BEFORE_TIME)

    def _head(self, record: Record) -> _Head:
        state = decode_source_state(record.body)
        batch = decode_source_batch(record.body, self.table.schema, self._pool)
        at, behind = self._place(record)
        try:
            check_record(self._last_id, state, batch)
        except LogCorrupt as error:
            raise LogCorrupt(f"{self.folder}: record {at.sequence}: {error}") from None
        self._last_id, self._bound_us = state.last_id, max(self._bound_us, state.bound_us)
        first, last = _range(batch)
        return _Head(at, behind, first, last, self._bound_us, state.last_id)

    def taken(self, until_us: int, lookback_us: int) -> LogTaken:
        """Returns the portion of a step up to ``until_us``.

        Args:
          lookback_us: time before their ranges that later steps need.

        Raises:
          SpeError: a part read before was altered.
        """
        known, new = self.known, []
        if known.bound_us < until_us:
            for head in self.new():
                new.append(head)
                if head.reach_us >= until_us:
                    break
        done = new[-1].next if new else known.done
        heads = [h for h in self.heads if h.at.sequence < done.sequence]
        least_us = until_us - lookback_us
        needed = next((n for n, h in enumerate(heads) if h.last_us is not None and h.last_us >= least_us), len(heads))
        start = heads[needed].at if needed < len(heads) else done
        start_id = heads[needed - 1].last_id if needed else known.start_id
        progress = known.model_copy(
            update={
                "start": start,
                "done": done,
                "start_id": start_id,
                "last_id": new[-1].last_id if new else known.last_id,
                "bound_us": new[-1].reach_us if new else known.bound_us,
                "prefix": known.prefix.read(self.folder, self.ends(new)),
            }
        )
        return LogTaken(
            progress,
            between(self.table, 0, known.start, done),
            between(self.table, 0, known.done, done),
            sum(h.next.offset - h.at.offset for h in new),
            min((h.first_us for h in new if h.first_us is not None), default=None),
        )


class RecordingOfChannel(_Reader):
    """Reads the recording of a channel."""

    def __init__(self, table: Table, partition: int, known: ChannelProgress, *, sorted_: bool) -> None:
        super().__init__(table, partition, known.start, known.done)
        self.known = known
        self._sorted = sorted_
        self._reach_us = BEFORE_TIME
        self.again()

    @property
    def frontier_us(self) -> int:
        """Tuple time up to which the part read is final at the client."""
        return max(self.known.track.frontier_us, self.heads[-1].reach_us if self.heads else BEFORE_TIME)

    def read_until(self, until_us: int) -> None:
        """Reads until everything before ``until_us`` is final at the client, or to the end of the recording."""
        while self.frontier_us < until_us and self.pull():
            pass

    def _head(self, record: Record) -> _Head:
        at, behind = self._place(record)
        _, arrived_us, element = decode_recorded(record, self.table.schema, self._pool, PurePosixPath(self.folder))
        first = last = None
        if isinstance(element, Batch):
            low, high = _range(element)
            ids = element.row_ids()
            heard = Heard(arrived_us, KINDS[element.kind])
            if low is not None and high is not None:
                heard = Heard(arrived_us, KINDS[element.kind], int(ids.min()), int(ids.max()), len(element), low, high)
                first, last = (low, high) if element.kind is Kind.STABLE else (None, None)
        elif isinstance(element, Boundary):
            heard = Heard(arrived_us, KINDS[2 + element.kind], 0, element.upto_id, 0, element.time, element.time)
            if element.kind is Kind.STABLE:
                self._reach_us = max(self._reach_us, element.time)
        elif isinstance(element, Undo):
            heard = Heard(arrived_us, "undo", 0, element.upto_id)
        else:
            heard = Heard(arrived_us, "rec_done")
        return _Head(at, behind, first, last, self._reach_us, 0, heard)

    def taken(self, until_us: int, *, all_: bool = False) -> ChannelTaken:
        """Returns the portion of a step up to ``until_us``, and the position after it.

        Args:
          all_: the run is over: everything that was read counts.

        Raises:
          SpeError: a part read before was altered.
        """
        known, new = self.known, []
        track, wrong, behind, gap = known.track.model_copy(), list[Wrong](), False, False
        if known.track.frontier_us < until_us or all_:
            for head in self.new():
                new.append(head)
                assert head.heard is not None
                stable = head.heard.kind == KINDS[0] and head.heard.tuples > 0
                behind |= stable and head.heard.first_id <= track.passed_id
                gap |= stable and head.heard.first_id > track.passed_id + 1
                wrong += track.hear(head.heard)
                if track.frontier_us >= until_us and not all_:
                    break
        done = new[-1].next if new else known.done
        # A tuple beyond the final part has no place in a sorted stream: it is judged at once.
        end = track.frontier_us if self._sorted else None
        later = (h for h in self.heads if h.at.sequence < done.sequence and _is_needed(h, until_us, end))
        start = next((h.at for h in later), done)
        progress = ChannelProgress(
            start=start, done=done, track=track, prefix=known.prefix.read(self.folder, self.ends(new))
        )
        return ChannelTaken(progress, between(self.table, self.partition, known.start, done), wrong, behind, gap)


class LogTaken(NamedTuple):
    """The portion of a source's log that a step takes.

    Attributes:
      known: position after the step.
      read: records, including those that an earlier step read; ``new``: without those.
      bytes, first_us: size and smallest tuple time of the new ones.
    """

    known: LogProgress
    read: list[Stretch]
    new: list[Stretch]
    bytes: int
    first_us: int | None


class ChannelTaken(NamedTuple):
    """The portion of a channel that a step takes.

    Attributes:
      known: position after the step.
      read: records, including those that an earlier step read.
      wrong: flaws that the elements alone show.
      behind: a stable tuple came after a larger one; ``gap``: ids were left out.
    """

    known: ChannelProgress
    read: list[Stretch]
    wrong: list[Wrong]
    behind: bool
    gap: bool


def _is_needed(head: _Head, until_us: int, end_us: int | None) -> bool:
    """Does a record have tuples that a later step judges?"""
    if head.first_us is None or head.last_us is None or head.last_us < until_us:
        return False
    return end_us is None or head.last_us < end_us or until_us <= head.first_us < end_us


def _range(batch: Batch | None) -> tuple[int | None, int | None]:
    if batch is None or not len(batch):
        return None, None
    return int(batch.rows.time.min()), int(batch.rows.time.max())


def between(table: Table, partition: int, start: RecordPlace, end: RecordPlace | None) -> list[Stretch]:
    """Returns the stretches of a log from one place to another; None: to its end."""
    parts = []
    for stretch in stretches(table, partition, start.sequence):
        if stretch.segment.first < start.segment or (end is not None and stretch.first >= end.sequence):
            continue
        first, offset = stretch.first, stretch.offset
        if stretch.segment.first == start.segment:
            first, offset = start.sequence, start.offset
        last = stretch.last
        if end is not None:
            least = [n for n in (last, stretch.following and stretch.following - 1) if n is not None]
            last = min([end.sequence - 1, *least])
        if last is None or last >= first:
            parts.append(
                Stretch(partition, stretch.segment, first, offset, last, stretch.following if end is None else None)
            )
    return parts
