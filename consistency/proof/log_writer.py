"""Writes a frame as the durable log of a source: sorted by time over all tasks, a segment per task."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Final

import numpy as np
import pyarrow as pa
import trio
from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from consistency.proof.storage.arrow import from_arrow
from consistency.proof.truth.stream import TIME, quoted
from spe.errors import SpeError
from spe.log.format import RECORD_BYTES_MAX, Segment, encode_header, encode_record
from spe.log.marks import Mark, Marks
from spe.log.source_log import SourceState, encode_source_record, source_folder
from spe.plan.plan import Source
from spe.runtime.storage import DiskStorage
from spe.stream.batch import Batch
from spe.stream.names import Kind
from spe.stream.times import END_OF_TIME, floor_to

#: Tuples per record.
RECORD_ROWS: Final = 8_192
#: Tuples per segment, approximately: readers hold a segment at a time.
SEGMENT_ROWS: Final = 1_000_000
_PIECE: Final = "__piece"
_EPOCH: Final = 1


def write_log(frame: DataFrame, source: Source, root: Path) -> int:
    """Writes the log of a source that has sent all of ``frame`` and ended; returns the number of tuples.

    Equal input gives equal bytes, however it is divided: tuples of equal time are sorted by their attributes.

    Args:
      frame: TIME (event time, microseconds, not null) and the attributes of the source.
      root: the log lies in its ``sources/NAME``; on a file system that every executor has at the same path.

    Raises:
      SpeError: there is a log already.
    """
    folder = root / source_folder(source.stream)
    if folder.exists() and any(folder.iterdir()):
        raise SpeError(f"{folder} is there already and not empty")
    folder.mkdir(parents=True, exist_ok=True)
    attributes = [quoted(name) for name in source.schema.names]
    pieces = max(1, -(-frame.count() // SEGMENT_ROWS))
    divided = frame.select(TIME, *attributes).repartitionByRange(pieces, TIME)
    ordered = divided.sortWithinPartitions(TIME, *attributes).withColumn(_PIECE, F.spark_partition_id())
    stored = ordered.persist(StorageLevel.DISK_ONLY)
    try:
        counted = stored.groupBy(_PIECE).agg(F.count(F.lit(1)).alias("rows"), F.min(TIME).alias("first")).collect()
        sizes = {row[_PIECE]: row["rows"] for row in counted}
        origin_us = min((row["first"] for row in counted), default=0)
        starts, tuples, records = {}, 0, 0
        for piece in sorted(sizes):
            starts[piece] = (tuples, records)
            tuples += sizes[piece]
            records += -(-sizes[piece] // RECORD_ROWS)
        if tuples:
            stored.mapInArrow(_Writes(source, str(folder), starts, origin_us).write, "written long").collect()
    finally:
        stored.unpersist()
    _finish(root, source, SourceState(tuples, origin_us, END_OF_TIME, END_OF_TIME, tuples, origin_us), records)
    return tuples


class _Writes:
    """Writes one piece as one segment."""

    def __init__(self, source: Source, folder: str, starts: dict[int, tuple[int, int]], origin_us: int) -> None:
        self._source = source
        self._folder = folder
        self._starts = starts
        self._origin_us = origin_us

    def write(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        waiting: list[pa.RecordBatch] = []
        count, file, aside, path = 0, None, Path(), Path()
        tuples = sequence = 0
        for batch in batches:
            if not len(batch):
                continue
            if file is None:
                tuples, records = self._starts[batch.column(_PIECE)[0].as_py()]
                sequence = records + 1
                segment = Segment(sequence, _EPOCH)
                path = Path(self._folder, segment.name)
                aside = path.with_name(f".aside-{segment.name}-{os.getpid()}")
                file = aside.open("wb")
                file.write(encode_header(segment))
            waiting.append(batch)
            count += len(batch)
            while count >= RECORD_ROWS:
                table = pa.Table.from_batches(waiting)
                file.write(self._record(sequence, tuples, table.slice(0, RECORD_ROWS)))
                tuples, sequence, count = tuples + RECORD_ROWS, sequence + 1, count - RECORD_ROWS
                waiting = table.slice(RECORD_ROWS).to_batches()
        if file is None:
            return
        if count:
            file.write(self._record(sequence, tuples, pa.Table.from_batches(waiting)))
            tuples += count
        file.flush()
        os.fsync(file.fileno())
        file.close()
        aside.replace(path)
        yield pa.RecordBatch.from_arrays([pa.array([tuples])], names=["written"])

    def _record(self, sequence: int, before: int, table: pa.Table) -> bytes:
        source, table = self._source, table.combine_chunks()
        time = np.asarray(table.column(TIME).combine_chunks())
        rows = from_arrow([table.column(n) for n in source.schema.names], source.schema, time)
        upto, latest = before + len(rows), int(time[-1])
        bound = floor_to(latest - source.disorder_us, source.boundary_us)
        state = SourceState(upto, latest, bound_us=bound, consumed=upto, origin_us=self._origin_us)
        batch = Batch(Kind.STABLE, before, upto, None, rows)
        body = encode_source_record(state, batch, source.schema)
        if len(body) > RECORD_BYTES_MAX:
            raise SpeError(f"source {source.stream}: {len(rows)} rows take {len(body)} bytes, too many for a record")
        return encode_record(sequence, body)


def _finish(root: Path, source: Source, state: SourceState, records: int) -> None:
    """Writes the end of the stream in its own segment, then the schema, and last the mark that makes the log valid."""
    folder, storage = source_folder(source.stream), DiskStorage(root)
    segment = Segment(records + 1, _EPOCH)
    end = encode_header(segment) + encode_record(records + 1, encode_source_record(state, None, source.schema))

    async def finish() -> None:
        await storage.write_atomic(folder / segment.name, end)
        await storage.write_atomic(folder / "schema.json", json.dumps(source.schema.to_wire()).encode())
        marks = Marks(storage, PurePosixPath(folder))
        await marks.write(Mark(_EPOCH, records + 1))
        marks.close()

    trio.run(finish)
