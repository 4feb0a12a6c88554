"""Reads files of a directory as they appear, each once (rule S9).

Before a file is read, its name is in a list on the source's disk, which fixes the order; a cursor in the log says how
many files of that list are behind us, and how many rows of the next one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping
from contextlib import closing
from functools import partial
from typing import Any, TypeVar

import numpy as np

from replicas.connectors.files.file_list import FileList, FilePosition, Listed, decoded, encoded
from replicas.connectors.files.file_rows import FileRows
from replicas.connectors.files.file_store import FolderRefused, file_store, may_come_back
from replicas.connectors.reader import Malformed, Resumable, RowChunk
from spe.errors import LogFull, ServerAway, SpeError
from spe.log import SegmentedLog
from spe.runtime.env import Env
from spe.runtime.server_trouble import Backoff
from spe.stream.batch import Rows
from spe.stream.schema import Schema

T = TypeVar("T")
Accept = Callable[[RowChunk], Awaitable[None]]


class BadFile(SpeError):
    """A file cannot be read, and trying again does not mend it."""


class DirectoryReader(Resumable):
    """See the module; options are those that ``spe.connectors.directory`` declares.

    Raises:
      SpeError: schema and options do not go together, or a package is missing.
    """

    def __init__(self, schema: Schema, time: str | None, reader: Mapping[str, Any]) -> None:
        self._schema = schema
        self._store = file_store(reader)
        self._rows = FileRows(schema, time, reader)
        self._options = reader
        self._every_s = reader.get("every", 1_000_000) / 1e6
        self._skips = reader.get("bad_files") == "skip"
        #: Rows that were handed over since the start.
        self._count = 0
        #: Records of the list that are still to be written, and files in them; and whether all is synced.
        self._unwritten: list[bytes] = []
        self._listed: list[Listed] = []

    async def read(self, env: Env, accept: Accept) -> None:
        """Raises SpeError: see the declaration."""
        self._env, self.first_reading = env, True
        self._position = FilePosition.decode(self.cursor)
        self._files = FileList(self._options, self._position)
        #: Whether the folder could be read, now or before the last restart.
        self._reached = False
        self._log = await SegmentedLog.open(
            env.storage, self.folder / "files", lambda record: self._files.add(decoded(record.body))
        )
        try:
            self._files.check(self._position, self._store.name)
            self._reached = bool(self._files.count)
            await self._follow(accept)
        finally:
            self._log.close()

    async def _follow(self, accept: Accept) -> None:
        """Reads what there is, and looks again, until nothing more will come."""
        backoff, last = Backoff(self._env), False
        while True:
            try:
                while self._files.waiting:
                    await self._read_next(accept)
                self.first_reading = self._files.first_left
                began_us = self._env.clock.monotonic_us()
                news, ends = await self._look(accept)
                took_s = (self._env.clock.monotonic_us() - began_us) / 1e6
            except ServerAway as error:
                self.away = f"{error}; trying again"
                await backoff.wait()
                continue
            self.away = ""
            backoff.over()
            if news:
                continue
            if last and ends:
                return
            # Files may have come while we looked, before the one that says that none does: so one more look.
            last = ends
            if not ends:
                await self._env.clock.sleep(max(self._every_s, took_s))

    # --- what is there ---

    async def _look(self, accept: Accept) -> tuple[bool, bool]:
        """Writes down which files are new.  Returns: are there any; and is that all that will come?

        Raises:
          ServerAway: the folder cannot be read now, or the disk of the source is full.
        """
        await self._write()
        found = await self._run(self._store.list)
        self._reached = True
        files = self._files
        for changed in await self._run(partial(files.changed, found)):
            known = files.version(changed.path)
            why = f"it changed after it was read, {_difference(known, changed.version)}; what is new in it is not taken"
            if not self._skips:
                raise SpeError(
                    f"{self._where(changed.path)}: {why}.  Put new rows into a file of another name, and restore or "
                    "remove this one; or set bad_files: skip"
                )
            await self._note([changed])
            await self._leave_out(accept, changed.path, why, self._position)
        news = await self._run(partial(files.news, found, self._env.clock.monotonic_us()))
        await self._note(news)
        ends = files.ends(found) or not self._options.get("follow", True)
        return bool(news), ends and not news and not files.settling

    async def _note(self, files: list[Listed]) -> None:
        """Puts files into the list, on the disk first."""
        if files:
            self._unwritten += encoded(files)
            self._listed += files
            await self._write()

    async def _write(self) -> None:
        """Raises ServerAway while there is no room for what is to be written."""
        try:
            while self._unwritten:
                self._log.append(self._unwritten[0])
                del self._unwritten[0]
            await self._log.sync()
        except LogFull as error:
            raise ServerAway(f"{self._store.name} is not read: {error}") from error
        listed, self._listed = self._listed, []
        self._files.add(listed)

    # --- one file ---

    async def _read_next(self, accept: Accept) -> None:
        """Raises ServerAway: the rest of the file cannot be read now; SpeError: it stops the source."""
        path, position = self._files.waiting[0], self._position
        behind = FilePosition(position.files + 1)
        try:
            if not position.rows:
                await self._renew(path)
            with closing(self._chunks(path, position.rows)) as chunks:
                chunk = await self._next(chunks)
                while chunk is not None:
                    following = await self._next(chunks)
                    rows = chunk.first + chunk.taken
                    await self._hand_over(
                        accept, chunk, behind if following is None else FilePosition(position.files, path, rows)
                    )
                    chunk = following
        except BadFile as error:
            read = self._position.rows
            why = f"{str(error).removeprefix(f'{path}: ')}; " + (
                f"{read} of its rows were taken before" if read else "nothing of it was taken"
            )
            if not self._skips:
                raise SpeError(f"{self._where(path)}: {why}.  {_advice(read)}, or set bad_files: skip") from error
            await self._renew_left_out(path)
            await self._leave_out(accept, path, why, behind)
        self._position = behind
        self._files.waiting.popleft()

    async def _renew(self, path: str) -> None:
        """A file of which nothing was read is read as it is now, not as it was when it was new."""
        found = await self._run(partial(self._store.look, path))
        if found is None:
            raise BadFile("it was removed before it was read")
        if found != self._files.version(path):
            await self._note([Listed(path, found)])

    async def _renew_left_out(self, path: str) -> None:
        """What is left out is known as it is, so that it is not said again."""
        found = await self._run(partial(self._store.look, path))
        if found is not None and found != self._files.version(path):
            await self._note([Listed(path, found)])

    async def _next(self, chunks: Iterator[RowChunk]) -> RowChunk | None:
        return await self._run(lambda: next(chunks, None))

    async def _run(self, function: Callable[[], T]) -> T:
        """Off the loop.  A folder that could be read once will be again: then FolderRefused becomes ServerAway."""
        try:
            return await self._env.compute.run(function)
        except FolderRefused as error:
            if self._reached:
                raise ServerAway(str(error)) from error
            raise

    def _chunks(self, path: str, skip: int) -> Generator[RowChunk, None, None]:
        """The rows of a file, from row ``skip`` on.  Blocks.  Raises BadFile, ServerAway."""
        store, version = self._store, self._files.version(path)
        if skip and (now := store.look(path)) != version:
            raise BadFile("it was removed" if now is None else f"it changed, {_difference(version, now)}")
        if not version.size:
            return
        try:
            with store.open(path) as file, closing(self._rows.read(file, path, skip)) as chunks:
                for chunk in chunks:
                    if chunk.taken:
                        yield chunk
        except OSError as error:
            if may_come_back(error):
                trouble = store.trouble(error)
                raise trouble if isinstance(trouble, ServerAway) else ServerAway(str(trouble)) from error
            raise BadFile("it was removed" if isinstance(error, FileNotFoundError) else str(error)) from error
        except SpeError as error:
            raise BadFile(str(error)) from error
        if (now := store.look(path)) is not None and now != version:
            raise BadFile(f"it changed while it was read, {_difference(version, now)}")

    # --- what goes into the log ---

    async def _hand_over(self, accept: Accept, chunk: RowChunk, position: FilePosition) -> None:
        chunk.first, self._count = self._count, self._count + chunk.taken
        chunk.cursor = position.encode()
        await accept(chunk)
        self._position = position

    async def _leave_out(self, accept: Accept, path: str, why: str, position: FilePosition) -> None:
        """A file counts as one row that cannot be understood."""
        columns = Rows.empty(self._schema).columns
        events = np.zeros(0, np.int64)
        bad = Malformed(0, why, "", path)
        await self._hand_over(accept, RowChunk(0, 1, events, columns, [bad], events), position)

    def _where(self, path: str) -> str:
        return f"{self._store.name}/{path}"


def _advice(read: int) -> str:
    if read:
        return "Restore it as it was"
    return "Put it right, renamed into place when it is complete, and start the source again"


def _difference(before: Any, now: Any) -> str:
    if before.size != now.size:
        return f"from {before.size:,} to {now.size:,} bytes"
    return "in its time of change"
