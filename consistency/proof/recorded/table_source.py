"""``format("spe")``: source logs and recorded output streams as tables, for ``spark.read`` and ``spark.readStream``.

    spark.read.format("spe").option("source", "orders").load(RUN_DIR)
    spark.readStream.format("spe").option("output", "per_second").option("client", "dashboard").load(RUN_DIR)

Options: ``source``, or ``output`` with ``client`` (optional if only one client reads the output); ``mode`` of
an output is ``stable`` (default) or ``changes``; ``rows`` limits the rows of a micro-batch.  Columns: see
``consistency.proof.recorded.records``.  Every executor must have the directory at the same path.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from consistency.proof.recorded.records import CHANGES, STABLE, Stretch, Table, read_stretch, scan_stretch, whole
from consistency.proof.recorded.run import Run
from consistency.proof.storage.arrow import spark_schema
from spe.errors import LogCorrupt, SpeError
from spe.log.format import (
    FIRST_BYTES,
    HEADER_BYTES,
    RECORD_HEADER_BYTES,
    Position,
    Record,
    RecordScan,
    first_record_bytes,
)
from spe.log.log_start import LogCut
from spe.log.marks import read_mark
from spe.log.recording import decode_recorded
from spe.log.recovery import kept_segments
from spe.log.source_log import SourceState, decode_source_batch, decode_source_state
from spe.problems import did_you_mean, one_of
from spe.runtime.storage import DiskStorage
from spe.stream.batch import Batch
from spe.stream.names import StreamId
from spe.stream.strings import StringPool


class SpeDataSource(DataSource):
    """The data source; see the module."""

    @classmethod
    def name(cls) -> str:
        return "spe"

    def _table(self) -> Table:
        if "path" not in self.options:
            raise SpeError("say which run: .load(RUN_DIR)")
        return table_of(Run.open(Path(self.options["path"])), self.options)

    def schema(self) -> StructType:
        return spark_schema(self._table().arrow_schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        return _Reader(self._table())

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return _StreamReader(self._table(), int(self.options.get("rows", 0)))


def source_table(run: Run, stream: StreamId) -> Table:
    """Returns the log of a source as a table."""
    _pick("source", stream, run.plan.sources)
    return Table(True, run.plan.sources[stream].schema, (str(run.source_path(stream).absolute()),))


def recording_table(run: Run, client: str, output: StreamId, mode: str) -> Table:
    """Returns a client's recording of an output as a table."""
    _pick("output", output, run.plan.query.outputs)
    _pick("client", client, run.directory.clients)
    _pick("mode", mode, (STABLE, CHANGES))
    if output not in run.directory.clients[client].reads:
        raise SpeError(
            f"client {client!r} does not read {output!r}; it reads {one_of(run.directory.clients[client].reads)}"
        )
    folders = tuple(str(run.recording_path(client, channel).absolute()) for channel in run.channels(output))
    return Table(False, run.plan.query.schema_of(output), folders, mode)


def table_of(run: Run, options: Mapping[str, str]) -> Table:
    """Returns the table that the options select.  Raises SpeError, which names the choices."""
    if ("source" in options) == ("output" in options):
        raise SpeError("give one of the options source and output: the name of a stream")
    if "source" in options:
        return source_table(run, StreamId(options["source"]))
    output = StreamId(options["output"])
    readers = [name for name, client in run.directory.clients.items() if output in client.reads]
    if "client" not in options and len(readers) > 1:
        raise SpeError(f"several clients read {output!r}; give the option client, {one_of(readers)}")
    client = options.get("client", readers[0] if readers else "")
    return recording_table(run, client, output, options.get("mode", STABLE))


def _pick(what: str, name: str, known: Sequence[str] | Mapping[Any, Any]) -> None:
    if name not in known:
        names = [str(k) for k in known]
        raise SpeError(f"no {what} {name!r}{did_you_mean(name, names)}; expected {one_of(names)}")


class _Piece(InputPartition):
    """A stretch, as Spark sends it to tasks."""

    def __init__(self, stretch: Stretch) -> None:
        super().__init__(stretch)


class _Reader(DataSourceReader):
    """Reads everything; a partition per segment."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def partitions(self) -> Sequence[InputPartition]:
        return [_Piece(s) for s in all_stretches(self._table)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_stretch(self._table, partition.value)


def stretches(table: Table, partition: int, since: int | None = 1) -> list[Stretch]:
    """Returns all segments of one partition, up to the acknowledged (sources) or last complete record (recordings).

    Args:
      since: a record from which on all are needed; None: the existing ones suffice.

    Raises:
      LogCorrupt: segments are missing, or there is no mark.
      LogCut: records from ``since`` on were deleted by ``retain``.
    """
    folder = Path(table.folders[partition])
    remaining, segments = kept_segments(DiskStorage(folder), PurePosixPath())
    if since is not None and since < remaining.first:
        raise LogCut(remaining.text(folder))
    if not table.source:
        followings = [*[s.first for s in segments[1:]], None]
        return [Stretch(partition, s, *whole(s), None, f) for s, f in zip(segments, followings)]
    acknowledged = _acknowledged(folder)
    parts = []
    for at, segment in enumerate(segments):
        last = segments[at + 1].first - 1 if at + 1 < len(segments) else acknowledged
        if segment.first <= acknowledged:
            parts.append(Stretch(partition, segment, *whole(segment), min(last, acknowledged)))
    if acknowledged and not parts:
        raise LogCorrupt(f"{folder}: there is no segment, but records up to {acknowledged} were acknowledged")
    return parts


def all_stretches(table: Table) -> list[Stretch]:
    """Returns all segments of all partitions; of a source's log with the end of each.  Raises LogCorrupt."""
    parts = [s for p in range(len(table.folders)) for s in stretches(table, p)]
    if not table.source:
        return parts
    begins = [_begins_behind(table, s) for s in parts[1:]]
    return [replace(part, upto_id=upto) for part, upto in zip(parts, [*begins, None])]


def _begins_behind(table: Table, stretch: Stretch) -> int | None:
    """Returns the id of the last tuple before a segment of a source's log; None if its first record is unreadable."""
    record = _first_record(table, stretch)
    if record is None:
        return None  # the reader of the whole segment reports the damage
    batch = decode_source_batch(record.body, table.schema, StringPool())
    return decode_source_state(record.body).last_id if batch is None else batch.from_id


def _first_record(table: Table, stretch: Stretch) -> Record | None:
    with Path(table.folders[stretch.partition], stretch.segment.name).open("rb") as file:
        data = file.read(FIRST_BYTES)
        data += file.read(first_record_bytes(data) - len(data))
    return next(RecordScan(memoryview(data)[HEADER_BYTES:], Position(stretch.first, stretch.first, HEADER_BYTES)), None)


def segment_times(run: Run, stream: StreamId) -> list[int]:
    """Returns the time of the first tuple of each segment of a source's log that begins with tuples."""
    table = source_table(run, stream)
    firsts = [_first_record(table, s) for s in stretches(table, 0, None)]
    batches = [decode_source_batch(r.body, table.schema, StringPool()) for r in firsts if r is not None]
    return [int(batch.rows.time[0]) for batch in batches if batch is not None and len(batch)]


def last_state(run: Run, stream: StreamId) -> SourceState:
    """Returns the state at the end of a source's log: number of tuples, and promise.  Raises LogCorrupt."""
    table = source_table(run, stream)
    for stretch in reversed(stretches(table, 0, None)):
        last = deque(scan_stretch(Path(table.folders[0]), stretch), maxlen=1)
        if last:
            return decode_source_state(last[0].body)
    return SourceState()


def _acknowledged(folder: Path) -> int:
    mark = read_mark(DiskStorage(folder), PurePosixPath("."))
    if mark is None:
        raise LogCorrupt(f"{folder}: no readable synced mark (mark.0, mark.1)")
    return mark.sequence


#: Position of a stream in one partition: the next record, the first one of its segment, its offset, rows so far.
_Place = tuple[int, int, int, int]
#: A position per partition, as "record:segment:offset:rows".
Offset = dict[str, str]
_START: Final[_Place] = (1, 1, HEADER_BYTES, 0)


class _StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows logs that grow.  An offset holds a position per partition, so that none is searched.

    Retention: ``commit`` removes nothing, for logs belong to the run.  Data that ``retain`` deleted before they were
    read are an error.
    """

    def __init__(self, table: Table, rows: int) -> None:
        self._table = table
        self._rows = rows
        self._until: Offset | None = None

    def initialOffset(self) -> Offset:
        return {str(p): _text(_START) for p in range(len(self._table.folders))}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._rows) if self._rows else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._until = self._advanced(self.initialOffset(), None)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return self._advanced(start, rows)

    def _advanced(self, start: Offset, rows: int | None) -> Offset:
        """Advances about ``rows`` in each partition, by at least one record if there is one."""
        return {p: _text(self._follow(int(p), _place(at), rows)) for p, at in start.items()}

    def _follow(self, partition: int, place: _Place, rows: int | None) -> _Place:
        limit = None if rows is None else place[3] + max(1, rows // len(self._table.folders))
        for stretch in self._behind(partition, place, None):
            for record in scan_stretch(Path(self._table.folders[partition]), stretch):
                sequence, _, offset = record.position
                if self._until is not None and sequence >= _place(self._until[str(partition)])[0]:
                    return place
                count = place[3] + self._count(record, place[3])
                end = offset + RECORD_HEADER_BYTES + len(record.body)
                place = (sequence + 1, stretch.segment.first, end, count)
                if limit is not None and count >= limit:
                    return place
        return place

    def _count(self, record: Any, before: int) -> int:
        if self._table.source:
            return decode_source_state(record.body).last_id - before
        element = decode_recorded(record, self._table.schema, StringPool(), PurePosixPath(".")).element
        return max(1, len(element)) if isinstance(element, Batch) else 1

    def _behind(self, partition: int, start: _Place, end: _Place | None) -> Iterator[Stretch]:
        """Yields the stretches between two positions."""
        for stretch in stretches(self._table, partition, start[0]):
            if stretch.segment.first < start[1] or (end is not None and stretch.first >= end[0]):
                continue
            first, offset = (
                (start[0], start[2]) if stretch.segment.first == start[1] else (stretch.first, stretch.offset)
            )
            last = stretch.last if end is None else min(end[0] - 1, stretch.last or end[0] - 1)
            if end is not None and stretch.following is not None:
                last = min(last or 0, stretch.following - 1)
            if last is None or last >= first:
                yield Stretch(partition, stretch.segment, first, offset, last)

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        return [_Piece(s) for p in start for s in self._behind(int(p), _place(start[p]), _place(end[p]))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_stretch(self._table, partition.value)

    def commit(self, end: Offset) -> None:
        """Does nothing: see the class."""


def _place(text: str) -> _Place:
    sequence, segment, offset, rows = (int(part) for part in text.split(":"))
    return sequence, segment, offset, rows


def _text(place: _Place) -> str:
    return ":".join(map(str, place))
