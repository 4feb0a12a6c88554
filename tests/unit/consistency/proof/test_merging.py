"""Logs of any times read in the order of their union, against sorting all."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pyarrow as pa
import pytest

pytest.importorskip("pyspark", reason="needs the extra spark")
from consistency.proof import merging
from consistency.proof.merging import Merge, edges
from consistency.proof.records import Stretch, Table, TimedStretch, whole
from spe.log.format import Segment
from spe.stream.schema import Schema

SCHEMA = Schema.of(n="int64", s="string")


@pytest.mark.parametrize("seed", range(30))
def test_rows_come_by_time_source_and_id_and_each_once(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    random = Random(seed)
    sources = random.randrange(1, 4)
    tables = tuple(Table(True, SCHEMA, (f"log{n}",)) for n in range(sources))
    rows: dict[tuple[str, int], list[tuple[int, int, int, str]]] = {}
    segments: list[tuple[TimedStretch, ...]] = []
    for table in tables:
        timed, id_ = [], 0
        for first in range(1, random.randrange(2, 8)):
            # A wrong log, too: its times may be anywhere.
            base = random.choice([first * 10, random.randrange(80)])
            times = [base + random.randrange(-3, 15) for _ in range(random.randrange(1, 12))]
            rows[table.folders[0], first] = [(id_ + at, time, id_, "é") for at, time in enumerate(times, 1)]
            id_ += len(times)
            segment = Segment(first, 0)
            timed.append(TimedStretch(Stretch(0, segment, *whole(segment), None), min(times), max(times)))
        segments.append(tuple(timed))
    reads: list[tuple[str, int]] = []

    def read(table: Table, stretch: Stretch) -> Iterator[pa.RecordBatch]:
        reads.append((table.folders[0], stretch.first))
        for row in rows[reads[-1]]:
            yield pa.RecordBatch.from_arrays([pa.array([v]) for v in row], schema=table.arrow_schema)

    monkeypatch.setattr(merging, "read_stretch", read)
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
    assert found == sorted(
        (time, numbers[log], id_, n, s) for (log, _), each in rows.items() for id_, time, n, s in each
    )
    assert len(reads) <= 2 * len(set(reads))  # a task reads a segment once, however many spans lie in it


def test_logs_without_tuples_have_no_spans() -> None:
    assert len(edges([(), ()])) == 1
