"""Chunks of an SUnion's input: many small ones are merged without changing their rows."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from operators.sunion.chunk import Chunk, put_together
from spe.stream.batch import Column, Int64Array, Rows
from spe.stream.times import BEFORE_TIME


def chunk(times: list[int], first_id: int, ids: list[int] | None = None) -> Chunk:
    time = np.array(times, np.int64)
    rows = Rows(time, time, (Column(np.arange(first_id, first_id + len(times))),))
    return Chunk(rows, first_id, None if ids is None else np.array(ids, np.int64), BEFORE_TIME, 16 * len(times))


def told(chunks: list[Chunk]) -> list[tuple[int, int, int]]:
    """(time, id, value) of all rows, by time and id."""
    return sorted(
        row
        for c in chunks
        for row in zip(c.rows.time.tolist(), c.row_ids().tolist(), c.rows.columns[0].values.tolist(), strict=True)
    )


@pytest.mark.parametrize("disorder", [0, 7])
@pytest.mark.parametrize("gaps", [False, True], ids=["every id", "some ids"])
def test_many_small_chunks_become_a_few_with_the_same_rows(disorder: int, gaps: bool) -> None:
    random = np.random.default_rng(disorder)
    chunks: list[Chunk] = []
    added: list[Chunk] = []
    next_id = 1
    for at in range(2_000):
        times = sorted(at * 10 + int(t) for t in random.integers(0, 1 + 10 * disorder, 3))
        ids = [next_id, next_id + 2, next_id + 5] if gaps else None
        one = chunk(times, next_id, ids)
        next_id += 6 if gaps else 3
        added.append(one)
        chunks.append(one)
        put_together(chunks)
    assert told(chunks) == told(added)
    assert len(chunks) < 140
    assert max(map(len, chunks)) < 2_000, "one that is large enough is not copied again"
    assert sum(c.nbytes for c in chunks) == sum(c.nbytes for c in added)
    assert all(c.sorted for c in chunks if len(c) > 3)
    assert all(a.first_id < b.first_id for a, b in pairwise(chunks))
    for low in (0, 500, 9_999, 20_100):
        assert told([c for c in (c.from_time(low) for c in chunks) if c is not None]) == [
            row for row in told(added) if row[0] >= low
        ]


def test_consecutive_ids_are_not_stored() -> None:
    chunks = [chunk([at, at], 2 * at + 1) for at in range(64)]
    put_together(chunks)
    (one,) = chunks
    assert one.ids is None
    ids: Int64Array = one.row_ids()
    assert ids.tolist() == list(range(1, 129))


def test_large_chunks_and_few_small_ones_are_not_merged() -> None:
    large = [chunk(list(range(at, at + 1024)), 1024 * at + 1) for at in range(63)]
    chunks = [*large, chunk([2_000], 1 << 20)]
    before = list(chunks)
    put_together(chunks)
    assert chunks == before
