"""Defines equality by plain joins of Spark; the faster ways must agree with it.

``comparison.unplaced`` joins only blocks whose digests differ, and ``accuracy.against_truth`` pairs tuples within tasks
by NumPy.  Tests run these and the definition on the same data.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from consistency.proof.comparing.values import all_alike, content
from consistency.proof.recorded.elements import TENTATIVE
from spe.stream.schema import Schema

_PLACE = ("partition", "place")


def not_in_place(truth: DataFrame, stable: DataFrame, schema: Schema) -> DataFrame:
    """Returns true and stable tuples that are not equal at their place: none for a right stream.

    Args:
      truth: TRUTH (consistency.proof.recorded.elements).
      stable: RECEIVED, of stable tuples only; a tuple's place is its id.

    Returns:
      ``partition, place, time_us, sequence, row, arrived_us, received, expected``; one of the last two is null.  Of
      equal tuples at one place the later ones are returned, too.
    """
    arrival = ("sequence", "row", "arrived_us")
    theirs = truth.select(*_PLACE, F.col("time_us").alias("true_us"), F.col("tuple").alias("expected"))
    ours = stable.select("partition", F.col("id").alias("place"), "time_us", *arrival, F.col("tuple").alias("received"))
    there = F.col("expected").isNotNull() & F.col("received").isNotNull()
    equal = there & F.col("time_us").eqNullSafe(F.col("true_us")) & all_alike("received", "expected", schema)
    copies = Window.partitionBy(*_PLACE).orderBy(F.col("equal").desc(), "sequence", "row")
    met = theirs.join(ours, list(_PLACE), how="full_outer").withColumn("equal", equal)
    rest = met.withColumn("copy", F.row_number().over(copies)).where(~F.col("equal") | (F.col("copy") > 1))

    def missing(name: str, like: DataFrame, column: str) -> Column:
        return F.lit(None).cast(like.schema[column].dataType).alias(name)

    lost = rest.where(F.col("expected").isNotNull() & (F.col("copy") == 1)).select(
        *_PLACE,
        F.col("true_us").alias("time_us"),
        *(missing(name, ours, name) for name in arrival),
        missing("received", theirs, "expected"),
        "expected",
    )
    odd = rest.where(F.col("received").isNotNull()).select(
        *_PLACE, "time_us", *arrival, "received", missing("expected", ours, "received")
    )
    return lost.unionByName(odd)


def stood_for(
    truth: DataFrame, received: DataFrame, stretches: DataFrame, schema: Schema, key: Sequence[str], window_us: int
) -> DataFrame:
    """Pairs tentative tuples with the true ones that they stood for: the n-th of a stretch, time and key with the n-th.

    A true tuple may have a counterpart in each stretch behind whose last stable tuple it lies, up to the reach.

    Args:
      truth, received: TRUTH and RECEIVED.
      stretches: result of ``elements.episodes``.
      key: attributes that make a tentative and a true tuple the same result; floats by their first digits.
      window_us: width of a result window in tuple time; 0: results of equal time form a window.

    Returns:
      MET (``comparing.matching``): a row for each tuple of either side.
    """
    bounds = _bounds(stretches)
    same = content("tuple", Schema(tuple(attribute for attribute in schema if attribute.name in key)))
    group = ["partition", "episode", "time_us", "content"]

    def numbered(rows: DataFrame, order: Sequence[str], side: str, *more: str) -> DataFrame:
        nth = F.row_number().over(Window.partitionBy(*group).orderBy(*order)).alias("nth")
        return rows.withColumn("content", same).select(*group, nth, F.col("tuple").alias(side), *more)

    inside = (F.col("sequence") > F.col("after")) & (F.col("sequence") < F.col("before"))
    ours = received.where(F.col("kind") == TENTATIVE).join(bounds, "partition").where(inside)
    ours = numbered(ours, ("sequence", "row"), "tentative", "arrived_us", "undone_at_us")
    reached = (F.col("place") > F.col("from_id")) & (F.col("time_us") <= F.col("reach_us"))
    theirs = numbered(truth.join(bounds, "partition").where(reached), ("place",), "true")
    met = ours.join(theirs, [*group, "nth"], how="full_outer")
    window = F.floor(F.col("time_us") / window_us) * window_us if window_us else F.col("time_us")
    both = F.col("tentative").isNotNull() & F.col("true").isNotNull()
    right = both & all_alike("tentative", "true", schema)
    return met.select(
        "partition", "episode", window.alias("window_us"), "arrived_us", "undone_at_us", "tentative", "true",
        right.alias("right"),
    )  # fmt: skip


def _bounds(stretches: DataFrame) -> DataFrame:
    """Returns the records that each stretch lies between, and the last tuple that stood before it."""
    by_episode = Window.partitionBy("partition").orderBy("episode")
    return stretches.select(
        "partition",
        "episode",
        "undone_at_us",
        "reach_us",
        F.coalesce("kept_id", "stable_id", F.lit(0)).alias("from_id"),
        F.coalesce(F.lag("undone_sequence").over(by_episode), F.lit(-1)).alias("after"),
        F.coalesce("undone_sequence", F.lit(2**62)).alias("before"),
    )
