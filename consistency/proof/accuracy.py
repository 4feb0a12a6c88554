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

from collections.abc import Sequence
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from consistency.proof.comparison import FLOAT_TOLERANCE
from consistency.proof.kept import MadeByTasks
from consistency.proof.matching import MET, Stretches, TaskMatcher
from consistency.proof.measures import Measured
from consistency.proof.scene import Tables
from consistency.proof.truth.windows import floor_div
from spe.stream.schema import AttributeType
from spe.stream.times import BEFORE_TIME, END_OF_TIME

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

#: Tuples of a task, and where they have texts.
_ROWS: Final = 1_000_000
_ROWS_WITH_TEXTS: Final = 250_000
#: Spans of time that Parquet is told.
_SPANS: Final = 100


def against_truth(tables: Tables, how: Measured, *, in_order: bool, right: bool) -> MadeByTasks:
    """Tentative tuples and the true ones that they stood for, met by key; one row for each that is on either side.

    Columns: ``partition, episode, window_us, arrived_us, undone_at_us, tentative struct, true struct, right boolean``.
    Floats of a key are equal where their first digits are (``comparison.content``).

    Args:
      in_order: no true tuple has an earlier time than one before it; so it is but for sources.
      right: all that was received as stable is known to be so; else more is read of the truth.
    """
    from pyspark.sql import functions as F
    from pyspark.sql import types as T

    stretches = Stretches.of(tables.stretches.toArrow())
    of_time = [F.col(name) for name in ("partition", "time_us")]
    given = tables.received.tentative().select(
        *of_time, F.col("sequence").alias("major"), F.col("row").alias("minor"), "arrived_us", "tuple"
    )
    from_us = [BEFORE_TIME] * len(stretches.episode)
    if in_order:
        from_us = stretches.settled_us.tolist() if right else _times_of(tables.truth, stretches.places())
    stood = _within(tables.truth, stretches.spans(from_us, tables.true_last_us)).select(
        *of_time, F.col("place").alias("major"), F.lit(0).alias("minor"), F.lit(None).cast("long").alias("arrived_us"),
        "tuple",
    )  # fmt: skip
    same = [n for n in how.key if tables.schema[n].type is not AttributeType.FLOAT64]
    rows = _ROWS_WITH_TEXTS if any(one.type is AttributeType.STRING for one in tables.schema) else _ROWS
    tasks = 1 + (tables.true_count + sum(s["tentative"] for s in tables.sums)) // rows
    both = given.unionByName(stood).repartition(tasks, *of_time, *[F.col(f"tuple.`{name}`") for name in same])
    tuple_, long_ = both.schema["tuple"].dataType, T.LongType()
    types = (T.IntegerType(), long_, long_, long_, long_, tuple_, tuple_, T.BooleanType())
    made = T.StructType([T.StructField(name, type_) for name, type_ in zip(MET, types, strict=True)])
    return MadeByTasks(both, TaskMatcher(stretches, how.key, how.window_us, FLOAT_TOLERANCE), made)


def _times_of(truth: DataFrame, places: Sequence[tuple[int, int]]) -> list[int]:
    """The times of the true tuples in some places; END_OF_TIME behind the last one."""
    from pyspark.sql import functions as F

    some = truth.sparkSession.createDataFrame(sorted(set(places)), "partition int, place long")
    found = truth.select("partition", "place", "time_us").join(F.broadcast(some), ["partition", "place"]).collect()
    known = {(row["partition"], row["place"]): row["time_us"] for row in found}
    return [known.get(place, END_OF_TIME) for place in places]


def _within(truth: DataFrame, spans: Sequence[tuple[int, int]]) -> DataFrame:
    """The tuples of these spans of time, and possibly others."""
    from pyspark.sql import functions as F

    if len(spans) <= _SPANS:  # Parquet is told, and skips the rest
        return truth.where(reduce(or_, (F.col("time_us").between(*span) for span in spans), F.lit(False)))
    width_us = 1 + sum(end - begin for begin, end in spans) // len(spans)
    pieces = {piece for begin, end in spans for piece in range(begin // width_us, end // width_us + 1)}
    cut = truth.sparkSession.createDataFrame(pa.table({"piece": sorted(pieces)}))
    pieced = truth.withColumn("piece", floor_div(F.col("time_us"), width_us))
    return pieced.join(F.broadcast(cut), "piece", how="left_semi").drop("piece")


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
