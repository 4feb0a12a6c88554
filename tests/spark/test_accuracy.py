"""Which true tuples tentative ones stood for, against going through all pairs."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from consistency.proof.accuracy import stood_for
from spe.stream.times import END_OF_TIME
from tests.support.long_forms import long_but

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TRUTH = "partition int, place long, time_us long, tuple struct<n: int>"
STRETCHES = "partition int, episode long, kept_id long, stable_id long, reach_us long"


@pytest.mark.parametrize("seed", long_but([0], range(3)))
def test_stretches_that_overlap_find_their_tuples(spark: SparkSession, seed: int) -> None:
    rng = random.Random(seed)
    times = {p: sorted(rng.randrange(5_000) for _ in range(rng.randrange(1, 80))) for p in (0, 1)}
    true = [(p, place, at, (place,)) for p in times for place, at in enumerate(times[p], 1)]
    stretches = [
        (
            rng.randrange(3),  # in partition 2 nothing is true
            episode,
            rng.choice([None, rng.randrange(len(times[0]) + 3)]),
            rng.choice([None, rng.randrange(len(times[0]) + 3)]),
            rng.choice([None, rng.randrange(-100, 6_000), END_OF_TIME - 1]),
        )
        for episode in range(60)
    ]
    met = stood_for(
        spark.createDataFrame(true, TRUTH), spark.createDataFrame(stretches, STRETCHES), max(r[2] for r in true)
    )
    found = sorted((r["partition"], r["episode"], r["place"]) for r in met.collect())

    def behind(kept: int | None, stable: int | None) -> int:
        return kept if kept is not None else stable or 0

    assert found == sorted(
        (p, episode, place)
        for p, place, at, _ in true
        for of, episode, kept, stable, reach in stretches
        if p == of and reach is not None and place > behind(kept, stable) and at <= reach
    )
    assert found


def test_no_stretch_finds_nothing(spark: SparkSession) -> None:
    true = spark.createDataFrame([(0, 1, 5, (1,))], TRUTH)
    assert stood_for(true, spark.createDataFrame([], STRETCHES), 5).count() == 0
