"""What of a replica's output goes to its checkpoint log, and what comes out of it again (G1, A2)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import numpy as np

from operators import steps
from replicas.node.log_side import exported, logged_output
from replicas.producer.log_entry import Entry
from spe.stream.batch import Batch, Column, Rows
from spe.stream.names import Kind
from spe.stream.strings import StringDictionary
from spe.stream.times import BEFORE_TIME


def entries(*ids: int, last_boundary: int | None = None) -> list[Entry]:
    """Batches between these ids; the value of a row is its id, its time ten times as much; boundaries follow."""
    found = []
    for from_id, upto_id in pairwise(ids):
        made = np.arange(from_id + 1, upto_id + 1)
        found.append(Entry(Batch(Kind.STABLE, from_id, upto_id, None, Rows(10 * made, 10 * made, (Column(made),)))))
        found[-1].boundary = 10 * upto_id + 1
    if last_boundary is not None:
        found[-1].boundary = last_boundary
    return found


def told(outputs: Sequence[Any]) -> list[tuple[int, int, int, list[int]]]:
    (some,) = outputs
    return [(e["from_id"], e["upto_id"], e["boundary"], e["rows"].columns[0].values.tolist()) for e in some]


def test_small_batches_are_put_together() -> None:
    found = logged_output([entries(0, 2, 3, 5)], [0], [5])
    assert told(found) == [(0, 5, 51, [1, 2, 3, 4, 5])]


def test_last_boundary_counts_even_after_last_batch() -> None:
    found = logged_output([entries(0, 2, 3, last_boundary=BEFORE_TIME)], [0], [3])
    assert told(found) == [(0, 3, 21, [1, 2, 3])]


def test_logged_rows_and_rows_after_slice_are_left_out() -> None:
    found = logged_output([entries(0, 2, 3, 5, 6)], [2], [5])
    assert told(found) == [(2, 5, 51, [3, 4, 5])]
    assert logged_output([entries(0, 2)], [2], [2]) is None


def test_none_becomes_too_large() -> None:
    with patch.object(steps, "RELEASED", 3):
        found = logged_output([entries(0, 2, 3, 5, 9, 10)], [0], [10])
    assert told(found) == [(0, 3, 31, [1, 2, 3]), (3, 5, 51, [4, 5]), (5, 9, 91, [6, 7, 8, 9]), (9, 10, 101, [10])]


def test_dictionaries_stay_as_they_are() -> None:
    """Others use them meanwhile, in other threads."""
    first, second = StringDictionary(["a"]), StringDictionary(["b"])
    some = entries(0, 2, 3, 5)
    for entry, dictionary in zip(some, (first, first, second)):
        ids = entry.batch.rows.time
        columns = (*entry.batch.rows.columns, Column(np.zeros(len(ids), np.int32), None, dictionary))
        entry.batch.rows = entry.batch.rows.with_columns(columns)
    found = logged_output([some], [0], [5])
    assert [(first_id, last_id) for first_id, last_id, _, _ in told(found)] == [(0, 3), (3, 5)]
    assert (first.strings, second.strings) == (["a"], ["b"])


def test_logged_output_is_read_back_unchanged() -> None:
    slices = [(1, logged_output([entries(0, 2, 3)], [0], [3])), (2, logged_output([entries(3, 4, 7)], [3], [7]))]
    found = exported(slices, 0, 7, 71)
    assert (found["base_id"], found["frontier"]) == (0, 71)
    assert [(b["upto_id"], b["boundary"], len(b["rows"])) for b in found["batches"]] == [(3, 31, 3), (7, 71, 4)]
