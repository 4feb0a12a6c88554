"""Source logs read in the order of their union, within a task, by NumPy.  No Spark here.

A task has some spans of time of all logs.  The least and the largest time of each segment tell which segments it
reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from consistency.proof.recorded.records import BATCH_ROWS, Stretch, Table, TimedStretch, read_log
from consistency.proof.storage.arrow import ToArrow, arrow_fields
from spe.stream.batch import Int64Array, Rows, concat_rows

#: Time spans per segment of each log.
_PARTS: Final = 4
_LONG: Final = pa.int64()
_NOTHING: Final = np.empty(0, np.int64)


def edges(segments: Sequence[Sequence[TimedStretch]]) -> list[int]:
    """Returns times that cut all segments into spans, first and last included; gaps are divided too."""
    every = [stretch for each in segments for stretch in each]
    begins = sorted(stretch.least_us for stretch in every)[:: len(segments)]
    wide = [*begins, max((stretch.most_us for stretch in every), default=-1) + 1]
    cut = {low + (high - low) * part // _PARTS for low, high in pairwise(wide) for part in range(_PARTS)}
    return sorted({*cut, wide[-1]})


def depth(segments: Sequence[Sequence[TimedStretch]], edges: Sequence[int]) -> int:
    """Returns the largest number of segments that overlap in one span."""
    every = [stretch for each in segments for stretch in each]
    first = np.searchsorted(edges, [stretch.least_us for stretch in every], "right") - 1
    last = np.searchsorted(edges, [stretch.most_us for stretch in every], "right")
    change = np.bincount(first, minlength=len(edges) + 1) - np.bincount(last, minlength=len(edges) + 1)
    return int(change.cumsum().max())


@dataclass(frozen=True)
class Merge:
    """Merges the logs in some time spans; runs within a Spark task.

    Attributes:
      edges: see :func:`edges`; the n-th span lies between the n-th and the next.
    """

    tables: tuple[Table, ...]
    segments: tuple[tuple[TimedStretch, ...], ...]
    edges: list[int]

    @property
    def arrow_schema(self) -> pa.Schema:
        """Returns the schema of the result: time, source and id of a row, and the attributes of the first log."""
        schema = self.tables[0].schema
        return pa.schema([*[(name, _LONG) for name in ("_time_us", "_source", "_id")], *arrow_fields(schema)])

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields the rows of the spans with these numbers."""
        read: dict[tuple[int, int], _Segment] = {}  # by source and number; several spans lie in one
        times = [np.array([stretch[1:] for stretch in each], np.int64).reshape(-1, 2).T for each in self.segments]
        for batch in batches:
            for number in batch.column(0).to_pylist():
                begin, end = self.edges[number : number + 2]
                yield from self._span(begin, end, times, read)
                read = {(source, at): stretch for (source, at), stretch in read.items() if times[source][1, at] >= end}

    def _span(
        self,
        begin: int,
        end: int,
        times: Sequence[np.ndarray[tuple[int, int], np.dtype[np.int64]]],
        read: dict[tuple[int, int], _Segment],
    ) -> Iterator[pa.RecordBatch]:
        """Yields the rows from ``begin`` on and before ``end``; ``times``: least and largest time of all segments."""
        overlapping: list[tuple[int, _Segment, Int64Array]] = []
        for source, (least, most) in enumerate(times):
            for at in np.flatnonzero((least < end) & (most >= begin)).tolist():
                if (source, at) not in read:
                    read[source, at] = _Segment.read(self.tables[source], self.segments[source][at].stretch)
                time = read[source, at].rows.time
                overlapping.append((source, read[source, at], np.flatnonzero((time >= begin) & (time < end))))
        all_ = [segment.rows.time[inside] for _, segment, inside in overlapping]
        order = np.concatenate([*all_, _NOTHING]).argsort(kind="stable")  # equal times by source and id
        begins = np.cumsum([0, *map(len, all_)])[:-1]
        for first in range(0, len(order), BATCH_ROWS):
            yield from self._batch(overlapping, begins, order[first : first + BATCH_ROWS])

    def _batch(
        self, overlapping: Sequence[tuple[int, _Segment, Int64Array]], begins: Int64Array, order: Int64Array
    ) -> list[pa.RecordBatch]:
        """Returns rows in an order; only their texts are decoded."""
        spans = begins.searchsorted(order, "right") - 1
        parts, places = [], []
        for number, (source, segment, inside) in enumerate(overlapping):
            here = np.flatnonzero(spans == number)
            if not len(here):
                continue
            which = inside[order[here] - begins[number]]
            schema, rows = self.tables[source].schema, segment.rows.take(which)
            attributes = dict(zip(schema.names, segment.to_arrow.arrays(rows, schema)))
            numbers = (rows.time, np.full(len(rows), source), segment.ids[which])
            arrays = [*map(pa.array, numbers), *(attributes[name] for name in self.tables[0].schema.names)]
            parts.append(pa.RecordBatch.from_arrays(arrays, schema=self.arrow_schema))
            places.append(here)
        made = pa.Table.from_batches(parts)
        if len(parts) > 1:
            back = np.empty(len(order), np.int64)
            back[np.concatenate(places)] = np.arange(len(order))
            made = made.take(pa.array(back))
        batches: list[pa.RecordBatch] = made.combine_chunks().to_batches()
        return batches


class _Segment(NamedTuple):
    """A segment in memory.  Its texts are in dictionaries."""

    ids: Int64Array
    rows: Rows
    to_arrow: ToArrow

    @classmethod
    def read(cls, table: Table, stretch: Stretch) -> _Segment:
        batches = [batch for batch in read_log(table, stretch) if len(batch)]
        if not batches:
            return cls(_NOTHING, Rows.empty(table.schema), ToArrow())
        return cls(
            np.concatenate([batch.row_ids() for batch in batches]),
            concat_rows([batch.rows for batch in batches]),
            ToArrow(),
        )
