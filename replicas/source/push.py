"""Takes in pushed batches: each once, whole or not at all, and in the same order after each restart.

A writer's tasks stage parts; then its driver commits the batch, which names them (rules W1, W2 and W4).  The source
reads committed rows like those of any live reader; their parts are kept until the source's log has them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import PurePosixPath
from typing import Any, Final

import trio

from replicas.connectors.reader import CHUNK_ROWS, Live, RowChunk
from replicas.link.signal import Signal
from replicas.source.pushed_rows import PushedRows, read_batch
from spe.errors import LogCorrupt, RemoteProtocolError
from spe.log.pushed_batches import (
    BATCH_BYTES,
    PART_BYTES,
    PART_OVERHEAD,
    STAGED_BYTES,
    TRAILER_BYTES,
    Part,
    PartReader,
    PushedBatch,
    PushLedger,
    is_part_name,
    push_folder,
    read_ledger,
    read_trailer,
    trailer_of,
)
from spe.runtime.env import AppendFile, Env
from spe.runtime.retried_store import UntilStored
from spe.stream.schema import Schema
from spe.stream.strings import StringPool
from spe.wire.messages.pushes import CommitPushed, DropParts, PartStaged, PushCommitted, PushEnded, StagePart

#: A commit is answered when at most this many bytes wait to be logged, so that a writer is not faster than the source.
PENDING_BYTES: Final = 64 << 20


@dataclass
class _Arriving:
    """A part that is being staged."""

    file: AppendFile
    name: str
    writer: str
    query: str
    batch: int
    pieces: int = 0
    bytes: int = PART_OVERHEAD


class PushIntake(Live):
    """The reader of a source with pushed rows."""

    continues = True

    def __init__(self, schema: Schema, time: str | None, reader: Mapping[str, Any]) -> None:
        self._schema = schema
        self._time = None if time is None else schema.index(time)
        self._writers = tuple(f"writer:{name}" for name in reader["writers"])
        #: Arriving parts by attempt: each ends with its connection, of which a writer has no more than there are
        #: places.
        self._arriving: dict[object, _Arriving] = {}
        #: Staged parts, the oldest first.
        self._staged: dict[str, Part] = {}
        #: Their bytes, by writer.
        self._staged_bytes: Counter[str] = Counter()
        self._ledger = PushLedger()
        self._consumed = 0
        self._committing = trio.Lock()
        #: Parts of the batch that is being written into the ledger: they must not be dropped, and are not in the ledger
        #: yet.
        self._being_committed: frozenset[str] = frozenset()
        self._changed = Signal()
        self._env: Env
        self._folder: PurePosixPath
        self._until_stored: UntilStored
        self._settled: Callable[[int], Awaitable[None]]
        #: Why nothing is taken; None while rows are taken.
        self._stopped: str | None = "the source has not begun to read"
        #: Every writer has ended and all rows are in the log, or the log has the end of the stream.
        self._over = False

    async def open(
        self,
        env: Env,
        folder: PurePosixPath,
        consumed: int,
        settled: Callable[[int], Awaitable[None]],
        *,
        ended: bool = False,
    ) -> None:
        """Reads the committed and staged parts of earlier sessions.

        Args:
          folder: folder of the source.
          consumed: number of the reader's rows that the source's log has.
          settled: waits until the log has so many rows.
          ended: the log has the end of the stream.

        Raises:
          LogCorrupt: the ledger is damaged, or belongs to another log.
        """
        self._env, self._folder, self._consumed, self._settled = env, push_folder(folder), consumed, settled
        self._until_stored = UntilStored(env, f"{folder}: pushed batches")
        path = self._folder / "ledger"
        if env.storage.exists(path):
            try:
                self._ledger = read_ledger(env.storage.read(path))
            except LogCorrupt as error:
                raise LogCorrupt(f"{path}: {error}") from None
        if fault := self._ledger.fault(consumed):
            raise LogCorrupt(f"{path}: {fault}")
        self._read_parts()
        if ended:
            self._over, self._stopped = True, None

    def _read_parts(self) -> None:
        """Keeps the parts that may be needed, and removes the others.  Raises LogCorrupt."""
        needed = {name for pushed in self._ledger.without(self._consumed).pending for name, _ in pushed.parts}
        for name in self._env.storage.list(self._folder / "parts"):
            part = self._trailer(name)
            if part is None or (name not in needed and self._is_of_no_use(part)):
                self._env.storage.remove(self._part(name))
            else:
                self._keep(name, part)
        if missing := sorted(needed - self._staged.keys()):
            raise LogCorrupt(f"{self._part(missing[0])}: a part of a committed batch is missing")

    def _part(self, name: str) -> PurePosixPath:
        return self._folder / "parts" / name

    def _trailer(self, name: str) -> Part | None:
        file = self._env.storage.open(self._part(name))
        try:
            size = file.size()
            return read_trailer(file.read(max(0, size - TRAILER_BYTES), TRAILER_BYTES), size)
        finally:
            file.close()

    # --- staging (W1) ---

    async def stage(self, attempt: object, writer: str, message: StagePart) -> PartStaged | None:
        """Takes a piece of a part; returns the answer to the last one.

        Args:
          attempt: pieces of two attempts never make one part.
        """
        name = message.part
        if message.index == 0:
            self.hung_up(attempt)
            if why := self._unwanted(writer, message):
                return PartStaged(name, why)
            file = self._env.storage.open(self._part(name))
            self._arriving[attempt] = _Arriving(file, name, writer, message.query, message.batch)
        part = self._arriving.get(attempt)
        if part is None or (part.name, part.pieces) != (name, message.index):
            self.hung_up(attempt)
            return PartStaged(name, f"piece {message.index} came without those before it") if message.last else None
        part.pieces += 1
        more = False
        try:
            await self._until_stored(partial(_append, part.file, message.data))
            part.bytes += len(message.data)
            why = self._too_much(part)
            more = not why and not message.last
            return None if more else PartStaged(name, why or await self._complete(part) or "")
        finally:
            if not more:
                self.hung_up(attempt)

    def hung_up(self, attempt: object) -> None:
        """Ends an attempt, whose connection is gone; removes an incomplete part."""
        if (part := self._arriving.pop(attempt, None)) is not None:
            part.file.close()
            if part.name not in self._staged:
                self._env.storage.remove(self._part(part.name))

    def _unwanted(self, writer: str, message: StagePart) -> str | None:
        name = message.part
        if writer not in self._writers or not is_part_name(name):
            return f"{writer} must not push here, or {name!r} is no name of a part"
        if name in self._staged or any(part.name == name for part in self._arriving.values()):
            return f"there is a part {name} already: each attempt has a name of its own"
        return self._behind_end(writer, message.query, message.batch)

    def _behind_end(self, writer: str, query: str, batch: int) -> str | None:
        """Explains why a batch of an ended stream is refused; None if the batch is taken, or was taken before."""
        if self._ledger.has(writer, query, batch):
            return None
        if writer in self._ledger.ended:
            return self._ledger.refuse(writer, query, batch, "")
        return f"the stream has ended: batch {batch} of query {query} is not taken" if self._over else None

    def _too_much(self, growing: _Arriving) -> str | None:
        """Explains why a part must not grow; None if it may.  The oldest parts of its writer make room for it (W4)."""
        if growing.bytes > PART_BYTES:
            return f"more than {PART_BYTES >> 20} MiB: divide the batch into more partitions"
        room = STAGED_BYTES - sum(other.bytes for other in self._arriving.values() if other.writer == growing.writer)
        if self._staged_bytes[growing.writer] <= room:
            return None
        needed = self._needed()
        for name, part in list(self._staged.items()):
            if part.writer == growing.writer and name not in needed:
                self._remove({name})
                if self._staged_bytes[growing.writer] <= room:
                    return None
        return f"the parts that arrive have more than {STAGED_BYTES >> 20} MiB. {_too_large(growing.batch)}"

    async def _complete(self, complete: _Arriving) -> str | None:
        """Checks and stages a complete part; returns None, or the reason for a refusal."""
        size = complete.file.size()
        reader = PartReader(complete.file.read, size, self._schema, StringPool())
        try:
            rows = await self._env.compute.run(lambda: self._checked(reader))
        except (ValueError, RemoteProtocolError) as error:
            return str(error)
        part = Part(complete.writer, complete.query, complete.batch, rows, size, reader.digest)
        await self._until_stored(partial(_append, complete.file, trailer_of(part)))
        await self._until_stored(complete.file.sync)
        self._keep(complete.name, part)
        return None

    def _checked(self, reader: PartReader) -> int:
        """Returns the number of rows of a part.  Raises ValueError, RemoteProtocolError: they do not fit the source."""
        count = 0
        for rows in reader.rows():
            for at, (column, attribute) in enumerate(zip(rows.columns, self._schema)):
                required = not attribute.nullable or at == self._time
                if required and column.valid is not None and not column.valid.all():
                    row = count + int(column.valid.argmin()) + 1
                    raise ValueError(f"row {row} of the part has no {attribute.name}, which is never null")
            count += len(rows)
        return count

    def drop(self, writer: str, message: DropParts) -> None:
        """Removes parts that the writer will not commit."""
        for name in message.parts:
            if (part := self._staged.get(name)) is not None and part.writer == writer:
                self._remove({name} - self._needed())

    # --- committing (W2) ---

    async def commit(self, writer: str, message: CommitPushed) -> PushCommitted:
        """Answers when the batch is durable, and the source is not far behind."""
        async with self._committing:
            why = self._stopped or await self._committed(writer, message)
        while not why and not self._stopped and self._pending() > PENDING_BYTES:
            await self._changed.wait(self._changed.token())
        return PushCommitted(message.batch, why or "")

    def _pending(self) -> int:
        """Bytes that are committed but not in the source's log."""
        return sum(batch.bytes for batch in self._ledger.pending)

    def waits(self) -> str:
        """Explains what a writer without an answer waits for."""
        if full := self._until_stored.disk_full:
            return f"{self._folder}: {full}"
        if pending := self._pending():
            return f"{max(1, pending >> 20)} MiB of committed batches are not in the log yet"
        return "the disk, or the check of a part, takes long"

    async def _committed(self, writer: str, message: CommitPushed) -> str | None:
        query, batch = message.query, message.batch
        if writer not in self._writers:
            return f"{writer} must not push here"
        if why := self._behind_end(writer, query, batch) or self._ledger.refuse(writer, query, batch, message.replaces):
            return why
        if self._ledger.has(writer, query, batch):
            return None  # it was committed, and the answer was lost
        parts = [(name, self._staged.get(name)) for name in message.parts]
        known = [(name, part) for name, part in parts if part is not None and part.writer == writer]
        if len(known) < len(parts) or len(set(message.parts)) < len(parts):
            return f"batch {batch}: of {len(parts)} parts {len(known)} are here; the others were lost, or never came"
        if strange := [name for name, part in known if (part.query, part.batch) != (query, batch)]:
            return f"batch {batch}: part {strange[0]} is of another batch"
        if (size := sum(part.bytes for _, part in known)) > BATCH_BYTES:
            return f"batch {batch} has {size >> 20} MiB; a batch has at most {BATCH_BYTES >> 20}. {_too_large(batch)}"
        self._being_committed = frozenset(message.parts)
        try:
            await self._write(self._ledger.committed(writer, query, batch, known, self._consumed))
        finally:
            self._being_committed = frozenset()
        # Including parts of a query that was replaced.
        self._sweep(lambda part: part.writer == writer and part.query != query)
        return None

    async def _write(self, ledger: PushLedger) -> None:
        assert self._committing.locked(), "W2: one batch is committed at a time"
        assert ledger.rows >= self._ledger.rows, "W2: the ledger takes nothing back"
        await self._until_stored(partial(self._env.storage.write_atomic, self._folder / "ledger", ledger.encode()))
        self._ledger = ledger.without(self._consumed)  # the log may have advanced during the write
        self._changed.wake()

    def _sweep(self, also: Callable[[Part], bool]) -> None:
        """Removes parts that no commit will name."""
        left = {n for n, p in self._staged.items() if self._is_of_no_use(p) or also(p)}
        self._remove(left - self._needed())

    # --- ending (W6) ---

    async def end(self, writer: str) -> PushEnded:
        """Answers when the end of the writer is durable."""
        async with self._committing:
            if why := self._stopped or (None if writer in self._writers else f"{writer} must not push here"):
                return PushEnded(0, (), why)
            if writer not in self._ledger.ended:
                await self._write(replace(self._ledger, ended=self._ledger.ended | {writer}))
                self._sweep(lambda part: part.writer == writer)
            return PushEnded(self._ledger.rows, () if self._over else self._open(), "")

    def _open(self) -> tuple[str, ...]:
        """Writers that have not ended."""
        return tuple(writer for writer in self._writers if writer not in self._ledger.ended)

    def _needed(self) -> set[str]:
        pending = self._ledger.without(self._consumed).pending
        return {name for batch in pending for name, _ in batch.parts} | self._being_committed

    def _is_of_no_use(self, part: Part) -> bool:
        """Returns whether no commit will name a part: its batch is committed, or its writer must not push any more."""
        return part.writer not in self._writers or self._ledger.has(part.writer, part.query, part.batch)

    def _keep(self, name: str, part: Part) -> None:
        assert name not in self._staged, "W1: each attempt has a name of its own"
        self._staged[name] = part
        self._staged_bytes[part.writer] += part.bytes + PART_OVERHEAD

    def _remove(self, names: set[str]) -> None:
        for name in names:
            part = self._staged.pop(name)
            self._staged_bytes[part.writer] -= part.bytes + PART_OVERHEAD
            self._env.storage.remove(self._part(name))

    # --- rows for the source (W2, W4) ---

    async def read(self, env: Env, accept: Callable[[RowChunk], Awaitable[None]]) -> None:
        """Passes on committed rows, from the first one that the source's log does not have.

        Returns when every writer has ended (W6).

        Raises:
          LogCorrupt: a part was damaged since it was written.
        """
        self._stopped = None
        try:
            while True:
                token = self._changed.token()
                pending = self._ledger.without(self._consumed).pending
                if not pending:
                    if not self._open():
                        self._over = True
                        return
                    await self._changed.wait(token)
                    continue
                batch = pending[0]
                rows = await env.compute.run(partial(self._rows, batch))
                for at in range(max(0, self._consumed - batch.after), len(rows), CHUNK_ROWS):
                    await accept(await env.compute.run(partial(rows.chunk, at)))
                del rows
                await self._settled(batch.upto)
                self._consumed = batch.upto
                self._ledger = self._ledger.without(batch.upto)
                self._remove({name for name, _ in batch.parts})
                self._changed.wake()
        finally:
            self._stopped = None if self._over else "the source has stopped to take rows; its status says why"
            self._changed.wake()

    def _rows(self, batch: PushedBatch) -> PushedRows:
        """Opens the rows of a batch.  Raises LogCorrupt."""
        sizes = [self._staged[name].bytes for name, _ in batch.parts]
        return read_batch(self._env.storage, self._folder / "parts", batch, sizes, self._schema, self._time)


def _too_large(batch: int) -> str:
    """Returns advice on a batch that is too large: Spark's checkpoint repeats it, because it is written before the
    batch runs.
    """
    return (
        f"Nothing of it is taken, and Spark repeats it after each restart, unless you remove offsets/{batch} and "
        f"offsets/.{batch}.crc from the checkpoint of the query (where it reads files, also sources/*/N and .N.crc, "
        f'where offsets/{batch} says "logOffset":N) and limit what a trigger of the query takes'
    )


async def _append(file: AppendFile, data: bytes) -> None:
    """Appends all of the data, or nothing."""
    before = file.size()
    try:
        file.append(data)
    except OSError:
        file.truncate(before)
        raise
