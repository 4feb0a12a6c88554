"""Spill files: where a buffer puts its oldest part when memory is short, and reads it back in pieces.

What is spilled is lost with the process, as memory would be: nothing is synced, and what an earlier process left is
removed at the start.  Each buffer has a :class:`Shelf` with segments of its own, so that what is forgotten in order
frees its space in order.  A piece is one batch in the wire's encoding with a CRC-32; a damaged one is never served.

Files are only touched in threads: a slow disk must not keep the process from answering heartbeats.  A piece that was
given to a shelf stays in memory until it is written, and few may wait for that.  A piece that is asked for and lies on
disk raises :class:`SpillNotLoaded`: whoever runs the pure machine loads it and asks again.
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

#: Size after which a segment is closed for writing; its space comes back when its last piece is forgotten.
SEGMENT_BYTES: Final = 32 << 20
#: Largest piece aimed at: large enough that a file costs nothing beside its contents, small enough to yield after.
PIECE_BYTES: Final = 1 << 20
#: Pieces that wait to be written, in memory; a few keep a disk busy.
QUEUE_BYTES: Final = 4 * PIECE_BYTES
#: How long a disk that refused a write is left alone.
RETRY_US: Final = 5_000_000


class SpillDamaged(LogError):
    """A piece does not read back as it was written: it is given up, and never served."""


class SpillNotLoaded(Exception):
    """A piece lies on disk.  Nothing has changed: load it and ask again; release it when that has worked."""

    def __init__(self, shelf: Shelf, handle: Handle) -> None:
        super().__init__("a piece is on disk")
        self._shelf = shelf
        self.handle = handle

    async def load(self) -> None:
        """Reads the piece in a thread.  One that is damaged raises where it is asked for."""
        await self._shelf.load(self.handle)

    def release(self) -> None:
        """The piece need not stay in memory for us."""
        self._shelf.release(self.handle)


class Handle:
    """A piece.

    Attributes:
      data: while it waits to be written, or is loaded.
      segment, offset: where it lies; segment 0: nowhere yet.
      loads: how many have loaded it, and not released it.
      forgotten: nobody asks for it any more.
      damage: what was found when it was read; "" if nothing.
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
    """Where a pure machine puts batches that it does not want to keep in memory."""

    def write(self, batch: Batch) -> Handle | None:
        """None: there is no room now, or the disk refuses; the batch stays with its owner."""
        ...

    def read(self, handle: Handle) -> Batch:
        """Raises SpillDamaged, or SpillNotLoaded."""
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
      told: called when spilling stops working, with the reason, and with "" when it works again.
      room: called when there may be room again for somebody who found none.
    """

    def __init__(
        self,
        storage: Storage,
        compute: Compute,
        clock: Clock,
        folder: PurePosixPath,
        limit_bytes: int,
        *,
        told: Callable[[str], None],
        room: Callable[[], None],
    ) -> None:
        self._storage = storage
        self.compute = compute
        self._clock = clock
        self._folder = folder
        self._limit = limit_bytes
        self._told = told
        self._room = room
        self._trouble = ""
        self._retry_at = 0
        self._segments = 0
        self._queue: deque[tuple[Shelf, Handle]] = deque()
        self._queued = 0
        #: Bytes of the smallest piece that was refused since somebody was last told that there is room; 0: none was.
        self._put_off = 0
        self._unwanted: deque[_Segment] = deque()
        self._work = trio.Event()
        #: Bytes of all files, and of what waits to be written.
        self.used = 0
        #: Pieces written, read back, refused for lack of room or by the disk, and found damaged.
        self.written = self.read = self.refused = self.damaged = 0

    def shelf(self, schema: Schema) -> Shelf:
        """A place for the batches of one buffer."""
        return Shelf(self, schema)

    # --- what shelves ask ---

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
        """Takes a piece out of the queue: it need not be written any more."""
        self._queued -= handle.length
        self.used -= handle.length
        self._work.set()

    def remove(self, segment: _Segment) -> None:
        """Queues a segment to be removed: nothing in it is wanted any more."""
        self.used -= segment.size
        self._unwanted.append(segment)
        self._work.set()

    def wake(self) -> None:
        self._work.set()

    # --- the files, in threads ---

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Writes and removes files, one thing after the other, until cancelled."""
        await self.clear()
        task_status.started()
        while True:
            self._work = trio.Event()
            began = self._clock.monotonic_us()
            if await self.step():
                continue
            waits = (self._queue or self._put_off) and self._retry_at > began  # else a disk would be asked without end
            left_us = max(0, self._retry_at - self._clock.monotonic_us())
            with trio.move_on_after(left_us / 1e6 if waits else float("inf")):
                await self._work.wait()

    async def clear(self) -> None:
        """Removes what an earlier process left."""
        await self.compute.run(self._clear)

    def _clear(self) -> None:
        with suppress(OSError):
            for name in self._storage.list(self._folder):
                self._storage.remove(self._folder / name)

    async def step(self) -> bool:
        """Removes one file or writes one piece; False: there is nothing to do now.  Then somebody may have room."""
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
        except OSError as error:  # it stays in memory, and is tried again
            self._fail(f"{error.strerror or error}")
            return True
        self._queue.popleft()
        self._works()
        return True

    def stored(self, handle: Handle) -> None:
        """Notes that a piece is in its file, whether it is still wanted or not."""
        if handle.forgotten:
            self.used += handle.length
        else:
            self._queued -= handle.length

    async def create(self) -> tuple[int, _Segment]:
        """A new segment.  Raises OSError."""
        self._segments += 1
        path = self._folder / f"{self._segments:08d}.spill"
        return self._segments, _Segment(path, await self.compute.run(partial(self._storage.open, path)))

    def _remove(self, segment: _Segment) -> None:
        with suppress(OSError):
            segment.file.close()
        with suppress(OSError):  # what is left goes at the next start
            self._storage.remove(segment.path)

    def _fail(self, why: str, *, retry: bool = True) -> None:
        """A write was refused: said once, until one works again."""
        self.refused += 1
        self._retry_at = self._clock.monotonic_us() + RETRY_US if retry else 0
        if not self._trouble:
            self._told(why)
        self._trouble = why

    def _works(self) -> None:
        self.written += 1
        if self._trouble:
            self._trouble = ""
            self._told("")

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
        #: How many of its pieces are still wanted.
        self.pieces = 0
        #: Who reads it now: it is removed after that.
        self.readers = 0


class Shelf:
    """The spilled part of one buffer; a :class:`Spill`."""

    def __init__(self, folder: SpillFolder, schema: Schema) -> None:
        self._folder = folder
        self._schema = schema
        self._pool = StringPool()
        self._segments: dict[int, _Segment] = {}
        #: Of those that wait to be written.
        self._waiting: dict[Handle, None] = {}
        #: The segment that is written to; None: the next piece begins one.
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
        """Writes a piece in a thread.  Raises OSError: it is not written."""
        folder, data = self._folder, handle.data
        assert data is not None
        if self._current is None or self._current not in self._segments:
            self._current, made = await folder.create()
            self._segments[self._current] = made
        number, segment = self._current, self._segments[self._current]
        segment.pieces += 1  # from now on, so that nobody removes it
        try:
            await folder.compute.run(partial(segment.file.append, data))
        except OSError:
            segment.pieces -= 1
            self._end_segment(number)  # a part of the piece may be in it
            raise
        if number not in self._segments:
            return  # closed meanwhile
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
        """See :class:`SpillNotLoaded`."""
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
        """Nothing of this shelf is wanted any more."""
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
    """Raises OSError, SpillDamaged."""
    data = file.read(handle.offset, handle.length)
    if len(data) != handle.length or crc32(data) != handle.crc:
        raise SpillDamaged("the piece is damaged")
    return data
