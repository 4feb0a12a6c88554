"""The stream of what an operator rejects: each once, in an order that slices do not change (U15, U3)."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from operators.fragment import Fragment
from operators.rejected import RejectedStream
from operators.rejections import Rejection
from operators.steps import finished
from operators.sunion.sunion import SUnion
from spe.plan.plan import InputStream, Unit
from spe.query.declaration import OnError
from spe.query.operators.custom import CustomSpec
from spe.query.operators.rejected import REJECTIONS, RejectedSpec
from spe.query.query import QueryOperator
from spe.stream.batch import Batch, Boundary, Rows, concat_rows
from spe.stream.names import Kind, StreamId, UnitId
from spe.stream.schema import Schema

NUMBERS = Schema.of(n="int64")
A, OUT, LEFT = StreamId("a"), StreamId("out"), StreamId("left")
PICKY = CustomSpec((A,), "tests.support.operators_for_tests:Picky", {"bad": 3}, OnError.SKIP)
OPERATORS = (QueryOperator(OUT, PICKY, NUMBERS), QueryOperator(LEFT, RejectedSpec(OUT), REJECTIONS))
UNIT = Unit(UnitId("u"), "f", (InputStream(A, NUMBERS, 2, None),), OPERATORS, (OUT, LEFT), partitions=1)

TIMES = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 9)), max_size=30)


def tuples(rows: Rows | None) -> list[tuple[Any, ...]]:
    return [] if rows is None else list(zip(rows.time.tolist(), rows.to_tuples(), strict=True))


@given(given=st.tuples(TIMES, TIMES), ends=st.sets(st.integers(1, 30)))
def test_the_stream_does_not_depend_on_cuts(given: tuple[list[tuple[int, int]], ...], ends: set[int]) -> None:
    sunion = SUnion(inputs=[(0, False), (0, False)], streams=1, bucket_us=1)
    for one, entries in zip(sunion.inputs, given, strict=True):
        if entries:
            made = Rows.from_tuples(NUMBERS, [t for t, _ in entries], [(n,) for _, n in entries])
            one.add_stable(Batch(Kind.STABLE, 0, len(entries), None, made), 0)
    fragment, found = Fragment(UNIT), list[tuple[Any, ...]]()
    for end in [*sorted(ends), 31]:
        for one in sunion.inputs:
            one.add_boundary(Boundary(Kind.STABLE, end, one.position), 0)
        if (piece := sunion.release_stable(1000)) is not None:
            found += tuples(fragment.step(piece)[1])
    placed = [(t, at, id, n) for at, rows in enumerate(given) for id, (t, n) in enumerate(rows, 1) if n % 3 == 0]
    wanted = [
        (t, ("row", number, f"a/{at}", id, json.dumps({"n": n})))
        for number, (t, at, id, n) in enumerate(sorted(placed), 1)
    ]
    assert [(t, (*row[:4], row[5])) for t, row in found] == wanted
    assert all(f"{json.loads(row[5])['n']}" in row[4] for _, row in found), "each has its reason"


def test_many_rejections_come_in_portions_by_time() -> None:
    """Rows and results have numbers of their own; rows of one time come before results."""
    some = [Rejection(OUT, n % 2 == 1, n, None if n % 2 else "a/0", None, n // 4, {}, "bad \udc80") for n in range(600)]
    steps = RejectedStream(REJECTIONS).made(some[::-1])
    assert next(steps, "done") is None, "there is a pause"
    pieces = finished(RejectedStream(REJECTIONS).made(some[::-1]))
    assert max(map(len, pieces)) < 300
    rows = concat_rows(pieces).to_tuples()
    assert [row[:2] for row in rows[:4]] == [("row", 0), ("row", 2), ("result", 1), ("result", 3)]
    assert len(rows) == 600
    assert rows[0][2:5] == ("a/0", None, "bad \\udc80")
    assert rows[2][2:4] == (None, None)


def test_nothing_rejected_is_no_rows() -> None:
    assert finished(RejectedStream(REJECTIONS).made([])) == []
