"""Which true tuples tentative ones stood for and met, against going through all pairs."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from consistency.proof.comparing import accuracy
from consistency.proof.comparing.definition import stood_for
from consistency.proof.comparing.measures import Measured
from consistency.proof.recorded.received_output import ReceivedStream
from consistency.proof.scene import Tables
from consistency.proof.storage.files import TruthFiles, local_files
from consistency.proof.storage.local import LocalTables
from consistency.proof.storage.tables import frame_of
from spe.stream.schema import Schema
from spe.stream.times import END_OF_TIME
from tests.support.long_forms import long_but

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

SCHEMA = Schema.of(n="int64", x="float64", s="string")
TUPLE = "tuple struct<n: long, x: double, s: string>"
TRUTH = f"partition int, place long, time_us long, {TUPLE}"
RECEIVED = f"partition int, sequence long, row int, arrived_us long, kind string, id long, time_us long, {TUPLE}"
STRETCHES = (
    "partition int, episode long, undone_sequence long, undone_at_us long, kept_id long, stable_id long, "
    "settled_us long, reach_us long"
)
#: By what tuples meet; floats of a key by their first digits.
HOW = Measured(key=("n", "s"), shares=("overlap",), errors=("x",), window_us=10)


def tables(
    spark: SparkSession, true: list[Any], given: list[Any], stretches: list[Any], folder: Path | None = None
) -> Tables:
    """With the truth in files below a folder."""
    received = ReceivedStream(spark.range(0), spark.createDataFrame(given, RECEIVED))
    truth, files = spark.createDataFrame(true, TRUTH), None
    if folder is not None:
        truth = LocalTables(spark, folder).keep("truth", truth)
        files = TruthFiles(spark, local_files(truth), None)
    return Tables(
        parts=spark.range(0),
        stretches=spark.createDataFrame(stretches, STRETCHES),
        sums=[{"stable": len(true), "tentative": len(given)}],  # type: ignore[list-item]
        corrections={},  # type: ignore[arg-type]
        truth=truth,
        files=files,
        true_count=len(true),
        true_last_us=max((r[2] for r in true), default=0),
        received=received,
        schema=SCHEMA,
        mistyped=[],
    )


def met(one: Tables, how: Measured = HOW, *, in_order: bool = True, right: bool = False) -> list[Row]:
    return frame_of(accuracy.against_truth(one, how, in_order=in_order, right=right)).collect()


def some_tuple(rng: random.Random) -> tuple[Any, ...]:
    return (rng.choice([None, 1]), rng.choice([None, 0.0, -0.0, float("nan")]), rng.choice([None, "é"]))


@pytest.mark.parametrize("seed", long_but([0], range(6)))
@pytest.mark.parametrize("few", [True, False], ids=["all spans told to Parquet", "one that covers them"])
@pytest.mark.parametrize("right", [True, False], ids=["right", "wrong"])
@pytest.mark.parametrize("files", [True, False], ids=["of files", "of Spark's"])
def test_overlapping_stretches_match_as_in_reference(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, seed: int, few: bool, right: bool, files: bool
) -> None:
    if not few:
        monkeypatch.setattr(accuracy, "_SPANS", 0)
    monkeypatch.setattr(accuracy, "_ROWS_WITH_TEXTS", 50)  # several tasks
    rng = random.Random(seed)
    times = {p: sorted(rng.randrange(30) for _ in range(rng.randrange(20, 60))) for p in (0, 1)}
    true = [(p, place, at, some_tuple(rng)) for p in times for place, at in enumerate(times[p], 1)]
    undos = {p: sorted(rng.sample(range(1, 200), 12)) for p in (0, 1, 2)}  # in partition 2 nothing is true
    stretches, stable = [], dict.fromkeys(undos, 0)
    for p, each in undos.items():
        for episode, undo in enumerate([*each, None]):
            stable[p] += rng.randrange(8)
            if right:
                stable[p] = min(stable[p], len(times.get(p, ())))
                kept = rng.choice([None, stable[p]]) if undo else None
                settled = times[p][stable[p] - 1] if stable[p] else None
            else:  # an undo that takes back stable tuples, or is behind more than there is; times of anywhere
                kept = rng.choice([None, rng.randrange(60), 0, 3]) if undo else None
                settled = rng.randrange(60)
            reach = rng.choice([None, rng.randrange(-5, 40), END_OF_TIME - 1])
            at = None if undo is None else 1_000 + undo
            stretches.append((p, episode, undo, at, kept, stable[p] or None, settled, reach))
    given = [
        (p, sequence, row, sequence * 3, "tentative", None, rng.randrange(30), some_tuple(rng))
        for p in undos
        for sequence in rng.sample([n for n in range(1, 220) if n not in undos[p]], 120)
        for row in range(rng.randrange(1, 3))
    ]

    sides: dict[Any, tuple[list[Any], list[Any]]] = defaultdict(lambda: ([], []))
    for p, sequence, _, arrived, _, _, time, tuple_ in sorted(given):
        episode = sum(1 for undo in undos[p] if undo < sequence)
        undone = 1_000 + undos[p][episode] if episode < len(undos[p]) else None
        sides[p, episode, time, tuple_[0], tuple_[2]][0].append((arrived, undone, tuple_))
    for p, episode, _, _, kept, stable_id, _, reach in stretches:
        for q, place, time, tuple_ in true:
            behind = kept if kept is not None else stable_id or 0
            if p == q and reach is not None and place > behind and time <= reach:
                sides[p, episode, time, tuple_[0], tuple_[2]][1].append(tuple_)
    expected = []
    for (p, episode, time, _, _), (ours, theirs) in sides.items():
        for n in range(max(len(ours), len(theirs))):
            arrived, undone, tentative = ours[n] if n < len(ours) else (None, None, None)
            stood = theirs[n] if n < len(theirs) else None
            right = tentative is not None and stood is not None and text(tentative) == text(stood)
            expected.append((p, episode, time // 10 * 10, arrived, undone, text(tentative), text(stood), right))
    both = tables(spark, true, given, stretches, tmp_path if files else None)
    found = [as_text(row) for row in met(both, right=right)]
    assert sorted(found, key=str) == sorted(expected, key=str)
    assert {f[-1] for f in found} == {True, False}
    defined = stood_for(both.truth, both.received.rows, both.stretches, SCHEMA, HOW.key, HOW.window_us)
    assert sorted(map(as_text, defined.collect()), key=str) == sorted(expected, key=str)


def as_text(row: Row) -> tuple[Any, ...]:
    times = tuple(row[name] for name in ("partition", "episode", "window_us", "arrived_us", "undone_at_us"))
    return (*times, text(row["tentative"]), text(row["true"]), row["right"])


def text(tuple_: tuple[Any, ...] | None) -> str:
    """Equal for equal tuples: NaN is NaN, and −0.0 is 0.0."""
    return "-" if tuple_ is None else str(tuple(v + 0.0 if isinstance(v, float) else v for v in tuple_))


@pytest.mark.parametrize(
    ("one", "other", "meet", "right"),
    [
        (1.0, 1.0 + 1e-10, True, True),
        (2.0, 2.0 - 1e-10, True, True),
        (1e300, 1e300 * (1 + 1e-10), True, True),
        (5e-324, 5e-324, True, True),
        (1.0, 1.0 + 2e-9, True, False),
        (1.0, 1.001, False, False),
        (float("inf"), float("inf"), True, True),
        (float("inf"), float("-inf"), False, False),
        (float("nan"), float("nan"), True, True),
        (0.0, None, False, False),
        (None, None, True, True),
    ],
)
def test_floats_of_a_key_meet_by_their_first_digits(
    spark: SparkSession, one: float | None, other: float | None, meet: bool, right: bool
) -> None:
    given = [(0, 2, 0, 7, "tentative", None, 5, (1, one, "s"))]
    how = Measured(key=("x",), shares=("overlap",), errors=(), window_us=0)
    found = met(tables(spark, [(0, 1, 5, (1, other, "s"))], given, [(0, 0, 3, 8, None, None, None, 5)]), how)
    assert [r["right"] for r in found] == ([right] if meet else [False, False])


def test_source_times_may_precede_last_stable_tuple(spark: SparkSession) -> None:
    """Ids of a source's output are in order of arrival, and its times need not be."""
    true = [(0, place, time, (place, 0.0, "s")) for place, time in enumerate([5, 9, 7, 12, 8, 20, 11], 1)]
    found = met(tables(spark, true, [], [(0, 0, 3, 8, 2, 2, 9, 11)]), in_order=False)
    assert sorted(r["true"]["n"] for r in found) == [3, 5, 7]


def test_true_attributes_that_are_never_null(spark: SparkSession) -> None:
    """Where there is no true tuple, they are all the same."""
    one = tables(spark, [(0, 1, 5, (1, 1.0, "s"))], [(0, 2, 0, 7, "tentative", None, 5, (2, 1.0, "s"))], [])
    never = "struct(coalesce(tuple.n, 0L) AS n, coalesce(tuple.x, 0D) AS x, coalesce(tuple.s, '') AS s)"
    truth = one.truth.selectExpr("partition", "place", "time_us", f"{never} AS tuple")
    assert not any(field.nullable for field in truth.schema["tuple"].dataType)  # type: ignore[attr-defined]
    stretches = spark.createDataFrame([(0, 0, 3, 8, None, None, None, 5)], STRETCHES)
    found = met(replace(one, truth=truth, stretches=stretches))
    assert sorted((r["tentative"] is None, r["true"] is None) for r in found) == [(False, True), (True, False)]


def test_how_long_wrong_tuples_stood(spark: SparkSession) -> None:
    """Each in a stretch of its own, taken back at 100.  What was right, and what still stands, does not count."""
    arrived = [99, 98, 98, 70, 5, 1]
    given = [(0, 2 * n, 0, at, "tentative", None, 5, (n, 1.0, "s")) for n, at in enumerate(arrived)]
    ends = [(0, n, 2 * n + 1, 100, 0, None, None, 5) for n in range(5)]
    one = tables(spark, [(0, 1, 5, (4, 1.0, "s"))], given, [*ends, (0, 5, None, None, None, None, None, 5)])
    tallies = accuracy.tallies(frame_of(accuracy.against_truth(one, HOW, in_order=True, right=False)), HOW)
    found = accuracy.overall(tallies, HOW).first()
    assert found is not None
    assert (found["tentative"], found["right_count"]) == (6, 1)
    assert (found["stood_median_us"], found["stood_max_us"]) == (2, 30)  # of 1, 2, 2 and 30


def test_no_stretch_finds_nothing(spark: SparkSession) -> None:
    assert met(tables(spark, [(0, 1, 5, (1, 1.0, "s"))], [], [])) == []
