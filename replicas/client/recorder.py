"""What a client received and when, kept for the report: per channel a folder of segments, appended to only.

``spe.log.recording`` says what lies there and reads it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Final

import numpy as np

from replicas.comparison import ChannelRows
from spe.errors import LogFull
from spe.log.announced import announced_folder, encode_announced
from spe.log.format import Segment, begin_segment, encode_record, write_whole
from spe.log.recording import channel_folder, decode_recorded, encode_recorded, read_recorded, scan_segment
from spe.log.recovery import live_segments
from spe.runtime.disk_trouble import is_full
from spe.runtime.env import AppendFile, Storage
from spe.stream.batch import Batch, Boundary, Element, Rows, Undo, concat_rows
from spe.stream.change import Change
from spe.stream.ids import Channel
from spe.stream.names import Kind, StreamId
from spe.stream.schema import Schema
from spe.stream.strings import StringPool
from spe.stream.times import BEFORE_TIME
from spe.wire.messages import Announcement

#: A segment is left when it has grown past this; a reader holds one at a time.
SEGMENT_BYTES: Final = 16 << 20
#: Time between two syncs: acknowledgements wait for them.
SYNC_US: Final = 1_000_000


class SegmentWriter:
    """Appends records to a folder of segments.  One writer at a time.

    A segment is synced before the next one begins, as long as :meth:`sync` is called wherever it is due: then a power
    failure takes records from the end only.

    Args:
      folder: below the storage's root.

    Attributes:
      segments: of earlier sessions.
      sequence: of the last record; whoever has read the end of the last session sets it.

    Raises:
      LogError: another process records here.
    """

    def __init__(self, storage: Storage, folder: PurePosixPath, segment_bytes: int) -> None:
        self._storage = storage
        self._folder = folder
        self._segment_bytes = segment_bytes
        self._file: AppendFile | None = None
        #: Files of earlier segments that are not synced yet.
        self._left: list[AppendFile] = []
        #: Something was written since the last sync.
        self._unsynced = False
        storage.lock(folder / "lock")
        self.segments = live_segments(storage.list(folder))
        self._epoch = self.segments[-1].epoch + 1 if self.segments else 1
        self.sequence = self.segments[-1].first - 1 if self.segments else 0
        if self.segments:  # bytes of a killed process may be in the page cache only
            self._left.append(storage.open(folder / self.segments[-1].name))

    def append(self, body: bytes) -> None:
        """Appends a record.

        Raises:
          LogFull: there is no room for it, and it can be appended again later.
          OSError: the disk refused it for good.
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
        """A segment was left, or an earlier session left one: it has to be synced before anything follows it."""
        return bool(self._left)

    async def sync(self) -> None:
        """Makes everything appended safe.  Nothing may be appended meanwhile.  Raises OSError."""
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
        file = begin_segment(self._storage, self._folder, Segment(first, self._epoch))
        self._file = file
        return file

    def close(self) -> None:
        self._leave()
        for file in self._left:
            file.close()
        self._left.clear()


class ChannelRecorder:
    """Appends one channel's changes.  One writer at a time.

    Opening reads the end of the last session to know how far it came.  If it held tentative tuples, an undo is
    recorded before anything else: who held them is gone.

    Args:
      folder: of the channel, below the storage's root.

    Attributes:
      position: id of the last stable tuple recorded, in this session or an earlier one.
      frontier: largest stable boundary recorded.
      synced: every stable tuple up to this id is there also if the power fails now.

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
        self._folder = folder
        self._schema = schema
        #: The undo of what the last session held, to be recorded first.
        self._withdrawn: Change | None = None
        self.channel = channel
        self.position = self.synced = 0
        self.frontier = BEFORE_TIME
        self._segments = SegmentWriter(storage, folder, segment_bytes)
        self._continue(self._segments.segments)

    def _continue(self, segments: Sequence[Segment]) -> None:
        """Reads backwards, segment by segment, until it is known how far the earlier sessions came."""
        last: tuple[int, Element] | None = None
        held: bool | None = None
        for segment in reversed(segments):
            records = list(scan_segment(self._storage, self._folder, segment))
            if last is None and records:
                self._segments.sequence = records[-1].position.sequence
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
          LogFull: there is no room; what was written before can be read, and it can be written again later.
          OSError: the disk refused it for good.
        """
        if (undo := self._withdrawn) is not None:
            self._write(undo)
            self._withdrawn = None
        self._write(change)

    def _write(self, change: Change) -> None:
        self._segments.append(encode_recorded(change.arrived_us, change.element, self._schema))
        self._follow(change.element)

    @property
    def due(self) -> bool:
        """A segment was left, or an earlier session left one: it has to be synced before anything follows it."""
        return self._segments.due

    async def sync(self) -> None:
        """Makes everything recorded safe.  Nothing may be written meanwhile.  Raises OSError."""
        await self._segments.sync()
        self.synced = self.position

    def close(self) -> None:
        self._segments.close()


class Recorder:
    """Records every change of a client, one folder per channel below ``folder``, and what nodes announce, in another.

    Args:
      schemas: of each channel to be recorded.

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

    def announced(self, arrived_us: int, one: Announcement) -> None:
        """Appends what a node said of its X and waits.  Raises LogFull, OSError."""
        self._announced.append(encode_announced(arrived_us, one))

    def write(self, change: Change) -> None:
        """Appends a change.  Raises LogFull, OSError."""
        self._channels[change.channel].write(change)

    def position(self, channel: Channel) -> tuple[int, int]:
        """(last stable id, stable frontier) recorded: where a restarted client may go on."""
        one = self._channels[channel]
        return one.position, one.frontier

    def synced(self, channel: Channel) -> int:
        """Every stable tuple up to this id is there also if the power fails now: what may be acknowledged."""
        return self._channels[channel].synced

    async def sync_due(self) -> None:
        """Syncs what has to be before anything follows it.  Nothing may be written meanwhile.  Raises OSError."""
        for one in self._all:
            if one.due:
                await one.sync()

    async def sync(self) -> None:
        """Makes everything recorded safe.  Nothing may be written meanwhile.  Raises OSError."""
        for one in self._all:
            await one.sync()

    def close(self) -> None:
        for one in self._all:
            one.close()


def read_recording(
    storage: Storage, folder: PurePosixPath, schema: Schema, pool: StringPool | None = None
) -> Iterator[Change]:
    """The changes of one channel, in order of arrival.  As ``spe.log.recording.read_recorded``."""
    stream, _, partition = folder.name.rpartition(".")
    channel = Channel(StreamId(stream), int(partition))
    for _, arrived_us, element in read_recorded(storage, folder, schema, pool):
        yield Change(channel, element, arrived_us)


def stable_rows(changes: Iterable[Change], schema: Schema) -> ChannelRows:
    """Ids and rows of one channel's stable tuples as they came: repeated ones and all, for the comparison."""
    batches = [
        c.element for c in changes if isinstance(c.element, Batch) and c.element.kind is Kind.STABLE and len(c.element)
    ]
    if not batches:
        return np.empty(0, np.int64), Rows.empty(schema)
    return np.concatenate([b.row_ids() for b in batches]), concat_rows([b.rows for b in batches])


def recorded_stable(
    storage: Storage, folder: PurePosixPath, schemas: Mapping[Channel, Schema]
) -> dict[Channel, ChannelRows]:
    """The stable tuples of every channel of a client's folder: what ``compare`` takes.  Raises LogCorrupt."""
    return {
        channel: stable_rows(read_recording(storage, channel_folder(folder, channel), schema), schema)
        for channel, schema in schemas.items()
    }
