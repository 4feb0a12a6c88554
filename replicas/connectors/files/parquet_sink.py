"""Writes changes as Parquet: a folder per stream, with part files that appear when they are complete.

A part's name has its position: PARTITION-NUMBER-POSITION.parquet, with ``-tentative`` before the suffix if it ends in
tentative tuples that it does not undo.  So a restart needs no other state, and a crash leaves readable parts and one
hidden file, which the next start removes.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import numpy as np

from replicas.connectors.files.part_files import PartFiles
from replicas.connectors.sink import ChannelEntry, SinkCursor
from spe.connectors.declaration import CORRECTIONS
from spe.errors import ConfigError, LogCorrupt
from spe.runtime.disk_trouble import is_full, sync_failed
from spe.runtime.env import Compute
from spe.stream.batch import Column, concat_rows
from spe.stream.change import Change
from spe.stream.ids import Channel
from spe.stream.schema import AttributeType, Schema

try:
    import pyarrow as pa
    import pyarrow.parquet as pq
except ImportError as error:  # pragma: no cover - the extra is installed wherever tests run
    raise ConfigError(["Parquet needs pyarrow: pip install '.[parquet]'"]) from error

#: Rows in a row group: held in memory per channel, and the least that a reader loads.
GROUP_ROWS: Final = 64_000
#: A part is complete at this size, …
PART_ROWS: Final = 2_000_000
#: … or when it has been open for this long: acknowledgements wait for it.
PART_US: Final = 10_000_000

_NAME: Final = re.compile(r"(\d{4,})-(\d{8,})-(\d+)(-tentative)?\.parquet")

ARROW_TYPES: Final[Mapping[AttributeType, Any]] = {
    AttributeType.INT64: pa.int64(),
    AttributeType.FLOAT64: pa.float64(),
    AttributeType.BOOL: pa.bool_(),
    AttributeType.STRING: pa.string(),
    AttributeType.TIMESTAMP: pa.timestamp("us", tz="UTC"),
}


def arrow_schema(schema: Schema, mode: str) -> Any:
    """Returns the columns of a part: those of the sink, then the attributes."""
    fields = [
        pa.field("_partition", pa.int32(), nullable=False),
        pa.field("_id", pa.int64(), nullable=False),
        pa.field("_time", ARROW_TYPES[AttributeType.TIMESTAMP], nullable=mode == CORRECTIONS),
    ]
    if mode == CORRECTIONS:
        fields = [
            pa.field("_kind", pa.string(), nullable=False),
            pa.field("_tentative", pa.bool_(), nullable=False),
            *fields,
        ]
    fields += [pa.field(a.name, ARROW_TYPES[a.type], nullable=a.nullable or mode == CORRECTIONS) for a in schema]
    return pa.schema(fields)


def arrow_array(column: Column, type_: AttributeType) -> Any:
    """Converts a column to an Arrow array; numbers by their buffers, strings per distinct text."""
    mask = None if column.valid is None else ~column.valid
    if type_ is AttributeType.STRING:
        assert column.dictionary is not None
        codes, places = np.unique(column.values, return_inverse=True)
        texts = pa.array(column.dictionary.texts().take(codes), pa.string())
        return texts.take(pa.array(places, pa.int32(), mask=mask))
    if type_ is AttributeType.TIMESTAMP:
        return pa.array(column.values, pa.int64(), mask=mask).view(ARROW_TYPES[type_])
    return pa.array(column.values, ARROW_TYPES[type_], mask=mask)


def arrow_rows(entries: Sequence[ChannelEntry], schema: Schema) -> dict[str, Any]:
    """Returns ``_id``, ``_time`` and the attributes of entries of a sink: of inserts, or of markers of one kind."""
    stamp, batches = ARROW_TYPES[AttributeType.TIMESTAMP], [e.batch for e in entries if e.batch is not None]
    if not batches:
        ids = pa.array([e.id for e in entries], pa.int64())
        nulls = {a.name: pa.nulls(len(ids), ARROW_TYPES[a.type]) for a in schema}
        return {"_id": ids, "_time": pa.nulls(len(ids), stamp), **nulls}
    rows = concat_rows([b.rows for b in batches])
    return {
        "_id": pa.array(np.concatenate([b.row_ids() for b in batches])),
        "_time": pa.array(rows.time, pa.int64()).view(stamp),
        **{a.name: arrow_array(c, a.type) for a, c in zip(schema, rows.columns)},
    }


class ParquetSink:
    """A sink of Parquet files; see the module.

    Args:
      folder: made if it does not exist; each stream gets a folder below it.
      group_rows, part_rows: largest row group and part.
      files: file system of the folder.

    Raises:
      LogCorrupt: an older part has other columns: another schema or mode was written here.
    """

    period_us = PART_US

    def __init__(
        self,
        folder: Path,
        schemas: Mapping[Channel, Schema],
        mode: str,
        *,
        group_rows: int = GROUP_ROWS,
        part_rows: int = PART_ROWS,
        files: PartFiles | None = None,
    ) -> None:
        self._folder = folder
        files = files if files is not None else PartFiles()
        self._channels = {
            channel: _ChannelParts(files, folder / channel.stream, channel, schema, mode, group_rows, part_rows)
            for channel, schema in schemas.items()
        }

    def reached(self, channel: Channel) -> int:
        return self._channels[channel].complete

    def position(self, channel: Channel) -> int:
        return self._channels[channel].complete

    def write(self, change: Change) -> None:
        self._channels[change.channel].write(change)

    async def commit(self, compute: Compute) -> None:
        await compute.run(self._complete)

    def close(self) -> None:
        with suppress(OSError):  # only complete parts count
            self._complete()

    def _complete(self) -> None:
        for parts in self._channels.values():
            parts.complete_part()


class _ChannelParts:
    """The parts of one channel.

    Attributes:
      complete: last stable id in a complete part.
    """

    def __init__(
        self,
        files: PartFiles,
        folder: Path,
        channel: Channel,
        schema: Schema,
        mode: str,
        group_rows: int,
        part_rows: int,
    ) -> None:
        self._files = files
        self._folder = folder
        self._channel = channel
        self._schema = schema
        self._mode = mode
        self._group_rows = group_rows
        self._part_rows = part_rows
        self._arrow_schema = arrow_schema(schema, mode)
        self._entries: list[ChannelEntry] = []
        self._buffered = 0
        self._written = 0
        self._writer: Any = None
        self._part: _OpenPart | None = None
        files.make_folder(folder)
        self._number, self.complete, held = self._find_end()
        files.sync_folder(folder)  # the last session may have ended before it synced a part's name
        self._open_path = folder / f".{channel.partition:04d}-{self._number:08d}.open"
        self._cursor = SinkCursor(channel, mode, self.complete, held)
        self._take(self._cursor.begin())

    def _find_end(self) -> tuple[int, int, bool]:
        """Returns (number of the next part, last stable id, tentative tuples follow); removes an incomplete part."""
        last, path = (0, 0, False), None
        for name in self._files.names(self._folder):
            if name.startswith(f".{self._channel.partition:04d}-") and name.endswith(".open"):
                self._files.remove(self._folder / name)
            match = _NAME.fullmatch(name)
            if match is not None and int(match[1]) == self._channel.partition and int(match[2]) >= last[0]:
                last, path = (int(match[2]) + 1, int(match[3]), match[4] is not None), self._folder / name
        if path is not None and not self._schema_of(path).equals(self._arrow_schema):
            raise LogCorrupt(f"{path}: other columns than the {self._mode} sink of this stream writes")
        return last

    def _schema_of(self, path: Path) -> Any:
        try:
            return pq.read_schema(self._files.readable(path))
        except pa.ArrowInvalid as error:
            raise LogCorrupt(f"{path}: damaged, expected a Parquet file: {error}") from error

    def write(self, change: Change) -> None:
        self._store()
        self._take(self._cursor.take(change))
        with suppress(DiskFull):  # the change is taken: its rows are stored before the next one
            self._store()

    def _store(self) -> None:
        """Stores encoded rows.  Raises DiskFull: there is no room; nothing is lost by that."""
        if self._written + self._buffered >= self._part_rows or (self._part is not None and self._writer is None):
            self.complete_part()
        elif self._part is not None:
            self._part.store()

    def _take(self, entry: ChannelEntry | None) -> None:
        if entry is None:
            return
        self._entries.append(entry)
        self._buffered += entry.rows
        if self._buffered >= self._group_rows:
            self._write_groups()

    def _write_groups(self) -> None:
        if self._writer is None:
            self._part = _OpenPart(self._files, self._open_path)
            self._writer = pq.ParquetWriter(self._part, self._arrow_schema, compression="zstd")
        tables = []
        run: list[ChannelEntry] = []
        for entry in self._entries:
            if run and (entry.batch is None or run[0].batch is None or entry.batch.kind is not run[0].batch.kind):
                tables.append(self._table(run))
                run = []
            run.append(entry)
        tables.append(self._table(run))
        self._writer.write_table(pa.concat_tables(tables), row_group_size=self._group_rows)
        self._written += self._buffered
        self._entries, self._buffered = [], 0

    def _table(self, entries: list[ChannelEntry]) -> Any:
        """Returns the rows of inserts of one kind, or of one marker."""
        arrays, first = arrow_rows(entries, self._schema), entries[0]
        n = len(arrays["_id"])
        arrays["_partition"] = pa.array(np.full(n, self._channel.partition, np.int32))
        if self._mode == CORRECTIONS:
            arrays["_kind"] = pa.repeat(first.kind, n)
            arrays["_tentative"] = pa.repeat(first.tentative, n)
        names = self._arrow_schema.names
        return pa.Table.from_arrays([arrays[name] for name in names], schema=self._arrow_schema)

    def complete_part(self) -> None:
        """Ends the open part: all its rows are on disk before its name appears.

        Raises:
          DiskFull: there is no room; can be called again.
          OSError: the disk failed permanently; a part with a failed sync gets no name.
        """
        if self._entries:
            self._write_groups()
        if self._part is None:
            return
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        held = "-tentative" if self._cursor.held else ""
        name = f"{self._channel.partition:04d}-{self._number:08d}-{self._cursor.position}{held}.parquet"
        self._part.complete(self._folder / name)
        self._part = None
        self._number += 1
        self._open_path = self._folder / f".{self._channel.partition:04d}-{self._number:08d}.open"
        self._written = 0
        self.complete = self._cursor.position


class DiskFull(OSError):
    """The disk has no room for the open part."""


class _OpenPart(io.RawIOBase):
    """The file of an open part, as Arrow writes it: buffers what the disk has no room for yet.

    Arrow cannot continue with a file that has refused a write, so it never sees a refusal.
    """

    def __init__(self, files: PartFiles, path: Path) -> None:
        self._files = files
        self._path = path
        self._file: Any = None
        self._left = bytearray()
        self._synced = self._named = False
        self._failed: OSError | None = None

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._left += data
        return len(data)

    def store(self) -> None:
        """Writes the buffer to the file.  Raises DiskFull; another OSError permanently, also after a failed sync."""
        if self._failed is not None:
            raise sync_failed(self._failed, self._path)
        with _noticing_full():
            if self._file is None:
                self._file = self._files.create(self._path)
            while self._left:
                with memoryview(self._left) as left:
                    done = self._files.write(self._file, left)
                del self._left[:done]

    def complete(self, path: Path) -> None:
        """Gives the file its name when all is on disk.

        Raises:
          DiskFull: can be called again.
          OSError: the disk failed.  A failed sync is never repeated: the next one would report success.
        """
        self.store()
        assert self._file is not None
        if not self._synced:
            with self._noticing_failed_sync():
                self._files.sync(self._file)
            self._synced = True
        if not self._named:
            with _noticing_full():
                self._files.rename(self._path, path)
            self._named = True
        with self._noticing_failed_sync():
            self._files.sync_folder(path.parent)
        self._files.close(self._file)

    @contextmanager
    def _noticing_failed_sync(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._failed = error
            raise sync_failed(error, self._path) from error


@contextmanager
def _noticing_full() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if is_full(error):
            raise DiskFull(error.errno, error.strerror) from error
        raise
