"""A union of sources, read in its order: a task has some spans of time of all of them, so that nothing is sorted later.

What is read of a log follows from the least and the largest time of each segment, as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as F

from consistency.proof.arrow import arrow_fields
from consistency.proof.recording import tasks_for
from consistency.proof.records import BATCH_ROWS, Table, TimedStretch, read_stretch
from consistency.proof.source import spark_schema
from consistency.proof.truth.stream import PARTITION, TIME, TruthStream, order_names, quoted
from spe.stream.batch import Int64Array
from spe.stream.schema import AttributeType, Schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: A task has a segment of each source in memory.
_SOURCES: Final = 8
#: Spans of time for a segment of each source.
_PARTS: Final = 4
_LONG: Final = pa.int64()


def merged(
    spark: SparkSession, tables: Sequence[Table], segments: Sequence[Sequence[TimedStretch]]
) -> TruthStream | None:
    """The union of source logs, by time, then source; None where it cannot be read so.

    Args:
      segments: of each log those that have tuples, in order.
    """
    schema = tables[0].schema
    if len(tables) > _SOURCES or any(_types(one.schema) != _types(schema) for one in tables):
        return None
    merge = Merge(tuple(tables), tuple(tuple(each) for each in segments), edges(segments))
    number = len(merge.edges) - 1
    names = [TIME, *order_names(2)]
    made = pa.schema([*[(name, _LONG) for name in names], *arrow_fields(schema)])
    frame = spark.range(0, number, 1, tasks_for(spark, number)).mapInArrow(merge, spark_schema(made))
    partition = F.lit(0).alias(PARTITION)
    return TruthStream(frame.select(partition, *names, *[quoted(n) for n in schema.names]), 2, in_order=True)


def edges(segments: Sequence[Sequence[TimedStretch]]) -> list[int]:
    """Times that cut all into spans, the first and the last included; parts of what is between two segments."""
    every = [one for each in segments for one in each]
    begins = sorted(one.least_us for one in every)[:: len(segments)]
    wide = [*begins, max((one.most_us for one in every), default=-1) + 1]
    cut = {low + (high - low) * part // _PARTS for low, high in pairwise(wide) for part in range(_PARTS)}
    return sorted({*cut, wide[-1]})


@dataclass(frozen=True)
class Merge:
    """What a task does; Spark carries it there.

    Attributes:
      edges: see :func:`edges`; the n-th span lies between the n-th and the next.
    """

    tables: tuple[Table, ...]
    segments: tuple[tuple[TimedStretch, ...], ...]
    edges: list[int]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows of the spans of these numbers: time, source, id, and the attributes of the first source."""
        read: dict[tuple[int, TimedStretch], pa.Table] = {}  # several spans lie in one
        for batch in batches:
            for number in batch.column(0).to_pylist():
                begin, end = self.edges[number : number + 2]
                yield from self._span(begin, end, read)
                read = {(source, one): rows for (source, one), rows in read.items() if one.most_us >= end}

    def _span(self, begin: int, end: int, read: dict[tuple[int, TimedStretch], pa.Table]) -> Iterator[pa.RecordBatch]:
        names = self.tables[0].schema.names
        found: list[pa.Table] = []
        times: list[Int64Array] = []
        for source, (table, segments) in enumerate(zip(self.tables, self.segments, strict=True)):
            for one in segments:
                if one.least_us >= end or one.most_us < begin:
                    continue
                if (source, one) not in read:
                    read[source, one] = pa.Table.from_batches(read_stretch(table, one.stretch), table.arrow_schema)
                rows = read[source, one]
                time = np.asarray(rows["_time_us"])
                inside = np.flatnonzero((time >= begin) & (time < end))
                rows = _rows(rows, inside)
                columns = [
                    rows["_time_us"],
                    pa.array(np.full(len(rows), source)),
                    rows["_id"],
                    *map(rows.column, names),
                ]
                found.append(pa.Table.from_arrays(columns, names=[TIME, *order_names(2), *names]))
                times.append(time[inside])
        if found:
            # Stable: those of one time stay in order of source and id.
            order = np.concatenate(times).argsort(kind="stable")
            yield from _rows(pa.concat_tables(found), order).combine_chunks().to_batches(BATCH_ROWS)


def _rows(table: pa.Table, which: Int64Array) -> pa.Table:
    """Some rows, in this order; without a copy where they follow each other."""
    if len(which) and np.array_equal(which, np.arange(which[0], which[0] + len(which))):
        return table.slice(int(which[0]), len(which))
    return table.take(pa.array(which, _LONG))


def _types(schema: Schema) -> dict[str, AttributeType]:
    return {attribute.name: attribute.type for attribute in schema}
