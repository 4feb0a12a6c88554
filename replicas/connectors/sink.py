"""Sinks: files of a client's changes for other programs to read.

Modes.  *stable*: final tuples only, each exactly once by (channel, id).  *corrections*: every insert, with tentative
ones marked, every undo ("delete all of this channel with a larger id"), and done when a correction is complete, so that
a reader who applies them in order always holds the newest answer, and in the end the stable one.  *current*, for
destinations that can delete rows: the newest answer itself.

Writing is synchronous and may block on the disk, so call it off the event loop.  Sinks on a server derive from
``replicas.connectors.server_sink``.
"""

from __future__ import annotations

import json
from codecs import getincrementaldecoder
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from copy import copy
from pathlib import PurePosixPath
from typing import Any, Final, NamedTuple, Protocol

from replicas.connectors.formats.json_text import json_text
from spe.connectors.declaration import CORRECTIONS, STABLE
from spe.errors import LogCorrupt
from spe.log.format import write_whole
from spe.runtime.env import AppendFile, Compute, Storage
from spe.stream.batch import Batch, RecDone, Undo
from spe.stream.change import Change
from spe.stream.ids import Channel
from spe.stream.names import Kind
from spe.stream.schema import Schema

#: Names that sinks add to the attributes.
RESERVED: Final = ("_kind", "_tentative", "_partition", "_id", "_time")

#: Time between two syncs of a JSON lines file: a power failure may undo as much.
SYNC_US: Final = 1_000_000

#: Bytes per read when a file is searched for its last entries.
_BLOCK: Final = 1 << 16
#: A hole left by a power failure is searched for so far from the end; usually less is written between two syncs.
_UNSYNCED_BYTES: Final = 64 << 20
#: Bytes at the beginning of a file that distinguish a text from the remains of a power failure.
_HEAD_BYTES: Final = 16


class Sink(Protocol):
    """A destination for the changes of some channels.

    Attributes:
      period_us: longest time between two commits, even while nothing comes: acknowledgements wait for them.
    """

    period_us: int

    def reached(self, channel: Channel) -> int:
        """Returns the id up to which every stable tuple of the channel is here, where a restarted client may
        continue.
        """
        ...

    def position(self, channel: Channel) -> int:
        """Returns the id up to which every stable tuple of the channel survives a power failure."""
        ...

    def write(self, change: Change) -> None:
        """Takes a change; tuples that the sink already has are skipped.

        Raises:
          OSError: the disk refused.  If it is full, nothing has changed, and the change can be written again later.
          SpeError: as :meth:`commit`.
        """
        ...

    async def commit(self, compute: Compute) -> None:
        """Makes everything taken so far safe and visible.  Nothing may be written during the call.

        Raises:
          OSError: the disk refused.  If it is full, this can be called again later.
          SpeError: buffered changes are lost; a restarted client continues after the complete ones.
        """
        ...

    def close(self) -> None:
        """Makes everything taken so far visible, and closes the files."""
        ...


class ChannelEntry(NamedTuple):
    """A step of a sink; of a sink on a server, within a transaction.

    Attributes:
      kind: ``insert``: the rows of ``batch``.  ``undo``: all rows of the channel with an id after ``id`` are withdrawn;
        they are tentative.  ``done``: a correction is complete (mode corrections only).
      id: the last id of ``batch``, or see ``kind``; of a ``done`` the last stable one.
      batch: its ``kind`` says whether its rows are stable or tentative, ``row_ids()`` are ids, 1, 2, 3, … in a channel,
        ``rows.time`` tuple times, and ``rows.to_tuples()`` or ``rows.columns`` the attributes.
    """

    channel: Channel
    kind: str
    id: int
    batch: Batch | None = None

    @property
    def tentative(self) -> bool:
        return self.batch is not None and self.batch.kind is Kind.TENTATIVE

    @property
    def rows(self) -> int:
        """Number of rows in the mode corrections, in which a marker is a row, too."""
        return 1 if self.batch is None else len(self.batch)


def named_lines(entry: ChannelEntry, schema: Schema, corrections: bool) -> Iterable[bytes]:
    """``{"_stream": "totals", "_partition": 0, "_id": 7, …}``: one line per tuple, undo or end of a correction."""
    channel = entry.channel
    begin = json.dumps({"_stream": channel.stream, "_partition": channel.partition}, ensure_ascii=False)
    if entry.batch is None:
        return [f'{begin[:-1]}, "_kind": "{entry.kind}", "_id": {entry.id}}}\n'.encode()]
    return json_text(entry.batch, schema, corrections, begin)


class SinkCursor:
    """Decides which of a channel's changes are new to a sink.  Pure.

    Args:
      position: last stable id that the sink holds.
      held: whether the sink holds tentative tuples after it.

    Attributes:
      position, held: the same, once all returned entries are written.
    """

    def __init__(self, channel: Channel, mode: str, position: int = 0, held: bool = False) -> None:
        self._channel = channel
        self._mode = mode
        self.position = position
        self.held = held
        #: Id of the last tentative tuple since the last undo.
        self._tentative_id = 0

    def begin(self) -> ChannelEntry | None:
        """Withdraws the tentative tuples of an earlier session: no producer will send an undo for them."""
        return self._undo() if self.held else None

    def take(self, change: Change) -> ChannelEntry | None:
        element = change.element
        if isinstance(element, Batch):
            if element.kind is Kind.STABLE:
                return self._stable(element)
            if self._mode != STABLE and len(element):
                self.held = True
                # A client that begins behind this sink counts from its own position, and an undo to ours follows.
                element = element.numbered_after(max(self.position, self._tentative_id))
                self._tentative_id = element.upto_id
                return ChannelEntry(self._channel, "insert", element.upto_id, element)
        elif self._mode != STABLE:
            if isinstance(element, Undo):
                return self._undo() if self.held else None
            if isinstance(element, RecDone) and self._mode == CORRECTIONS:
                return ChannelEntry(self._channel, "done", self.position)
        return None

    def _undo(self) -> ChannelEntry:
        self.held = False
        self._tentative_id = 0
        return ChannelEntry(self._channel, "undo", self.position)

    def _stable(self, batch: Batch) -> ChannelEntry | None:
        if batch.upto_id <= self.position:
            return None
        batch = batch.after(self.position)
        self.position = batch.upto_id
        return ChannelEntry(self._channel, "insert", batch.upto_id, batch) if len(batch) else None


class JsonLinesSink:
    """Writes one JSON object per line, to a file STREAM.PARTITION.jsonl per channel.

    Stable: ``{"_id": 7, "_time": "…Z", attributes}``.  Corrections: ``"_kind"`` and ``"_tentative"`` as well; an undo
    is ``{"_kind": "undo", "_id": 5}``, the end of a correction ``{"_kind": "done", "_id": 9}``.  Timestamps are ISO
    8601 in UTC; floats that JSON lacks are the strings "NaN", "Infinity", "-Infinity".

    Args:
      storage, folder: location.

    Raises:
      LogCorrupt: a file's last lines are of another mode, or it is another text.
    """

    period_us = SYNC_US

    def __init__(self, storage: Storage, folder: PurePosixPath, schemas: Mapping[Channel, Schema], mode: str) -> None:
        self._files: dict[Channel, _JsonLinesFile] = {}
        try:
            for channel, schema in schemas.items():
                self._files[channel] = _JsonLinesFile(storage, folder, channel, schema, mode)
        except BaseException:
            self.close()
            raise

    def reached(self, channel: Channel) -> int:
        return self._files[channel].reached

    def position(self, channel: Channel) -> int:
        return self._files[channel].synced

    def write(self, change: Change) -> None:
        self._files[change.channel].write(change)

    async def commit(self, compute: Compute) -> None:
        for file in self._files.values():
            await file.commit()

    def close(self) -> None:
        for file in self._files.values():
            file.close()


class _JsonLinesFile:
    """The file of one channel.

    Attributes:
      synced: last stable id that survives a power failure; the lines of an earlier session have to be synced.
    """

    def __init__(self, storage: Storage, folder: PurePosixPath, channel: Channel, schema: Schema, mode: str) -> None:
        self._schema = schema
        self._mode = mode
        self._path = folder / f"{channel.stream}.{channel.partition}.jsonl"
        self._file = storage.open(self._path)
        try:
            self._cursor = SinkCursor(channel, mode, *self._find_end())
        except BaseException:
            self._file.close()
            raise
        #: The undo of the last session's tentative tuples, to be written first.
        self._withdrawn = self._cursor.begin()
        with suppress(OSError):  # without room it is written with the next change
            self._withdraw()
        self.synced = 0

    @property
    def reached(self) -> int:
        return self._cursor.position

    def write(self, change: Change) -> None:
        self._withdraw()
        before = copy(self._cursor)
        if (entry := self._cursor.take(change)) is not None:
            try:
                self._append(entry)
            except OSError:
                self._cursor = before
                raise

    def _withdraw(self) -> None:
        if self._withdrawn is not None:
            self._append(self._withdrawn)
            self._withdrawn = None

    def _append(self, entry: ChannelEntry) -> None:
        if entry.batch is None:
            write_whole(self._file, (json.dumps({"_kind": entry.kind, "_id": entry.id}) + "\n").encode())
        else:
            write_whole(self._file, *json_text(entry.batch, self._schema, self._mode == CORRECTIONS))

    async def commit(self) -> None:
        self._withdraw()
        if self.synced != self._cursor.position:
            await self._file.sync()
            self.synced = self._cursor.position

    def close(self) -> None:
        self._file.close()

    def _find_end(self) -> tuple[int, bool]:
        """Returns (last stable id, tentative tuples follow) of earlier sessions.

        Cuts an incomplete line from the end, and everything from a hole on: a kill tears a line, and a power failure
        may leave any bytes in place of unsynced ones, also before lines that are whole.
        """
        held: bool | None = None
        size, end = self._file.size(), _hole(self._file)
        for offset, line in _backwards(self._file, end):
            try:
                entry = json.loads(line) if line.endswith(b"\n") else None
            except ValueError:  # including bytes that are no text
                entry = None
            if not isinstance(entry, dict) and held is None:
                end = offset
                continue
            try:
                id_, kind, tentative = self._parse(entry)
            except (ValueError, TypeError, KeyError) as error:
                raise LogCorrupt(f"{self._path} at offset {offset}: no line of a {self._mode} sink") from error
            if held is None and kind != "done":
                held = tentative
            if not tentative:
                break
        else:
            id_ = 0
        if end == 0 and _is_foreign(self._file.read(0, _HEAD_BYTES)):
            raise LogCorrupt(f"{self._path}: holds something else than the lines of a sink; give the sink another path")
        if end < size:
            self._file.truncate(end)
        return id_, bool(held)

    def _parse(self, entry: Any) -> tuple[int, str, bool]:
        """Returns (id, kind, tentative) of a line."""
        if self._mode == STABLE:
            if "_kind" in entry:
                raise ValueError("a change, not a final tuple")
            return int(entry["_id"]), "insert", False
        kind = str(entry["_kind"])
        return int(entry["_id"]), kind, kind == "insert" and bool(entry["_tentative"])


def _is_foreign(head: bytes) -> bool:
    """Returns whether this is the beginning of another text; the remains of a power failure are no text."""
    try:
        text = getincrementaldecoder("utf-8")().decode(head)  # the last character may be cut
    except UnicodeDecodeError:
        return False
    printable = all(c.isprintable() or c in "\t\r\n" for c in text)
    return len(head) == _HEAD_BYTES and printable and not text.startswith('{"_')


def _hole(file: AppendFile) -> int:
    """Returns where the first line near the end begins that is no JSON object; the size if there is none."""
    size = file.size()
    at = offset = max(0, size - _UNSYNCED_BYTES)
    whole, rest = at == 0, b""
    while at < size:
        data = file.read(at, min(_BLOCK, size - at))
        at += len(data)
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            text = line.strip()
            if whole and text and not (text.startswith(b"{") and text.endswith(b"}") and b"\0" not in text):
                return offset
            whole = True  # the first one may have begun earlier
            offset += len(line) + 1
    return size


def _backwards(file: AppendFile, end: int) -> Iterator[tuple[int, bytes]]:
    """Yields (offset, line) from the last line before ``end`` to the first."""
    at = end
    rest = b""
    while at:
        size = min(_BLOCK, at)
        at -= size
        lines = (file.read(at, size) + rest).splitlines(keepends=True)
        rest = lines.pop(0) if at else b""
        offset = at + len(rest) + sum(map(len, lines))
        for line in reversed(lines):
            offset -= len(line)
            yield offset, line
