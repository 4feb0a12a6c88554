"""Spill files: they hold the oldest part of a buffer when memory is short, and are read back in pieces.

Spilled data is lost with the process, as memory would be: nothing is synced, and files of an earlier process are
removed at the start.  Each buffer has a :class:`Shelf` with its own segments, so that pieces dropped in order free
their space in order.  A piece is one batch in the wire's encoding with a CRC-32; a damaged one is never served.

Files are accessed in threads only: a slow disk must not keep the process from answering heartbeats.  A piece stays in
memory until it is written, and the queue is short.  Reading a piece that is on disk raises :class:`SpillNotLoaded`:
the caller of the pure machine loads it and repeats the call.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import PurePosixPath
from typing import Final, Protocol

import trio

from spe.checksum import crc32
from spe.errors import LogError, RemoteProtocolError
from spe.runtime.env import AppendFile, Clock, Compute, Storage
from spe.status import SpillStatus
from spe.stream.batch import Batch
from spe.stream.schema import Schema
from spe.stream.strings import StringPool
from spe.wire.codec import decode_standalone, encode_standalone

#: Size after which a segment is closed for writing; its space is freed when its last piece is dropped.
SEGMENT_BYTES: Final = 32 << 20
#: Intended size of a piece: large enough that the overhead of a file is small, small enough to yield after it.
PIECE_BYTES: Final = 1 << 20
#: Most bytes of pieces waiting in memory to be written; a few pieces keep a disk busy.
QUEUE_BYTES: Final = 4 * PIECE_BYTES
#: Pause after a write that the disk refused.
RETRY_US: Final = 5_000_000


class SpillDamaged(LogError):
    """A piece was read back with other bytes than written; it is lost."""


class SpillNotLoaded(Exception):
    """A piece is on disk.  Nothing has changed: load it, repeat the call, then release it."""

    def __init__(self, shelf: Shelf, handle: Handle) -> None:
        super().__init__("a piece is on disk")
        self._shelf = shelf
        self.handle = handle

    async def load(self) -> None:
        """Reads the piece in a thread.  A damaged piece raises when it is used."""
        await self._shelf.load(self.handle)

    def release(self) -> None:
        """Allows the piece to leave memory again."""
        self._shelf.release(self.handle)


class Handle:
    """A spilled piece.

    Attributes:
      data: its bytes, while it waits to be written or is loaded.
      segment, offset: its place; segment 0: not yet written.
      loads: number of loads without release.
      forgotten: the piece is not needed any more.
      damage: the error when it was read; "" if none.
    """

    __slots__ = ("crc", "damage", "data", "forgotten", "length", "loads", "offset", "segment")

    def __init__(self, data: bytes) -> None:
        self.data: bytes | None = data
        self.length = len(data)
        self.crc = crc32(data)
        self.segment = self.offset = self.loads = 0
        self.forgotten = False
        self.damage = ""


class Spill(Protocol):
    """Stores batches that a pure machine does not keep in memory."""

    def write(self, batch: Batch) -> Handle | None:
        """Stores a batch.  None: there is no room now, or the disk refuses; the owner keeps the batch."""
        ...

    def read(self, handle: Handle) -> Batch:
        """Returns a batch.  Raises SpillDamaged, or SpillNotLoaded."""
        ...

    def forget(self, handle: Handle) -> None: ...


def piece_bytes(cap_bytes: int) -> int:
    """Size of the pieces of a buffer with this cap: a fraction of it."""
    return max(1, min(PIECE_BYTES, cap_bytes // 8))


class SpillFolder:
    """All spill files of a process.

    Args:
      folder: folder for these files only; its contents are removed.
      limit_bytes: limit of all files together.
      report: called with the reason when spilling fails, and with "" when it works again.
      room: called when there may be room again after a refusal.
    """

    def __init__(
        self,
        storage: Storage,
        compute: Compute,
        clock: Clock,
        folder: PurePosixPath,
        limit_bytes: int,
        *,
        report: Callable[[str], None],
        room: Callable[[], None],
    ) -> None:
        self._storage = storage
        self.compute = compute
        self._clock = clock
        self._folder = folder
        self._limit = limit_bytes
        self._report = report
        self._room = room
        self._trouble = ""
        self._retry_at = 0
        self._segments = 0
        self._queue: deque[tuple[Shelf, Handle]] = deque()
        self._queued = 0
        #: Bytes of the smallest piece refused since the last call of ``room``; 0: none was.
        self._put_off = 0
        self._unwanted: deque[_Segment] = deque()
        self._work = trio.Event()
        #: Bytes of all files and of all waiting pieces.
        self.used = 0
        #: Counts of pieces: written, read back, refused for lack of room or by the disk, and damaged.
        self.written = self.read = self.refused = self.damaged = 0

    def shelf(self, schema: Schema) -> Shelf:
        """A place for the batches of one buffer."""
        return Shelf(self, schema)

    # --- for shelves ---

    def has_room(self, length: int) -> bool:
        """May this many bytes be written now?"""
        if self._clock.monotonic_us() < self._retry_at:
            self.refused += 1
        elif self.used + length > self._limit:
            self._fail(f"{self._limit} bytes are in use, which is the limit", retry=False)
        elif not self._queue or self._queued + length <= QUEUE_BYTES:
            return True
        self._put_off = min(length, self._put_off or length)
        self._work.set()
        return False

    def enqueue(self, shelf: Shelf, handle: Handle) -> None:
        """Queues a piece to be written."""
        self._queue.append((shelf, handle))
        self._queued += handle.length
        self.used += handle.length
        self._work.set()

    def unqueue(self, handle: Handle) -> None:
        """Removes a piece from the queue."""
        self._queued -= handle.length
        self.used -= handle.length
        self._work.set()

    def remove(self, segment: _Segment) -> None:
        """Queues a segment for removal: none of its pieces is needed."""
        self.used -= segment.size
        self._unwanted.append(segment)
        self._work.set()

    def wake(self) -> None:
        self._work.set()

    # --- the files, in threads ---

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Writes and removes files, one after the other, until cancelled."""
        await self.clear()
        task_status.started()
        while True:
            self._work = trio.Event()
            began = self._clock.monotonic_us()
            if await self.step():
                continue
            waits = (self._queue or self._put_off) and self._retry_at > began  # otherwise the loop would not pause
            left_us = max(0, self._retry_at - self._clock.monotonic_us())
            with trio.move_on_after(left_us / 1e6 if waits else float("inf")):
                await self._work.wait()

    async def clear(self) -> None:
        """Removes files of an earlier process."""
        await self.compute.run(self._clear)

    def _clear(self) -> None:
        with suppress(OSError):
            for name in self._storage.list(self._folder):
                self._storage.remove(self._folder / name)

    async def step(self) -> bool:
        """Removes one file or writes one piece, and reports room; False: there is nothing to do now."""
        done = await self._step()
        if self._put_off and self._has_some_room():
            self._put_off = 0
            self._room()
        return done

    def _has_some_room(self) -> bool:
        waits = self._clock.monotonic_us() < self._retry_at
        return not waits and self.used + self._put_off <= self._limit and 2 * self._queued <= QUEUE_BYTES

    async def _step(self) -> bool:
        for _ in range(len(self._unwanted)):
            segment = self._unwanted.popleft()
            if not segment.readers:
                await self.compute.run(partial(self._remove, segment))
                return True
            self._unwanted.append(segment)
        while self._queue and self._queue[0][1].forgotten:
            self._queue.popleft()
        if not self._queue or self._clock.monotonic_us() < self._retry_at:
            return False
        shelf, handle = self._queue[0]
        try:
            await shelf.store(handle)
        except OSError as error:  # the piece stays in memory, and is tried again
            self._fail(f"{error.strerror or error}")
            return True
        self._queue.popleft()
        self._works()
        return True

    def stored(self, handle: Handle) -> None:
        """Notes that a piece is in its file, still needed or not."""
        if handle.forgotten:
            self.used += handle.length
        else:
            self._queued -= handle.length

    async def create(self) -> tuple[int, _Segment]:
        """Creates a segment.  Raises OSError."""
        self._segments += 1
        path = self._folder / f"{self._segments:08d}.spill"
        return self._segments, _Segment(path, await self.compute.run(partial(self._storage.open, path)))

    def _remove(self, segment: _Segment) -> None:
        with suppress(OSError):
            segment.file.close()
        with suppress(OSError):  # the next start removes the file
            self._storage.remove(segment.path)

    def _fail(self, why: str, *, retry: bool = True) -> None:
        """Notes a refused write; reports the first one after a success."""
        self.refused += 1
        self._retry_at = self._clock.monotonic_us() + RETRY_US if retry else 0
        if not self._trouble:
            self._report(why)
        self._trouble = why

    def _works(self) -> None:
        self.written += 1
        if self._trouble:
            self._trouble = ""
            self._report("")

    def status(self) -> SpillStatus:
        return SpillStatus(
            used=self.used, written=self.written, read=self.read, refused=self.refused, damaged=self.damaged
        )


class _Segment:
    __slots__ = ("file", "path", "pieces", "readers", "size")

    def __init__(self, path: PurePosixPath, file: AppendFile) -> None:
        self.path = path
        self.file = file
        self.size = 0
        #: Number of its pieces that are still needed.
        self.pieces = 0
        #: Number of current reads; it is not removed during these.
        self.readers = 0


class Shelf:
    """The spilled part of one buffer; a :class:`Spill`."""

    def __init__(self, folder: SpillFolder, schema: Schema) -> None:
        self._folder = folder
        self._schema = schema
        self._pool = StringPool()
        self._segments: dict[int, _Segment] = {}
        #: Pieces that wait to be written.
        self._waiting: dict[Handle, None] = {}
        #: Number of the segment being written; None: the next piece begins one.
        self._current: int | None = None

    def write(self, batch: Batch) -> Handle | None:
        data = encode_standalone(batch, self._schema)
        if not self._folder.has_room(len(data)):
            return None
        handle = Handle(data)
        self._waiting[handle] = None
        self._folder.enqueue(self, handle)
        return handle

    async def store(self, handle: Handle) -> None:
        """Writes a piece in a thread.  Raises OSError if it is not written."""
        folder, data = self._folder, handle.data
        assert data is not None
        if self._current is None or self._current not in self._segments:
            self._current, made = await folder.create()
            self._segments[self._current] = made
        number, segment = self._current, self._segments[self._current]
        segment.pieces += 1  # counted now, so that the segment is not removed
        try:
            await folder.compute.run(partial(segment.file.append, data))
        except OSError:
            segment.pieces -= 1
            self._end_segment(number)  # a part of the piece may be in the file
            raise
        if number not in self._segments:
            return  # closed during the write
        folder.stored(handle)
        self._waiting.pop(handle, None)
        handle.segment, handle.offset = number, segment.size
        segment.size += len(data)
        self._let_go(handle)
        if segment.size >= SEGMENT_BYTES:
            self._end_segment(number)
        if handle.forgotten:
            self._lose_piece(number)

    def read(self, handle: Handle) -> Batch:
        folder = self._folder
        where = f"spill segment {handle.segment}, offset {handle.offset}"
        if handle.damage:
            folder.damaged += 1
            raise SpillDamaged(f"{where}: {handle.damage}")
        if handle.data is None:
            raise SpillNotLoaded(self, handle)
        try:
            element = decode_standalone(handle.data, self._schema, self._pool)
        except RemoteProtocolError as error:
            folder.damaged += 1
            raise SpillDamaged(f"{where}: {error}") from error
        assert type(element) is Batch
        folder.read += 1
        return element

    async def load(self, handle: Handle) -> None:
        """Reads a piece in a thread; see :class:`SpillNotLoaded`."""
        segment = self._segments.get(handle.segment)
        if segment is not None:
            segment.readers += 1
            try:
                handle.data = await self._folder.compute.run(partial(_read, segment.file, handle))
            except (OSError, SpillDamaged) as error:
                handle.damage = str(error)
            finally:
                segment.readers -= 1
                self._folder.wake()
        elif handle.data is None:
            handle.damage = "the file is gone"
        handle.loads += 1

    def release(self, handle: Handle) -> None:
        handle.loads -= 1
        self._let_go(handle)

    def _let_go(self, handle: Handle) -> None:
        if handle.segment and not handle.loads:
            handle.data = None

    def forget(self, handle: Handle) -> None:
        handle.forgotten = True
        if handle in self._waiting:
            del self._waiting[handle]
            self._folder.unqueue(handle)
        elif handle.segment in self._segments:
            handle.data = None
            self._lose_piece(handle.segment)

    def close(self) -> None:
        """Drops all pieces."""
        for handle in list(self._waiting):
            self.forget(handle)
        self._current = None
        for number in list(self._segments):
            self._remove(number)

    def _lose_piece(self, number: int) -> None:
        segment = self._segments.get(number)
        if segment is None:
            return
        segment.pieces -= 1
        if not segment.pieces and number != self._current:
            self._remove(number)
        elif not segment.pieces:
            self._end_segment(number)

    def _end_segment(self, number: int) -> None:
        if number == self._current:
            self._current = None
        if number in self._segments and not self._segments[number].pieces:
            self._remove(number)

    def _remove(self, number: int) -> None:
        self._folder.remove(self._segments.pop(number))


def _read(file: AppendFile, handle: Handle) -> bytes:
    """Reads a piece.  Raises OSError, SpillDamaged."""
    data = file.read(handle.offset, handle.length)
    if len(data) != handle.length or crc32(data) != handle.crc:
        raise SpillDamaged("the piece is damaged")
    return data
