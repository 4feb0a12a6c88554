"""A recording in which one tuple was altered, dropped, doubled or swapped: that tuple is named, and no other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pytest

from consistency.proof.comparing import comparison, digests
from consistency.proof.comparing.comparison import belated, late, misplaced, undone, unplaced, unresolved
from consistency.proof.comparing.definition import not_in_place
from consistency.proof.recorded import received_output as received_by
from consistency.proof.recorded.elements import STABLE, elements, episodes, is_gap
from consistency.proof.recorded.received_output import ReceivedStream
from spe.stream.batch import Batch, Column, Rows
from spe.stream.names import Kind
from spe.stream.schema import Schema
from tests.support.received import received, truth
from tests.support.streams import PAYLOAD

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Eight tuples; three were tentative at first, then corrected; x and y come twice each, truly.
TRUE = "S1/5a S2/6b S3/7x S4/7x B10 S5/12c S6/13y S7/13d S8/14y B20 Binf"
#: What was received -> flaws as ``flaw place payload``, in the order of flaw and place.
CASES = {
    # healthy
    "S1/5a S2/6b S3/7x S4/7x B10 S5/12c S6/13y S7/13d S8/14y B20 Binf": "",
    "S1/5a | S2/6b | S3/7x S4/7x B10 T/12c T/13y b20 U(4) S5/12c S6/13y S7/13d S8/14y B20 R+ Binf": "",
    "S1/5a S2/6b S3/7x S4/7x B10 T/12c U(4) T/12c T/13e U(4) S5/12c S6/13y S7/13d S8/14y R+ B20 Binf": "",
    # altered: stable, a correction, and so that it equals another tuple
    "S1/5a S2/6z S3/7x S4/7x B10 S5/12c S6/13y S7/13d S8/14y B20 Binf": "altered 2 z",
    "S1/5a S2/6b S3/7x S4/7x B10 T/12c b20 U(4) S5/12q S6/13y S7/13d S8/14y B20 R+ Binf": "altered 5 q",
    "S1/5a S2/6b S3/7x S4/7x B10 S5/12c S6/13y S7/13y S8/14y B20 Binf": "altered 7 y",
    "S1/5a S2/6b S3/7x S4/8x B10 S5/12c S6/13y S7/13d S8/14y B20 Binf": "altered 4 x",
    # dropped: with a hole in the ids, with those after it renumbered, the first, the last, one of two equal ones
    "S1/5a S2/6b S3/7x S4/7x B10 S6/13y S7/13d S8/14y B20 Binf": "missing 5 c",
    "S1/5a S2/6b S3/7x S4/7x B10 S5/13y S6/13d S7/14y B20 Binf": "missing 5 c",
    "S2/6b S3/7x S4/7x B10 S5/12c S6/13y S7/13d S8/14y B20 Binf": "missing 1 a",
    "S1/5a S2/6b S3/7x S4/7x B10 S5/12c S6/13y S7/13d B20 Binf": "missing 8 y",
    "S1/5a S2/6b S3/7x B10 S5/12c S6/13y S7/13d S8/14y B20 Binf": "missing 4 x",
    "S1/5a S2/6b S3/7x S4/7x B10 T/12c T/13y b20 U(4) S5/12c S6/13y S8/14y B20 R+ Binf": "missing 7 d",
    # doubled: the same id again, at once and later, and as a tuple of its own
    "S1/5a S2/6b | S2/6b | S3/7x S4/7x B10 S5/12c S6/13y S7/13d S8/14y B20 Binf": "duplicated 2 b",
    "S1/5a S2/6b S3/7x S4/7x B10 S5/12c S6/13y S7/13d S8/14y | S2/6b B20 Binf": "duplicated 2 b",
    "S1/5a S2/6b S3/6b S4/7x S5/7x B10 S6/12c S7/13y S8/13d S9/14y B20 Binf": "duplicated 3 b",
    "S1/5a S2/6b S3/7x S4/7x B10 S5/12c S6/13y S7/13d S8/14y S9/15w B20 Binf": "extra 9 w",
    "S1/5a S2/6b S3/7x S4/7x B10 T/12c U(4) S5/12c | S5/12c | S6/13y S7/13d S8/14y B20 R+ Binf": "duplicated 5 c",
    # swapped: contents under the right ids, and whole elements with their ids
    "S1/5a S2/7x S3/6b S4/7x B10 S5/12c S6/13y S7/13d S8/14y B20 Binf": "reordered 2 b, reordered 3 x",
    "S1/5a S2/6b S3/7x S4/7x B10 S5/12c S6/13d S7/13y S8/14y B20 Binf": "reordered 6 y, reordered 7 d",
    "S1/5a S2/6b S3/7x S4/7x B10 S6/13y | S5/12c | S7/13d S8/14y B20 Binf": "reordered 5 c",
    # undo: taken back below what was stable; lost; too late; never
    "S1/5a S2/6b S3/7x S4/7x B10 T/12c U(3) S4/7x S5/12c S6/13y S7/13d S8/14y B20 R+ Binf": (
        "duplicated 4 x, undone 4 x"
    ),
    "S1/5a S2/6b S3/7x S4/7x B10 T5/12c T6/13q b20 S5/12c S6/13y S7/13d S8/14y B20 R+ Binf": (
        "uncorrected 5 c, uncorrected 6 q"
    ),
    # ids with a gap, in the middle and from the first one on
    "S1/5a S2/6b S3/7x S4/7x B10 S6/12c S7/13y S8/13d S9/14y B20 Binf": (
        "misnumbered 5 c, misnumbered 6 y, misnumbered 7 d, misnumbered 8 y"
    ),
    "S8/5a S9/6b S10/7x S11/7x B10 S12/12c S13/13y S14/13d S15/14y B20 Binf": (
        "misnumbered 1 a, misnumbered 2 b, misnumbered 3 x, misnumbered 4 x, "
        "misnumbered 5 c, misnumbered 6 y, misnumbered 7 d, misnumbered 8 y"
    ),
    # boundaries ahead of tuples
    "S1/5a S2/6b B7 S3/7x S4/7x B10 S5/12c S6/13y S7/13d B14 S8/14y B20 Binf": "",
    "S1/5a S2/6b B8 S3/7x S4/7x B10 S5/12c S6/13y S7/13d S8/14y B20 Binf": "belated 3 x, belated 4 x",
    "Binf S1/5a S2/6b S3/7x S4/7x B10 S5/12c S6/13y S7/13d S8/14y": (
        "belated 1 a, belated 2 b, belated 3 x, belated 4 x, belated 5 c, belated 6 y, belated 7 d, belated 8 y"
    ),
    "S1/5a S2/6b S3/7x S4/7x B10 T5/12c b20 | S5/12c | U(5) S6/13y S7/13d S8/14y B20 R+ Binf": "overtaken 5 c",
    "S1/5a S2/6b S3/7x S4/7x B10 S5/12c S6/13y S7/13d S8/14y B20 T9/25w b30": "uncorrected 9 w",
}


@pytest.fixture(scope="module", params=[(2, 100), (digests.BLOCK, 0)], ids=["small blocks", "too many blocks to name"])
def found(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[dict[int, str]]:
    """Flaws by case, all of one job."""
    with pytest.MonkeyPatch.context() as patch:
        block, some = request.param
        for module in (comparison, digests, received_by):
            patch.setattr(module, "BLOCK", block)
        patch.setattr(received_by, "_SOME", some)
        yield all_found(spark)


def all_found(spark: SparkSession) -> dict[int, str]:
    streams = list(CASES)
    true, came = truth(spark, [TRUE] * len(streams)).rows, received(spark, streams)
    parts = elements(came.records).cache()
    stretches = episodes(parts)
    rest = unplaced(true, came, PAYLOAD)
    assert rest is not None
    flaws = (
        misplaced(rest, true, PAYLOAD, [row["partition"] for row in parts.where(is_gap()).collect()])
        .unionByName(belated(came.rows, parts))
        .unionByName(late(came.rows, parts))
        .unionByName(undone(came.rows, stretches))
        .unionByName(unresolved(came.rows, stretches))
    )
    named: dict[int, list[str]] = {}
    for one in flaws.orderBy("partition", "flaw", "place").collect():
        tuple_ = one["received"] or one["expected"]
        named.setdefault(one["partition"], []).append(f"{one['flaw']} {one['place']} {tuple_['x']}")
    return {number: ", ".join(parts) for number, parts in named.items()}


@pytest.mark.parametrize("number", range(len(CASES)), ids=[text or "healthy" for text in CASES.values()])
def test_an_altered_tuple_of_a_recording_is_named(found: dict[int, str], number: int) -> None:
    assert found.get(number, "") == list(CASES.values())[number]


def stable(stream: ReceivedStream) -> DataFrame:
    return stream.rows.where(f"kind = '{STABLE}'")


def test_blocks_leave_over_what_the_definition_does(spark: SparkSession) -> None:
    streams = list(CASES)
    true, came = truth(spark, [TRUE] * len(streams)).rows, received(spark, streams)
    rest = unplaced(true, came, PAYLOAD)
    assert rest is not None
    defined = not_in_place(true, stable(came), PAYLOAD)
    assert sorted(map(str, rest.collect())) == sorted(map(str, defined.collect()))


@pytest.mark.parametrize(
    ("true", "came", "left"),
    [
        ((None, 5, 1.0), (None, 5, 1.0), 0),
        ((None, 5, 1.0), (5, None, 1.0), 2),  # a hash leaves nulls out
        ((None, 5, 1.0), (None, 5, 1.0 + 1e-12), 0),  # other bits, and within the tolerance
        ((None, 5, float("nan")), (None, 5, float("nan")), 0),
        ((None, 5, 0.0), (None, 5, -0.0), 0),
    ],
)
def test_rows_with_equal_digests_are_equal(
    spark: SparkSession, true: tuple[object, ...], came: tuple[object, ...], left: int
) -> None:
    schema = Schema.of(x="int64", y="int64", f="float64")
    one = spark.createDataFrame(
        [(0, 1, 5, true)], "partition int, place long, time_us long, tuple struct<x: bigint, y: bigint, f: double>"
    )
    columns = tuple(Column.from_list([value], a.type) for value, a in zip(came, schema))
    time = np.array([5])
    other = received(spark, [[Batch(Kind.STABLE, 0, 1, None, Rows(time, time, columns))]], schema)
    rest = unplaced(one, other, schema)
    assert (0 if rest is None else rest.count()) == left
    assert not_in_place(one, stable(other), schema).count() == left
