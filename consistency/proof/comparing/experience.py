"""Figures of what a client received over time: delay of new tuples, gaps, and tuples per interval.

The definitions are those of ``replicas.client.statistics``, computed here from the recording: *Delay_new* of a tuple
that is new (it lies, in tuple time, beyond everything received before in either kind, boundaries included) runs from
the wall time of its tuple time to its first receipt.  Only where a source ends does a result come before its time,
because the last windows are over then.  No result comes before its data.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from consistency.proof.recorded.elements import STABLE, STABLE_BOUNDARY, TENTATIVE, TENTATIVE_BOUNDARY
from consistency.proof.scene import Tables
from spe.plan.delays import ReplayEpoch
from spe.stream.times import END_OF_TIME

#: Largest difference between the clocks of two machines.  A result that comes earlier before its data shows a larger
#: difference or a wrong arrival time; then delays are unknown.
CLOCK_SKEW_US: Final = 500_000


def delays(tables: Tables, epoch: ReplayEpoch, data_until_us: int) -> DataFrame:
    """Returns ``partition, sequence, arrived_us, delay_us, early_us`` of each batch with new tuples.

    Both delays are of the oldest new tuple: ``delay_us`` is never negative; ``early_us`` is the time between its
    arrival and the wall time of its data (negative: it arrived after its data).

    Args:
      data_until_us: the largest time of a source tuple.
    """
    batches = tables.parts.where(F.col("kind").isin(STABLE, TENTATIVE))
    passed = F.coalesce(F.col("seen_us"), F.lit(-END_OF_TIME))
    fresh = batches.where(F.col("last_us") >= passed)
    whole = fresh.where(F.col("first_us") >= passed).withColumn("oldest_us", F.col("first_us"))
    mixed = F.broadcast(fresh.where(F.col("first_us") < passed).select("partition", "sequence", "seen_us"))
    partly_new = (
        tables.received.of_records(mixed)
        .join(mixed, ["partition", "sequence"])
        .where(F.col("time_us") >= F.col("seen_us"))
        .groupBy("partition", "sequence")
        .agg(F.first("arrived_us").alias("arrived_us"), F.min("time_us").alias("oldest_us"))
    )
    columns = ["partition", "sequence", "arrived_us", "oldest_us"]

    def created(time: Column) -> Column:
        since = F.round((time - F.lit(epoch.event_start_us)) / F.lit(epoch.speed)).cast("long")
        return F.lit(epoch.wall_start_us) + since

    oldest, arrived = F.col("oldest_us"), F.col("arrived_us")
    new = whole.select(*columns).unionByName(partly_new.select(*columns))
    return new.select(
        "partition",
        "sequence",
        "arrived_us",
        F.greatest(arrived - created(oldest), F.lit(0)).alias("delay_us"),
        (created(F.least(oldest, F.lit(data_until_us))) - arrived).alias("early_us"),
    )


def gaps(parts: DataFrame, skip_us: int) -> DataFrame:
    """Returns one row, ``any_us`` and ``stable_us``: the longest gaps of any partition.

    Args:
      skip_us: length of the beginning, which is ignored.
    """
    began = F.min("arrived_us").over(Window.partitionBy("partition")) + skip_us
    kind = F.col("kind")
    counted = parts.withColumn("_began", began).where(
        F.coalesce(F.col("seen_us"), F.lit(0)) < END_OF_TIME  # after the end of the stream nothing is due
    )

    def longest(since: str, *kinds: str) -> object:
        silence = F.col("arrived_us") - F.greatest(F.col(since), F.col("_began"))
        return F.max(F.when(kind.isin(*kinds), silence))

    both = longest("heard_us", STABLE, STABLE_BOUNDARY, TENTATIVE, TENTATIVE_BOUNDARY)
    stable = longest("stable_us", STABLE, STABLE_BOUNDARY)
    return counted.agg(F.greatest(both, F.lit(0)).alias("any_us"), F.greatest(stable, F.lit(0)).alias("stable_us"))  # type: ignore[arg-type]


def bins(parts: DataFrame, stretches: DataFrame, late: DataFrame | None, begun_us: int, bin_us: int) -> DataFrame:
    """Returns a row per interval of wall time: ``bin, stable, tentative, undone, delay_max_us``."""
    which = F.floor((F.col("arrived_us") - begun_us) / bin_us)
    nothing = F.lit(None).cast("long")
    came = parts.where(F.col("count") > 0).select(
        which.alias("bin"),
        F.when(F.col("kind") == STABLE, F.col("count")).otherwise(0).alias("stable"),
        F.when(F.col("kind") == TENTATIVE, F.col("count")).otherwise(0).alias("tentative"),
        F.lit(0).alias("undone"),
        nothing.alias("delay_max_us"),
    )
    zero = F.lit(0)
    taken = stretches.where(F.col("undone_at_us").isNotNull()).select(
        F.floor((F.col("undone_at_us") - begun_us) / bin_us).alias("bin"),
        zero.alias("stable"),
        zero.alias("tentative"),
        F.col("tentative").alias("undone"),
        nothing.alias("delay_max_us"),
    )
    rows = came.unionByName(taken)
    if late is not None:
        rows = rows.unionByName(
            late.select(
                which.alias("bin"),
                zero.alias("stable"),
                zero.alias("tentative"),
                zero.alias("undone"),
                F.col("delay_us").alias("delay_max_us"),
            )
        )
    sums = [F.sum(name).alias(name) for name in ("stable", "tentative", "undone")]
    return rows.groupBy("bin").agg(*sums, F.max("delay_max_us").alias("delay_max_us")).orderBy("bin")
