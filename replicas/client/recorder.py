"""Records the changes that a client receives, with their times, per channel in a folder of append-only segments.

``spe.log.recording`` describes the format and reads it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import PurePosixPath
from typing import Final, NamedTuple

import numpy as np

from consistency.comparison import ChannelRows
from replicas.retention.holders import ClosedSegment
from spe.errors import LogFull
from spe.log.announced_settings import announced_folder, encode_announced
from spe.log.format import (
    FIRST_BYTES,
    HEADER_BYTES,
    Position,
    RecordScan,
    Segment,
    begin_segment,
    encode_record,
    write_whole,
)
from spe.log.log_start import KeptLog, repair_kept, write_kept
from spe.log.recording import (
    RECEIVED_BYTES,
    channel_folder,
    decode_recorded,
    encode_recorded,
    read_recorded,
    received_us,
    scan_segment,
)
from spe.log.recovery import kept_segments
from spe.runtime.disk_trouble import is_full
from spe.runtime.env import AppendFile, Storage
from spe.stream.batch import Batch, Boundary, Element, Rows, Undo, concat_rows
from spe.stream.change import Change
from spe.stream.ids import Channel
from spe.stream.names import Kind, StreamId
from spe.stream.schema import Schema
from spe.stream.strings import StringPool
from spe.stream.times import BEFORE_TIME
from spe.wire.messages.feeds import Announcement

#: A new segment begins when this size is exceeded; a reader holds one at a time.
SEGMENT_BYTES: Final = 16 << 20
#: Time between two syncs, which acknowledgements wait for.
SYNC_US: Final = 1_000_000


class SegmentWriter:
    """Appends records to a folder of segments.  One writer at a time.

    A segment is synced before the next one begins, provided that :meth:`sync` is called wherever it is due: then a
    power failure takes records from the end only.

    Args:
      folder: relative to the storage's root.

    Attributes:
      segments: segments of earlier sessions.
      sequence: number of the last record; set by the reader of the last session's end.
      kept: the beginning of the folder.

    Raises:
      LogError: another process records here.
      LogCorrupt: the first segment is gone.
    """

    def __init__(self, storage: Storage, folder: PurePosixPath, segment_bytes: int) -> None:
        self._storage = storage
        self.folder = self._folder = folder
        self._segment_bytes = segment_bytes
        self._file: AppendFile | None = None
        #: Files of earlier segments that are not synced yet.
        self._left: list[AppendFile] = []
        #: Records were written since the last sync.
        self._unsynced = False
        storage.lock(folder / "lock")
        self.kept, self.segments = kept_segments(storage, folder)
        for segment in [s for s in map(Segment.parse, storage.list(folder)) if s and s.first < self.kept.first]:
            storage.remove(folder / segment.name)  # a crash came between its release and its removal (E4)
        #: All segments, including the current one, and the known times of receipt of their first records.
        self._all = list(self.segments)
        self._begun: dict[int, int] = {}
        #: Bytes of finished segments, by their first record.
        self._sizes: dict[int, int] = {}
        self._epoch = self.segments[-1].epoch + 1 if self.segments else 1
        self.sequence = self.segments[-1].first - 1 if self.segments else 0
        if self.segments:  # records of a killed process may be in the page cache only
            self._left.append(storage.open(folder / self.segments[-1].name))

    def append(self, body: bytes) -> None:
        """Appends a record.

        Raises:
          LogFull: the disk is full; the record can be appended again later.
          OSError: the disk refused it permanently.
        """
        sequence = self.sequence + 1
        try:
            file = self._file if self._file is not None else self._begin(sequence)
            write_whole(file, encode_record(sequence, body))
        except OSError as error:
            if not is_full(error):
                raise
            raise LogFull(f"recording {self._folder}: the disk refused record {sequence}: {error}") from error
        self.sequence = sequence
        self._unsynced = True
        if file.size() >= self._segment_bytes:
            self._leave()

    @property
    def due(self) -> bool:
        """Whether a finished segment, or one of an earlier session, must be synced before the next record."""
        return bool(self._left)

    async def sync(self) -> None:
        """Makes everything appended safe.  Nothing may be appended during the call.  Raises OSError."""
        for file in self._left:
            await file.sync()
            file.close()
        self._left.clear()
        if self._file is not None and self._unsynced:
            await self._file.sync()
        self._unsynced = False

    def _leave(self) -> None:
        if self._file is not None:
            self._left.append(self._file)
            self._file = None

    def _begin(self, first: int) -> AppendFile:
        segment = Segment(first, self._epoch)
        file = begin_segment(self._storage, self._folder, segment)
        self._file = file
        # A segment of an earlier session without a whole record is replaced by the new one.
        self._all = [s for s in self._all if s.first < first] + [segment]
        self._sizes.pop(first, None)
        return file

    # --- retention (rules E1 to E4) ---

    @property
    def nbytes(self) -> int:
        """Bytes of all segments."""
        return sum(self._size(s) for s in self._all)

    def closed(self, now_us: int) -> list[ClosedSegment]:
        """Returns the finished and synced segments in order; their time is that of receipt, which never falls.

        Args:
          now_us: wall clock.
        """
        open_ = len(self._left) + (self._file is not None)
        settled = self._all[: len(self._all) - max(1, open_)]
        behind = self._all[1 : len(settled) + 1]
        # Where the clock was set back, later records are as old as earlier ones.
        until = accumulate((self._begun_us(next_, now_us) for next_ in behind), max)
        return [
            ClosedSegment(segment, self._size(segment), next_.first - 1, 0, until_us)
            for segment, next_, until_us in zip(settled, behind, until, strict=True)
        ]

    def leave_older(self, than_us: int) -> None:
        """Finishes the current segment, if its first record was received earlier than a time."""
        if self._file is not None and self._all and self._begun_us(self._all[-1], than_us) < than_us:
            self._leave()

    def contents(self, segment: Segment) -> bytes:
        """Returns all bytes of a segment."""
        return self._storage.read(self._folder / segment.name)

    async def release(self, beginning: KeptLog) -> None:
        """Deletes segments as ``SegmentedLog.release`` does.  Raises OSError."""
        await repair_kept(self._storage, self._folder)
        await write_kept(self._storage, self._folder, beginning)
        self.kept = beginning
        while self._all[0].first < beginning.first:
            self._storage.remove(self._folder / self._all[0].name)
            gone = self._all.pop(0).first
            self._begun.pop(gone, None)
            self._sizes.pop(gone, None)

    def _size(self, segment: Segment) -> int:
        if self._file is not None and segment == self._all[-1]:
            return self._file.size()
        if segment.first not in self._sizes:
            file = self._storage.open(self._folder / segment.name)
            try:
                self._sizes[segment.first] = file.size()
            finally:
                file.close()
        return self._sizes[segment.first]

    def _begun_us(self, segment: Segment, default_us: int) -> int:
        """Returns when the first record of a segment was received; ``default_us`` if it has none."""
        if (known := self._begun.get(segment.first)) is not None:
            return known
        file = self._storage.open(self._folder / segment.name)
        try:
            head = file.read(FIRST_BYTES, RECEIVED_BYTES)
        finally:
            file.close()
        if len(head) < RECEIVED_BYTES:
            return default_us
        self._begun[segment.first] = arrived_us = received_us(head)
        return arrived_us

    def close(self) -> None:
        self._leave()
        for file in self._left:
            file.close()
        self._left.clear()


class ChannelRecorder:
    """Appends one channel's changes.  One writer at a time.

    Opening reads the end of the last session to find its position.  If it ended with tentative tuples, an undo is
    recorded first: the process that held them is gone.

    Args:
      folder: folder of the channel, relative to the storage's root.

    Attributes:
      position: id of the last recorded stable tuple, of this session or an earlier one.
      frontier: largest recorded stable boundary.
      synced: every stable tuple up to this id survives a power failure.

    Raises:
      LogError: another process records here.
      LogCorrupt: an earlier segment is damaged.
    """

    def __init__(
        self,
        storage: Storage,
        folder: PurePosixPath,
        channel: Channel,
        schema: Schema,
        *,
        segment_bytes: int = SEGMENT_BYTES,
    ) -> None:
        self._storage = storage
        self.folder = self._folder = folder
        self._schema = schema
        #: The undo of the last session's tentative tuples, to be recorded first.
        self._withdrawn: Change | None = None
        self.channel = channel
        self.position = self.synced = 0
        self.frontier = BEFORE_TIME
        self.segments = SegmentWriter(storage, folder, segment_bytes)
        self._continue(self.segments.segments)

    def _continue(self, segments: Sequence[Segment]) -> None:
        """Reads segments backwards until the position of the earlier sessions is known."""
        last: tuple[int, Element] | None = None
        held: bool | None = None
        for segment in reversed(segments):
            records = list(scan_segment(self._storage, self._folder, segment))
            if last is None and records:
                self.segments.sequence = records[-1].position.sequence
            for record in reversed(records):
                _, arrived_us, element = decode_recorded(record, self._schema, StringPool(), self._folder)
                last = last or (arrived_us, element)
                self._follow(element)
                if isinstance(element, Batch | Undo) and held is None:
                    held = isinstance(element, Batch) and element.kind is Kind.TENTATIVE
                if held is not None and self.frontier > BEFORE_TIME:
                    break
            else:
                continue
            break
        self.position = max(self.position, self.segments.kept.last_id)
        if held and last is not None:
            self._withdrawn = Change(self.channel, Undo(self.position), last[0])

    def _follow(self, element: Element) -> None:
        """Advances position and frontier by a stable element."""
        if isinstance(element, Batch | Boundary) and element.kind is Kind.STABLE:
            self.position = max(self.position, element.upto_id)
            if isinstance(element, Boundary):
                self.frontier = max(self.frontier, element.time)

    def write(self, change: Change) -> None:
        """Appends a change.

        Raises:
          LogFull: the disk is full; earlier changes can be read, and this one can be written again later.
          OSError: the disk refused it permanently.
        """
        if (undo := self._withdrawn) is not None:
            self._write(undo)
            self._withdrawn = None
        self._write(change)

    def _write(self, change: Change) -> None:
        self.segments.append(encode_recorded(change.arrived_us, change.element, self._schema))
        self._follow(change.element)

    @property
    def due(self) -> bool:
        """Whether a finished segment, or one of an earlier session, must be synced before the next change."""
        return self.segments.due

    async def sync(self) -> None:
        """Makes everything recorded safe.  Nothing may be written during the call.  Raises OSError."""
        await self.segments.sync()
        self.synced = self.position

    def close(self) -> None:
        self.segments.close()


class Recorder:
    """Records every change of a client, one folder per channel below ``folder``, and announcements of nodes in another.

    Args:
      schemas: schemas of the recorded channels.

    Raises:
      as :class:`ChannelRecorder`.
    """

    def __init__(
        self,
        storage: Storage,
        folder: PurePosixPath,
        schemas: Mapping[Channel, Schema],
        *,
        segment_bytes: int = SEGMENT_BYTES,
    ) -> None:
        self._channels = {
            channel: ChannelRecorder(
                storage, channel_folder(folder, channel), channel, schema, segment_bytes=segment_bytes
            )
            for channel, schema in schemas.items()
        }
        self._announced = SegmentWriter(storage, announced_folder(folder), segment_bytes)
        for segment in self._announced.segments[-1:]:
            for record in scan_segment(storage, announced_folder(folder), segment):
                self._announced.sequence = record.position.sequence

    @property
    def _all(self) -> list[ChannelRecorder | SegmentWriter]:
        return [*self._channels.values(), self._announced]

    def folders(self) -> dict[PurePosixPath, Channel | None]:
        """Returns the channel of each folder; None: the folder of announcements."""
        return {recorder.folder: channel for channel, recorder in self._channels.items()} | {
            self._announced.folder: None
        }

    def writers(self) -> dict[PurePosixPath, SegmentWriter]:
        """Returns the writer of each folder."""
        return {recorder.folder: recorder.segments for recorder in self._channels.values()} | {
            self._announced.folder: self._announced
        }

    def announced(self, arrived_us: int, announcement: Announcement) -> None:
        """Appends an announcement of a node's X and waits.  Raises LogFull, OSError."""
        self._announced.append(encode_announced(arrived_us, announcement))

    def write(self, change: Change) -> None:
        """Appends a change.  Raises LogFull, OSError."""
        self._channels[change.channel].write(change)

    def position(self, channel: Channel) -> tuple[int, int]:
        """Returns (last recorded stable id, stable frontier), where a restarted client continues."""
        recorder = self._channels[channel]
        return recorder.position, recorder.frontier

    def synced(self, channel: Channel) -> int:
        """Returns the id up to which every stable tuple survives a power failure, and may be acknowledged."""
        return self._channels[channel].synced

    async def sync_due(self) -> None:
        """Syncs folders that are due before the next record.  Nothing may be written during the call.  Raises
        OSError.
        """
        for writer in self._all:
            if writer.due:
                await writer.sync()

    async def sync(self) -> None:
        """Makes everything recorded safe.  Nothing may be written during the call.  Raises OSError."""
        for writer in self._all:
            await writer.sync()

    def close(self) -> None:
        for writer in self._all:
            writer.close()


class Reached(NamedTuple):
    """The position of a channel's recording at the end of a segment.

    Attributes:
      last_id, until_us: id of the last stable tuple; the largest stable time.
      held: there are tentative tuples that were not undone.
    """

    last_id: int
    until_us: int
    held: bool = False

    def behind(self, data: bytes, segment: Segment, schema: Schema, folder: PurePosixPath) -> Reached:
        """Returns the position at the end of the next segment.

        Args:
          data: bytes of the whole segment.

        Raises:
          LogCorrupt: a record is not a change of this schema.
        """
        pool, (last_id, until_us, held) = StringPool(), self
        for record in RecordScan(memoryview(data)[HEADER_BYTES:], Position(segment.first, segment.first, HEADER_BYTES)):
            element = decode_recorded(record, schema, pool, folder).element
            if isinstance(element, Batch | Undo):
                held = isinstance(element, Batch) and element.kind is Kind.TENTATIVE
            if isinstance(element, Batch | Boundary) and element.kind is Kind.STABLE:
                last_id = max(last_id, element.upto_id)
                if isinstance(element, Boundary):
                    until_us = max(until_us, element.time)
                elif len(element):
                    until_us = max(until_us, element.rows.span()[2])
        return Reached(last_id, until_us, held)


def read_recording(
    storage: Storage, folder: PurePosixPath, schema: Schema, pool: StringPool | None = None
) -> Iterator[Change]:
    """Yields the changes of one channel, in order of arrival, as ``spe.log.recording.read_recorded``."""
    stream, _, partition = folder.name.rpartition(".")
    channel = Channel(StreamId(stream), int(partition))
    for _, arrived_us, element in read_recorded(storage, folder, schema, pool):
        yield Change(channel, element, arrived_us)


def stable_rows(changes: Iterable[Change], schema: Schema) -> ChannelRows:
    """Returns ids and rows of one channel's stable tuples as they came, repeated ones included, for the comparison."""
    batches = [
        c.element for c in changes if isinstance(c.element, Batch) and c.element.kind is Kind.STABLE and len(c.element)
    ]
    if not batches:
        return np.empty(0, np.int64), Rows.empty(schema)
    return np.concatenate([b.row_ids() for b in batches]), concat_rows([b.rows for b in batches])


def recorded_stable(
    storage: Storage, folder: PurePosixPath, schemas: Mapping[Channel, Schema]
) -> dict[Channel, ChannelRows]:
    """Returns the stable tuples of every channel of a client's folder, for ``compare``.  Raises LogCorrupt."""
    return {
        channel: stable_rows(read_recording(storage, channel_folder(folder, channel), schema), schema)
        for channel, schema in schemas.items()
    }
