"""Frames of the elements that a client received of an output, and of a source's log."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from consistency.proof.recorded.records import (
    CHANGES,
    SUMMARY,
    Stretch,
    Table,
    Wanted,
    WantedRecords,
    read_stretch,
    summarize,
    tentative_batches,
)
from consistency.proof.recorded.run import Run
from consistency.proof.recorded.table_source import all_stretches, recording_table, source_table
from consistency.proof.storage.arrow import spark_schema
from consistency.proof.storage.files import tasks_for
from consistency.proof.storage.tables import OfBatches, over_numbers
from spe.stream.names import StreamId


def changes(
    spark: SparkSession,
    run: Run,
    client: str,
    output: StreamId,
    pieces: Sequence[Stretch] | None = None,
    wanted: Wanted | None = None,
) -> DataFrame:
    """Returns RECEIVED (consistency.proof.recorded.elements): a row per tuple, and one per element without tuples.

    Columns: ``partition int, sequence long, row int, arrived_us long, kind string, id long, time_us long, tuple
    struct<the output's attributes>``; see ``consistency.proof.recorded.records``.  ``tuple`` may be null.

    Args:
      pieces: the stretches to read; None: all.
      wanted: selects elements; None: all.

    Raises:
      SpeError: there is no such output or client.  A damaged recording is an error when the frame is computed.
    """
    table = recording_table(run, client, output, CHANGES)
    names = [name for name, _ in table.added]
    flat = load(spark, run, table, _with_some(table, pieces, wanted), wanted)
    carries = F.col("_kind").isin("stable", "tentative")
    return flat.select(
        *[F.col(name).alias(name.removeprefix("_")) for name in names],
        F.when(carries, as_tuple(table)).alias("tuple"),
    )


def tentative(
    spark: SparkSession, run: Run, client: str, output: StreamId, wanted: Wanted, each: OfBatches, made: pa.Schema
) -> DataFrame:
    """Applies ``each`` to TENTATIVE_ROWS (consistency.proof.recorded.records) within tasks, without rows of Spark.

    Args:
      wanted: selects elements, all of them tentative.
      made: the schema of the result.

    Raises as :func:`changes`.
    """
    table = recording_table(run, client, output, CHANGES)

    def read(_number: int, stretch: Stretch, content: memoryview | None) -> Iterator[pa.RecordBatch]:
        return each(tentative_batches(table, stretch, content, wanted))

    return over_stretches(spark, run, table, read, made, _with_some(table, None, wanted))


def summary(
    spark: SparkSession, run: Run, client: str, output: StreamId, pieces: Sequence[Stretch] | None = None
) -> DataFrame:
    """Returns SUMMARY (consistency.proof.recorded.records) of a recording.  Takes and raises as :func:`changes`."""
    table = recording_table(run, client, output, CHANGES)

    def read(_number: int, stretch: Stretch, content: memoryview | None) -> Iterator[pa.RecordBatch]:
        return summarize(table, stretch, content)

    return over_stretches(spark, run, table, read, SUMMARY, pieces)


def source_log(spark: SparkSession, run: Run, stream: StreamId, pieces: Sequence[Stretch] | None = None) -> DataFrame:
    """Returns the log of a source: ``_id, _time_us`` and its attributes.  Takes and raises as :func:`changes`."""
    return load(spark, run, source_table(run, stream), pieces)


def load(
    spark: SparkSession,
    run: Run,
    table: Table,
    pieces: Sequence[Stretch] | None = None,
    wanted: Wanted | None = None,
) -> DataFrame:
    """Reads as ``format("spe")``, without the processes that Spark starts to plan a data source.

    Args:
      pieces: the stretches to read; None: all.
      wanted: selects elements of a recording; None: all.

    Raises:
      LogCorrupt: segments are missing.
    """

    def read(_number: int, stretch: Stretch, content: memoryview | None) -> Iterator[pa.RecordBatch]:
        return read_stretch(table, stretch, content, wanted)

    return over_stretches(spark, run, table, read, table.arrow_schema, pieces)


#: Reads a segment in a task: its number, its place and, from another file system, its bytes.
Read = Callable[[int, Stretch, memoryview | None], Iterator[pa.RecordBatch]]


def over_stretches(
    spark: SparkSession, run: Run, table: Table, read: Read, made: pa.Schema, pieces: Sequence[Stretch] | None = None
) -> DataFrame:
    """Applies ``read`` to each segment of a table; a task reads one or several, in order.

    Args:
      made: the schema of its batches.
      pieces: the stretches to read; None: all.

    Raises:
      LogCorrupt: segments are missing.
    """
    pieces = all_stretches(table) if pieces is None else pieces
    schema = spark_schema(made)
    if run.origin:
        return _over_remote(spark, run, table, pieces, read, schema)
    tasks = tasks_for(spark, len(pieces))
    return over_numbers(spark, len(pieces), lambda n: read(n, pieces[n], None), schema, tasks)


def _over_remote(
    spark: SparkSession, run: Run, table: Table, pieces: Sequence[Stretch], read: Read, schema: StructType
) -> DataFrame:
    """Does the same for segments on another file system."""
    from consistency.proof.storage.remote import folder_of

    if not pieces:
        return spark.createDataFrame([], schema)
    folders = [run.relative(Path(folder)) for folder in table.folders]
    names = [f"{folders[s.partition]}/{s.segment.name}" for s in pieces]
    return folder_of(spark, run.origin).over(names, lambda n, content: read(n, pieces[n], content), schema)


def _with_some(table: Table, pieces: Sequence[Stretch] | None, wanted: Wanted | None) -> Sequence[Stretch] | None:
    """Returns the stretches that contain wanted elements."""
    if not isinstance(wanted, WantedRecords):
        return pieces
    return [s for s in (all_stretches(table) if pieces is None else pieces) if wanted.in_stretch(s)]


def as_tuple(table: Table) -> Column:
    """Packs the attributes into one struct."""
    return F.struct(*[F.col(f"`{name}`") for name in table.schema.names])
