"""Reads files of a directory as they appear, each once (rule S9).

Before a file is read, its name is written to a list on the source's disk, which fixes the order; a cursor in the log
has the number of files of that list that were read, and the number of rows of the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing
from functools import partial
from typing import Any, TypeVar

import numpy as np

from replicas.connectors.files.file_list import FileList, FilePosition, Listed, decoded, encoded
from replicas.connectors.files.file_rows import FileRows
from replicas.connectors.files.file_store import FolderRefused, file_store, may_come_back
from replicas.connectors.reader import Accept, Malformed, Resumable, RowChunk
from spe.errors import LogFull, ServerAway, SpeError
from spe.log import SegmentedLog
from spe.runtime.env import Env
from spe.runtime.server_trouble import Backoff
from spe.stream.batch import Rows
from spe.stream.schema import Schema

T = TypeVar("T")


class BadFile(SpeError):
    """A file cannot be read, and a retry does not help."""


class DirectoryReader(Resumable):
    """Follows a directory; see the module.  Options are declared in ``spe.connectors.directory``.

    Raises:
      SpeError: schema and options do not fit, or a package is missing.
    """

    def __init__(self, schema: Schema, time: str | None, reader: Mapping[str, Any]) -> None:
        self._schema = schema
        self._store = file_store(reader)
        self._rows = FileRows(schema, time, reader)
        self._options = reader
        self._every_s = reader.get("every", 1_000_000) / 1e6
        self._skips = reader.get("bad_files") == "skip"
        #: Number of rows passed on since the start.
        self._count = 0
        #: Unwritten records of the list, the number of files in them, and whether all records are synced.
        self._unwritten: list[bytes] = []
        self._listed: list[Listed] = []

    async def read(self, env: Env, accept: Accept) -> None:
        """Reads files until nothing more will come.  Raises SpeError: see the declaration."""
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
        """Reads the files, and looks for new ones, until nothing more will come."""
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
            # Files may have come before the end marker but after the look, so one more look follows.
            last = ends
            if not ends:
                await self._env.clock.sleep(max(self._every_s, took_s))

    # --- looking for files ---

    async def _look(self, accept: Accept) -> tuple[bool, bool]:
        """Lists new files.  Returns whether there are any, and whether no more will come.

        Raises:
          ServerAway: the folder cannot be read now, or the disk of the source is full.
        """
        await self._write()
        versions = await self._run(self._store.list)
        self._reached = True
        files = self._files
        for changed in await self._run(partial(files.changed, versions)):
            known = files.version(changed.path)
            why = f"it changed after it was read, {_difference(known, changed.version)}; what is new in it is not taken"
            if not self._skips:
                raise SpeError(
                    f"{self._where(changed.path)}: {why}.  Put new rows into a file of another name, and restore or "
                    "remove this one; or set bad_files: skip"
                )
            await self._note([changed])
            await self._leave_out(accept, changed.path, why, self._position)
        news = await self._run(partial(files.news, versions, self._env.clock.monotonic_us()))
        await self._note(news)
        ends = files.ends(versions) or not self._options.get("follow", True)
        return bool(news), ends and not news and not files.settling

    async def _note(self, files: list[Listed]) -> None:
        """Adds files to the list, on the disk first."""
        if files:
            self._unwritten += encoded(files)
            self._listed += files
            await self._write()

    async def _write(self) -> None:
        """Writes the list.  Raises ServerAway: the disk is full."""
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
        """Reads the next file.  Raises ServerAway: the rest cannot be read now; SpeError: the file stops the source."""
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
        """Updates the version of a file of which nothing was read, so that it is read as it is now."""
        version = await self._run(partial(self._store.look, path))
        if version is None:
            raise BadFile("it was removed before it was read")
        if version != self._files.version(path):
            await self._note([Listed(path, version)])

    async def _renew_left_out(self, path: str) -> None:
        """Updates the version of a file that is left out, so that it is not reported again."""
        version = await self._run(partial(self._store.look, path))
        if version is not None and version != self._files.version(path):
            await self._note([Listed(path, version)])

    async def _next(self, chunks: Iterator[RowChunk]) -> RowChunk | None:
        return await self._run(lambda: next(chunks, None))

    async def _run(self, function: Callable[[], T]) -> T:
        """Runs a function off the loop.  After the folder could be read once, FolderRefused becomes ServerAway."""
        try:
            return await self._env.compute.run(function)
        except FolderRefused as error:
            if self._reached:
                raise ServerAway(str(error)) from error
            raise

    def _chunks(self, path: str, skip: int) -> Generator[RowChunk, None, None]:
        """Yields the rows of a file from row ``skip`` on.  Blocks.  Raises BadFile, ServerAway."""
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

    # --- the log ---

    async def _hand_over(self, accept: Accept, chunk: RowChunk, position: FilePosition) -> None:
        chunk.first, self._count = self._count, self._count + chunk.taken
        chunk.cursor = position.encode()
        await accept(chunk)
        self._position = position

    async def _leave_out(self, accept: Accept, path: str, why: str, position: FilePosition) -> None:
        """Counts a file as one malformed row."""
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
