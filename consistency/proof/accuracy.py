"""How right tentative tuples were: each against the true one of its key, then by window and over all.

Shares, each from 0 to 1 (T the tentative results of a window, A the true ones, compared by key; PPA section VI-B):

    overlap    |T ∩ A| / |T ∪ A|
    topk       |T ∩ A| / |A|: how many of the true k were among those given
    precision  |T ∩ A| / |T|
    recall     |T ∩ A| / |A|
    exact      true results that came with all attributes right, of |A|

and per numeric attribute the mean of |tentative − true| / |true| over T ∩ A (where the true one is 0: 0 or 1).
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Final

from consistency.proof.comparison import all_alike, content
from consistency.proof.elements import TENTATIVE
from consistency.proof.measures import Measured
from consistency.proof.scene import Tables

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

#: Stretches of which Parquet is told when they were.
_SOME: Final = 100


def against_truth(tables: Tables, how: Measured) -> DataFrame:
    """Tentative tuples and the true ones that they stood for, met by key; one row for each that is on either side.

    Columns: ``partition, episode, window_us, arrived_us, undone_at_us, tentative struct, true struct, right boolean``.
    What stood for a true tuple is known by the stretch: it lies behind the last stable tuple and not beyond the reach.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    schema, stretches = tables.schema, tables.stretches
    window = F.col("time_us") if how.window_us == 0 else F.floor(F.col("time_us") / how.window_us) * how.window_us
    undone = F.broadcast(stretches.select("partition", "episode", "undone_at_us"))
    stretch_of = tables.parts.where(F.col("kind") == TENTATIVE).select("partition", "sequence", "episode")
    given = tables.received.tentative().join(stretch_of, ["partition", "sequence"])
    given = given.join(undone, ["partition", "episode"]).withColumn("key", content("tuple", schema, how.key))
    stood = stood_for(tables.truth, stretches, tables.true_last_us).withColumn("key", content("tuple", schema, how.key))
    key = ["key", "time_us", "episode", "partition"]  # a sort is fastest by what differs first
    by = Window.partitionBy(*key)
    given = given.withColumn("nth", F.row_number().over(by.orderBy("sequence", "row"))).select(
        *key, "nth", "arrived_us", "undone_at_us", F.col("tuple").alias("tentative")
    )
    stood = stood.withColumn("nth", F.row_number().over(by.orderBy("place"))).select(
        *key, "nth", F.col("tuple").alias("true")
    )
    met = given.join(stood, [*key, "nth"], how="full_outer")
    both = F.col("tentative").isNotNull() & F.col("true").isNotNull()
    right = both & all_alike("tentative", "true", schema)
    return met.withColumn("window_us", window).withColumn("right", right).drop("nth", "key", "time_us")


def stood_for(truth: DataFrame, stretches: DataFrame, last_us: int) -> DataFrame:
    """True tuples with the ``episode`` of each stretch that lasted over them.

    Stretches may overlap, so this is no equality.  Both sides are cut into equal pieces of tuple time, about one to a
    stretch, so that a tuple is held against the stretches near it only, however many there were.

    Args:
      last_us: no tuple has a later time; a stretch may reach to the end of time.
    """
    from pyspark.sql import functions as F

    spans = stretches.where(F.col("reach_us").isNotNull()).select(
        "partition", "episode", "reach_us", F.coalesce("kept_id", "stable_id", F.lit(0)).alias("from_id")
    )
    places = spans.withColumn("place", F.greatest("from_id", F.lit(1)))
    began = truth.select("partition", "place", F.col("time_us").alias("from_us")).join(
        F.broadcast(places), ["partition", "place"]
    )
    spans = began.withColumn("reach_us", F.least("reach_us", F.lit(last_us))).drop("place")
    spans = spans.where(F.col("from_us") <= F.col("reach_us")).localCheckpoint()
    some = spans.select("from_us", "reach_us").limit(_SOME + 1).collect()
    if len(some) <= _SOME:  # Parquet is told, and skips the rest
        truth = truth.where(reduce(or_, (F.col("time_us").between(*span) for span in some), F.lit(False)))
    mean = spans.agg(F.avg(F.col("reach_us") - F.col("from_us")).alias("mean_us")).first()
    width_us = 1 + int(mean["mean_us"] or 0) if mean is not None else 1
    pieces = F.sequence(F.floor(F.col("from_us") / width_us), F.floor(F.col("reach_us") / width_us))
    cut = F.broadcast(spans.withColumn("piece", F.explode(pieces)).drop("from_us"))
    inside = (F.col("place") > F.col("from_id")) & (F.col("time_us") <= F.col("reach_us"))
    pieced = truth.withColumn("piece", F.floor(F.col("time_us") / width_us))
    return pieced.join(cut, ["partition", "piece"]).where(inside)


def windows(met: DataFrame, how: Measured) -> DataFrame:
    """A row per window: ``episode, window_us, at_us, tentative, truth``, then each measure by name."""
    from pyspark.sql import functions as F

    counted = met.groupBy("episode", "window_us").agg(F.min("arrived_us").alias("at_us"), *_sums(how))
    return counted.select("episode", "window_us", "at_us", "tentative", "truth", *_measures(how))


def overall(met: DataFrame, how: Measured) -> DataFrame:
    """One row: tuples, how many were right, how long wrong ones stood, and each measure over everything."""
    from pyspark.sql import functions as F

    wrong = F.col("tentative").isNotNull() & ~F.col("right")
    stood = F.when(wrong, F.col("undone_at_us") - F.col("arrived_us"))
    counted = met.agg(
        *_sums(how),
        F.sum(F.when(F.col("right"), 1).otherwise(0)).alias("right_count"),
        F.max(stood).alias("stood_max_us"),
        F.percentile_approx(stood, 0.5, 1_000).alias("stood_median_us"),
    )
    return counted.select("tentative", "truth", "right_count", "stood_max_us", "stood_median_us", *_measures(how))


def _sums(how: Measured) -> list[Column]:
    from pyspark.sql import functions as F

    given, stood = F.col("tentative").isNotNull(), F.col("true").isNotNull()
    both = given & stood
    sums = [
        F.count(F.when(given, 1)).alias("tentative"),
        F.count(F.when(stood, 1)).alias("truth"),
        F.count(F.when(both, 1)).alias("_both"),
        F.count(F.when(F.col("right"), 1)).alias("_right"),
    ]
    for name in how.errors:
        one, other = (F.col(f"{side}.`{name}`").cast("double") for side in ("tentative", "true"))
        off = F.abs(one - other)
        relative = F.when(other == 0, F.when(off == 0, 0.0).otherwise(1.0)).otherwise(off / F.abs(other))
        sums.append(F.avg(F.when(both, relative)).alias(f"error {name}"))
    return sums


def _measures(how: Measured) -> list[Column]:
    from pyspark.sql import functions as F

    both, given, stood = F.col("_both"), F.col("tentative"), F.col("truth")
    shares = {
        "overlap": both / F.nullif(given + stood - both, F.lit(0)),
        "topk": both / F.nullif(stood, F.lit(0)),
        "precision": both / F.nullif(given, F.lit(0)),
        "recall": both / F.nullif(stood, F.lit(0)),
        "exact": F.col("_right") / F.nullif(stood, F.lit(0)),
    }
    return [shares[name].alias(name) for name in how.shares] + [F.col(f"`error {name}`") for name in how.errors]
