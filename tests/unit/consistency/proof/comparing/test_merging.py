"""Logs of any times read in the order of their union, against sorting all."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from random import Random

import numpy as np
import pyarrow as pa
import pytest

pytest.importorskip("pyspark", reason="needs the extra spark")
from consistency.proof.comparing import merging
from consistency.proof.comparing.merging import Merge, depth, edges
from consistency.proof.recorded.records import Stretch, Table, TimedStretch, whole
from spe.log.format import Segment
from spe.stream.batch import Batch, Rows
from spe.stream.names import Kind
from spe.stream.schema import Schema

SCHEMA = Schema.of(n="int64", s="string")


@pytest.mark.parametrize("seed", range(30))
def test_rows_come_by_time_source_and_id_and_each_once(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    random = Random(seed)
    sources = random.randrange(1, 4)
    schemas = [SCHEMA, Schema.of(s="string", n="int64"), SCHEMA]
    tables = tuple(Table(True, schemas[n], (f"log{n}",)) for n in range(sources))
    rows: dict[tuple[str, int], list[tuple[int, int, int, str]]] = {}
    segments: list[tuple[TimedStretch, ...]] = []
    for table in tables:
        timed, id_ = [], 0
        for first in range(1, random.randrange(2, 8)):
            # A wrong log, too: its times may be anywhere.
            base = random.choice([first * 10, random.randrange(80)])
            times = [base + random.randrange(-3, 15) for _ in range(random.randrange(1, 12))]
            swapped = table.schema is not SCHEMA
            rows[table.folders[0], first] = [
                (id_ + at, time, *((text, at) if swapped else (at, text)))
                for at, time in enumerate(times, 1)
                for text in [random.choice(["é", "", None])]
            ]
            id_ += len(times)
            segment = Segment(first, 0)
            timed.append(TimedStretch(Stretch(0, segment, *whole(segment), None), min(times), max(times)))
        segments.append(tuple(timed))
    reads: list[tuple[str, int]] = []

    def read(table: Table, stretch: Stretch) -> Iterator[Batch]:
        reads.append((table.folders[0], stretch.first))
        for id_, time, *values in rows[reads[-1]]:
            one = Rows.from_tuples(table.schema, np.array([time]), [tuple(values)])
            yield Batch(Kind.STABLE, id_ - 1, id_, None, one)

    monkeypatch.setattr(merging, "read_log", read)
    monkeypatch.setattr(merging, "BATCH_ROWS", 7)
    merge = Merge(tables, tuple(segments), edges(segments))
    spans = len(merge.edges) - 1
    cut = random.randrange(spans + 1)  # between two tasks
    found = [
        tuple(row.values())
        for task in (range(cut), range(cut, spans))
        for batch in merge(iter([pa.RecordBatch.from_pydict({"id": list(task)})]))
        for row in batch.to_pylist()
    ]
    numbers = {table.folders[0]: n for n, table in enumerate(tables)}
    expected = [
        (time, numbers[log], id_, *(values if numbers[log] != 1 else values[::-1]))
        for (log, _), each in rows.items()
        for id_, time, *values in each
    ]
    assert found == sorted(expected, key=lambda row: row[:3])
    assert depth(segments, merge.edges) == max(
        sum(one.least_us < end and one.most_us >= begin for each in segments for one in each)
        for begin, end in pairwise(merge.edges)
    )
    assert len(reads) <= 2 * len(set(reads))  # a task reads a segment once, however many spans lie in it


def test_logs_without_tuples_have_no_spans() -> None:
    assert len(edges([(), ()])) == 1
