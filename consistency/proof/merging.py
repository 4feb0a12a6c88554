"""Source logs read in the order of their union, within a task, by NumPy.  No Spark here.

A task has some spans of time of all logs.  What it reads of a log follows from the least and the largest time of each
segment, as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
import pyarrow as pa

from consistency.proof.arrow import arrow_fields
from consistency.proof.records import BATCH_ROWS, Table, TimedStretch, read_stretch
from spe.stream.batch import Int64Array

#: Spans of time for a segment of each log.
_PARTS: Final = 4
_LONG: Final = pa.int64()


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

    @property
    def arrow_schema(self) -> pa.Schema:
        """Time, source and id of a row, and the attributes of the first log."""
        schema = self.tables[0].schema
        return pa.schema([*[(name, _LONG) for name in ("_time_us", "_source", "_id")], *arrow_fields(schema)])

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows of the spans of these numbers."""
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
                found.append(pa.Table.from_arrays(columns, schema=self.arrow_schema))
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
