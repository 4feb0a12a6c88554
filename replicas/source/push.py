"""Takes in batches that writers push: each once, whole or not at all, and in the same order after each restart.

A writer's tasks stage parts; then its driver commits the batch, which names them (rules W1-W4).  What is committed is
given to the source like the rows of any live reader, and its parts are kept until the source's log has them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import PurePosixPath
from typing import Any, Final, TypeVar

import numpy as np
import trio

from replicas.connectors.reader import CHUNK_ROWS, Live, RowChunk
from replicas.link.signal import Signal
from replicas.producer.connection_limits import WRITER_PLACES
from spe.errors import LogCorrupt, LogFull, RemoteProtocolError, SpeError
from spe.log.pushed import (
    BATCH_BYTES,
    PART_BYTES,
    Part,
    PushedBatch,
    PushLedger,
    decode_part,
    digest_of,
    is_part_name,
    push_folder,
    read_ledger,
    read_trailer,
    trailer_of,
)
from spe.runtime.disk_trouble import DISK_RETRY_US, DiskTrouble, is_full
from spe.runtime.env import AppendFile, Env
from spe.stream.batch import Int64Array, Rows, concat_rows
from spe.stream.schema import Schema
from spe.stream.strings import StringPool
from spe.wire.messages import CommitPushed, DropParts, PartStaged, PushCommitted, StagePart

T = TypeVar("T")

#: A commit is answered when no more than this waits to be logged: so a writer is not faster than the source.
PENDING_BYTES: Final = 64 << 20


@dataclass
class _Arriving:
    """A part that is being staged; ``file`` None: it is there already."""

    file: AppendFile | None
    query: str
    batch: int
    pieces: int = 0


class PushIntake(Live):
    """The reader of a source that is pushed to."""

    continues = True

    def __init__(self, schema: Schema, time: str | None, reader: Mapping[str, Any]) -> None:
        self._schema = schema
        self._time = None if time is None else schema.index(time)
        self._writers = tuple(f"writer:{name}" for name in reader["writers"])
        #: By writer and part, oldest first.
        self._arriving: dict[tuple[str, str], _Arriving] = {}
        #: Parts that are there as a whole, and are being checked and synced.
        self._completing: dict[str, trio.Event] = {}
        self._staged: dict[str, Part] = {}
        self._ledger = PushLedger()
        self._consumed = 0
        self._committing = trio.Lock()
        self._changed = Signal()
        self._env: Env
        self._folder: PurePosixPath
        self._trouble: DiskTrouble
        self._settled: Callable[[int], Awaitable[None]]
        #: Why nothing is taken; "" where it is.
        self._stopped = "the source has not begun to read"

    async def open(
        self, env: Env, folder: PurePosixPath, consumed: int, settled: Callable[[int], Awaitable[None]]
    ) -> None:
        """Finds what was committed and staged before.

        Args:
          folder: of the source.
          consumed: rows of the reader that its log has.
          settled: waits until the log has so many.

        Raises:
          LogCorrupt: the ledger is damaged, or not that of this log.
        """
        self._env, self._folder, self._consumed, self._settled = env, push_folder(folder), consumed, settled
        self._trouble = DiskTrouble(env, f"{folder}: pushed batches")
        path = self._folder / "ledger"
        if env.storage.exists(path):
            try:
                self._ledger = read_ledger(env.storage.read(path))
            except LogCorrupt as error:
                raise LogCorrupt(f"{path}: {error}") from None
        if fault := self._ledger.fault(consumed):
            raise LogCorrupt(f"{path}: {fault}")
        needed = {name for one in self._ledger.without(consumed).pending for name, _ in one.parts}
        for name in env.storage.list(self._folder / "parts"):
            part = read_trailer(env.storage.read(self._part(name)))
            if part is None or (name not in needed and self._ledger.has(part.writer, part.query, part.batch)):
                env.storage.remove(self._part(name))
            else:
                self._staged[name] = part
        if missing := sorted(needed - self._staged.keys()):
            raise LogCorrupt(f"{self._part(missing[0])}: a part of a committed batch is missing")

    def _part(self, name: str) -> PurePosixPath:
        return self._folder / "parts" / name

    # --- staging (W1) ---

    async def stage(self, writer: str, message: StagePart) -> PartStaged | None:
        """Takes a piece; the last one is answered."""
        key, name = (writer, message.part), message.part
        if writer not in self._writers or not is_part_name(name):
            return PartStaged(name, f"{writer} must not push here, or {name!r} is no name of a part")
        if message.index == 0:
            while (done := self._completing.get(name)) is not None:  # of an attempt whose connection broke
                await done.wait()
            self._forget(key)
            file = None if name in self._staged else self._fresh(name)
            self._arriving[key] = _Arriving(file, message.query, message.batch)
            mine = [one for one in self._arriving if one[0] == writer]
            if len(mine) > WRITER_PLACES:
                self._forget(mine[0])
        one = self._arriving.get(key)
        if one is None or one.pieces != message.index:
            self._forget(key)
            return PartStaged(name, f"piece {message.index} came without those before it") if message.last else None
        one.pieces += 1
        if one.file is not None:
            await self._until_room(partial(_append, one.file, message.data))
            if one.file.size() > PART_BYTES:
                self._forget(key)
                return PartStaged(name, f"more than {PART_BYTES >> 20} MiB: divide the batch into more partitions")
        if not message.last:
            return None
        del self._arriving[key]
        if one.file is None:
            return PartStaged(name, "")
        done = self._completing[name] = trio.Event()
        try:
            return PartStaged(name, await self._complete(writer, message, one.file))
        finally:
            del self._completing[name]
            done.set()
            if name not in self._staged:
                self._env.storage.remove(self._part(name))

    def _fresh(self, name: str) -> AppendFile:
        file = self._env.storage.open(self._part(name))
        if file.size():
            file.truncate(0)
        return file

    def _forget(self, key: tuple[str, str]) -> None:
        """A part will not be completed by this attempt."""
        if (one := self._arriving.pop(key, None)) is not None and one.file is not None:
            one.file.close()
            self._env.storage.remove(self._part(key[1]))

    async def _complete(self, writer: str, message: StagePart, file: AppendFile) -> str:
        """Why a part that has arrived is refused; else "", and it is on the disk."""
        try:
            data = await self._env.compute.run(lambda: file.read(0, file.size()))
            try:
                rows = await self._env.compute.run(lambda: self._checked(data))
            except (ValueError, RemoteProtocolError) as error:
                return str(error)
            part = Part(writer, message.query, message.batch, rows, len(data), digest_of(data))
            await self._until_room(partial(_append, file, trailer_of(part)))
            await self._until_room(file.sync)
        finally:
            file.close()
        self._staged[message.part] = part
        return ""

    def _checked(self, data: bytes) -> int:
        """Rows of a part.  Raises ValueError, RemoteProtocolError: they are not what the source takes."""
        count = 0
        for rows in decode_part(data, self._schema, StringPool()):
            for at, (column, attribute) in enumerate(zip(rows.columns, self._schema)):
                required = not attribute.nullable or at == self._time
                if required and column.valid is not None and not column.valid.all():
                    row = count + int(column.valid.argmin()) + 1
                    raise ValueError(f"row {row} of the part has no {attribute.name}, which is never null")
            count += len(rows)
        return count

    def drop(self, writer: str, message: DropParts) -> None:
        """The writer will not commit these."""
        for name in message.parts:
            self._forget((writer, name))
            if (part := self._staged.get(name)) is not None and part.writer == writer:
                self._remove({name} - self._needed())

    # --- committing (W2) ---

    async def commit(self, writer: str, message: CommitPushed) -> PushCommitted:
        """Answers when the batch is durable, and the source is not far behind."""
        async with self._committing:
            why = self._stopped or await self._committed(writer, message)
        while not why and not self._stopped and sum(one.bytes for one in self._ledger.pending) > PENDING_BYTES:
            await self._changed.wait(self._changed.token())
        return PushCommitted(message.batch, why)

    async def _committed(self, writer: str, message: CommitPushed) -> str:
        query, batch = message.query, message.batch
        if writer not in self._writers:
            return f"{writer} must not push here"
        if why := self._ledger.refuse(writer, query, batch, message.replaces):
            return why
        if self._ledger.has(writer, query, batch):
            return ""  # it was committed, and the answer was lost
        parts = [(name, self._staged.get(name)) for name in message.parts]
        known = [(name, part) for name, part in parts if part is not None and part.writer == writer]
        if len(known) < len(parts) or len(set(message.parts)) < len(parts):
            return f"batch {batch}: of {len(parts)} parts {len(known)} are here; the others were lost, or never came"
        if strange := [name for name, part in known if (part.query, part.batch) != (query, batch)]:
            return f"batch {batch}: part {strange[0]} is of another batch"
        if (size := sum(part.bytes for _, part in known)) > BATCH_BYTES:
            return (
                f"batch {batch} has {size >> 20} MiB; a batch has at most {BATCH_BYTES >> 20}: limit what a trigger of "
                "the query takes"
            )
        ledger = self._ledger.committed(writer, query, batch, known, self._consumed)
        write = partial(self._env.storage.write_atomic, self._folder / "ledger", ledger.encode())
        await self._until_room(write)
        self._ledger = ledger.without(self._consumed)  # it may have gone on meanwhile
        needed = self._needed()
        left = {n for n, p in self._staged.items() if ledger.has(p.writer, p.query, p.batch)} - needed
        self._remove(left | {n for n, p in self._staged.items() if p.writer == writer and p.query != query} - needed)
        for key, one in list(self._arriving.items()):  # of tasks that died
            if key[0] == writer and (one.query != query or one.batch <= batch):
                self._forget(key)
        self._changed.wake()
        return ""

    def _needed(self) -> set[str]:
        return {name for one in self._ledger.without(self._consumed).pending for name, _ in one.parts}

    def _remove(self, names: set[str]) -> None:
        for name in names:
            del self._staged[name]
            self._env.storage.remove(self._part(name))

    async def _until_room(self, store: Callable[[], Awaitable[T]]) -> T:
        """A full disk is waited for (A1a).  Raises SpeError where it is broken."""
        while True:
            try:
                done = await store()
            except (OSError, LogFull) as error:
                if not is_full(error):
                    raise SpeError(f"{self._folder} cannot be written: {error}") from error
                self._trouble.met(error)
                await self._env.clock.sleep(DISK_RETRY_US / 1e6)
            else:
                self._trouble.over()
                return done

    # --- giving rows to the source (W3, W4) ---

    async def read(self, env: Env, accept: Callable[[RowChunk], Awaitable[None]]) -> None:
        """Gives what is committed, from the first row on that the source's log does not have.  Never ends.

        Raises:
          LogCorrupt: a part was damaged since it was written.
        """
        self._stopped = ""
        try:
            while True:
                token = self._changed.token()
                pending = self._ledger.without(self._consumed).pending
                if not pending:
                    await self._changed.wait(token)
                    continue
                batch = pending[0]
                for chunk in await env.compute.run(partial(self._chunks, batch)):
                    await accept(chunk)
                await self._settled(batch.upto)
                self._consumed = batch.upto
                self._ledger = self._ledger.without(batch.upto)
                self._remove({name for name, _ in batch.parts})
                self._changed.wake()
        finally:
            self._stopped = "the source has stopped to take rows; its status says why"
            self._changed.wake()

    def _chunks(self, batch: PushedBatch) -> list[RowChunk]:
        """The rows of a batch by event time; what is equal, in the order of the parts.  Raises LogCorrupt."""
        pool, parts = StringPool(), []
        for name, digest in batch.parts:
            part = self._staged[name]
            data = self._env.storage.read(self._part(name))[: part.bytes]
            if digest_of(data) != digest:
                raise LogCorrupt(f"{self._part(name)}: the checksum of a pushed part does not match")
            parts += decode_part(data, self._schema, pool)
        rows = concat_rows(parts)
        events = None if self._time is None else rows.columns[self._time].values.astype(np.int64)
        if events is not None:
            order = events.argsort(kind="stable")
            rows, events = rows.take(order), events.take(order)
        return list(_divided(rows, events, batch.after, max(0, self._consumed - batch.after)))


def _divided(rows: Rows, events: Int64Array | None, after: int, skip: int) -> Iterator[RowChunk]:
    for at in range(skip, len(rows), CHUNK_ROWS):
        piece = rows.slice(at, min(len(rows), at + CHUNK_ROWS))
        taken = None if events is None else events[at : at + len(piece)]
        yield RowChunk(after + at, len(piece), taken, piece.columns, [])


async def _append(file: AppendFile, data: bytes) -> None:
    """All of it, or nothing."""
    before = file.size()
    try:
        file.append(data)
    except OSError:
        file.truncate(before)
        raise
