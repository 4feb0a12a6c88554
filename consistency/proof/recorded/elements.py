"""Frames of the elements that a client received of one output, a row per record of the recording.

RECEIVED has a row per tuple, and one per element that has none:

    partition int, sequence long (record within the partition, ascending), row int (within the record),
    arrived_us long, kind string, id long, time_us long, tuple struct<the output's attributes>

TRUTH, the expected tuples: ``partition int, place long (its id, from 1), time_us long, tuple struct<…>``.

``kind`` is ``stable``, ``tentative``, ``stable_boundary``, ``tentative_boundary``, ``undo`` or ``rec_done``.  ``id``
is the tuple's, or the last one that an undo leaves or a stable boundary covers; ``time_us`` is the tuple's or the
boundary's.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from consistency.proof.comparing.running_sums import before
from spe.stream.times import BEFORE_TIME

STABLE: Final = "stable"
TENTATIVE: Final = "tentative"
STABLE_BOUNDARY: Final = "stable_boundary"
TENTATIVE_BOUNDARY: Final = "tentative_boundary"
UNDO: Final = "undo"
REC_DONE: Final = "rec_done"


def elements(records: DataFrame) -> DataFrame:
    """Returns one row per record, with running values over the earlier ones.

    Args:
      records: ``partition, sequence, kind, arrived_us``; ``count`` of tuples, ``first_us`` and ``last_us`` of their
        times (a boundary's own in both), ``first_id`` and ``id``.  It is read twice.

    Returns:
      The same columns and ``episode`` (number of undos), ``seen_us`` (every time below it was received, in either
      kind), ``passed_id`` (largest stable id), ``final_us`` (largest stable boundary),
      ``heard_us`` and ``stable_us`` (last arrivals of any element, of a stable one).
    """
    kind = F.col("kind")
    reach = F.when(kind.isin(STABLE, TENTATIVE), F.col("last_us") + 1)
    reach = reach.when(kind.endswith("boundary"), F.col("last_us"))
    news = kind.isin(STABLE, TENTATIVE, STABLE_BOUNDARY, TENTATIVE_BOUNDARY)
    return before(
        records,
        {
            "episode": ("sum", F.when(kind == UNDO, 1).otherwise(0)),
            "seen_us": ("max", reach),
            "passed_id": ("max", F.when(kind == STABLE, F.col("id"))),
            "final_us": ("max", F.when(kind == STABLE_BOUNDARY, F.col("last_us"))),
            "heard_us": ("max", F.when(news, F.col("arrived_us"))),
            "stable_us": ("max", F.when(kind.isin(STABLE, STABLE_BOUNDARY), F.col("arrived_us"))),
        },
    ).withColumn("episode", F.coalesce("episode", F.lit(0)))


def is_behind() -> Column:
    """Does a record of :func:`elements` have a stable tuple whose id is not above all ids before it?"""
    return (F.col("kind") == STABLE) & (F.col("first_id") <= F.col("passed_id"))


def is_gap() -> Column:
    """Are ids left out before or within it (P2)?"""
    follows = F.col("first_id") <= F.coalesce("passed_id", F.lit(0)) + 1
    return (F.col("kind") == STABLE) & ~(follows & (F.col("id") - F.col("first_id") + 1 <= F.col("count")))


def is_belated() -> Column:
    """Does it have a new stable tuple from below an earlier stable boundary (B1, B7)?"""
    new = F.col("id") > F.coalesce("passed_id", F.lit(0))
    return (F.col("kind") == STABLE) & new & (F.col("first_us") < F.coalesce("final_us", F.lit(BEFORE_TIME)))


def episodes(parts: DataFrame) -> DataFrame:
    """Returns one row per stretch between two undos of a partition, from :func:`elements`; one per correction.

    Columns: ``partition, episode``; ``undone_sequence, undone_at_us, kept_id``: of the undo that ends it (null: none
      does); ``stable_id, settled_us``: the largest id and time of stable tuples so far; ``stable_sequence``: of the
      last of them in this stretch; ``tentative``: number of tentative tuples; ``tentative_sequence``: of the first of
      them; ``reach_us``: their largest tuple time.
    """
    kind = F.col("kind")
    undo, stable, tentative = (kind == k for k in (UNDO, STABLE, TENTATIVE))
    earlier = (
        Window.partitionBy("partition").orderBy("episode").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )
    reach = F.when(tentative, F.col("last_us")).when(kind == TENTATIVE_BOUNDARY, F.col("last_us") - 1)
    return (
        parts.groupBy("partition", "episode")
        .agg(
            F.max(F.when(undo, F.col("sequence"))).alias("undone_sequence"),
            F.max(F.when(undo, F.col("arrived_us"))).alias("undone_at_us"),
            F.max(F.when(undo, F.col("id"))).alias("kept_id"),
            F.max(F.when(stable, F.col("id"))).alias("stable_id"),
            F.max(F.when(stable, F.col("last_us"))).alias("settled_us"),
            F.max(F.when(stable, F.col("sequence"))).alias("stable_sequence"),
            F.sum(F.when(tentative, F.col("count")).otherwise(0)).alias("tentative"),
            F.min(F.when(tentative, F.col("sequence"))).alias("tentative_sequence"),
            F.max(reach).alias("reach_us"),
        )
        .withColumns({name: F.max(name).over(earlier) for name in ("stable_id", "settled_us")})
    )
