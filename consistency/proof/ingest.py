"""Writes raw files of any size as the log of a source: tasks read them in parts, and Spark sorts the rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from consistency.proof.log_writer import write_log
from consistency.proof.storage.arrow import ToArrow, arrow_fields, spark_schema
from consistency.proof.truth.stream import TIME, quoted
from spe.errors import SpeError
from spe.plan.plan import Source
from spe.stream.batch import Column, Int64Array, Rows
from spe.stream.times import EVENT_LIMIT_US

#: Bytes of a file that one task reads.
_PART_BYTES: Final = 64 << 20
#: Column that counts the malformed rows left out, in a row of nulls.
_LEFT_OUT: Final = "__left_out"


class _Chunk(Protocol):
    """Rows from a reader: ``columns`` and ``events`` of the good rows, and the malformed ones."""

    @property
    def events(self) -> Int64Array | None: ...
    @property
    def columns(self) -> tuple[Column, ...]: ...
    @property
    def malformed(self) -> Sequence[Any]: ...


class Files(Protocol):
    """The files of a source, in parts; pickled for each task."""

    def parts(self, size: int) -> Sequence[Any]: ...
    def part(self, part: Any, /) -> Iterable[_Chunk]: ...


@dataclass(frozen=True)
class Ingested:
    """Counts of the rows of a source's files.

    Attributes:
      malformed: rows that the source would not take; they are left out.
    """

    tuples: int
    malformed: int


def ingest(spark: SparkSession, source: Source, files: Files, root: Path) -> Ingested:
    """Writes the log of a source from the files that its configuration names, sorted by time, and ends it.

    Args:
      files: the reader of the source.

    Raises:
      SpeError: the source has no event time, a file does not fit the configuration, or a row is malformed and the
        configuration stops the source then.
    """
    if source.time is None:
        raise SpeError(f"source {source.stream!r} has no time; an order by time needs an attribute that holds it")
    rows = _rows(spark, source, files).persist(StorageLevel.DISK_ONLY)
    try:
        left = rows.agg(F.sum(_LEFT_OUT)).first()
        tuples = write_log(rows.where(F.col(_LEFT_OUT).isNull()).drop(_LEFT_OUT), source, root)
    finally:
        rows.unpersist()
    return Ingested(tuples, int(left[0] or 0) if left is not None else 0)


def _rows(spark: SparkSession, source: Source, files: Files) -> DataFrame:
    """Returns TIME and the attributes of good rows, and rows of nulls that count the malformed ones."""
    parts = files.parts(_PART_BYTES)
    schema = pa.schema([pa.field(_LEFT_OUT, pa.int64()), pa.field(TIME, pa.int64()), *arrow_fields(source.schema)])

    def each(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        to_arrow = ToArrow()
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for chunk in files.part(parts[number]):
                    yield from _batches(source, chunk, to_arrow, schema)

    made = spark.range(0, len(parts), 1, len(parts)).mapInArrow(each, spark_schema(schema))
    return made.select(_LEFT_OUT, TIME, *[quoted(name) for name in source.schema.names])


def _batches(source: Source, chunk: _Chunk, to_arrow: ToArrow, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    if chunk.malformed and source.on_malformed == "stop":
        first = chunk.malformed[0]
        raise SpeError(f"source {source.stream}: {first.reason}: {first.text}")
    events, columns = chunk.events, chunk.columns
    assert events is not None
    good = (events <= EVENT_LIMIT_US) & (events >= -EVENT_LIMIT_US)
    if not good.all():
        events, columns = events[good], tuple(c.select(good) for c in columns)
    left = len(chunk.malformed) + int((~good).sum())
    if left:
        yield pa.RecordBatch.from_arrays([pa.array([left]), *[pa.nulls(1, f.type) for f in schema][1:]], schema=schema)
    if len(events):
        arrays = to_arrow.arrays(Rows(events, events, columns), source.schema)
        yield pa.RecordBatch.from_arrays([pa.nulls(len(events), pa.int64()), pa.array(events), *arrays], schema=schema)
