"""Accuracy of tentative tuples: each is compared with the true tuple of its key, then summed by window and overall.

Shares, each from 0 to 1 (T the tentative results of a window, A the true ones, compared by key; PPA section VI-B):

    overlap    |T ∩ A| / |T ∪ A|
    topk       |T ∩ A| / |A|: share of the true k that are in T
    precision  |T ∩ A| / |T|
    recall     |T ∩ A| / |A|
    exact      true results that were received with all attributes right, of |A|

and per numeric attribute the mean of |tentative − true| / |true| over T ∩ A (where the true value is 0: 0 or 1).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from itertools import pairwise
from operator import or_
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from consistency.proof.comparing.matching import MET, PACKAGES, Packer, Stretches, TaskMatcher
from consistency.proof.comparing.measures import Measured
from consistency.proof.comparing.tally import TALLIED, WindowTally
from consistency.proof.comparing.values import FLOAT_TOLERANCE
from consistency.proof.scene import Tables
from consistency.proof.storage.arrow import arrow_schema, spark_schema
from consistency.proof.storage.files import TRUE_ROWS, through
from consistency.proof.storage.tables import MadeByTasks, on_disk
from spe.stream.schema import AttributeType
from spe.stream.times import BEFORE_TIME, END_OF_TIME

#: Rows per task, without and with text attributes.
_ROWS: Final = 1_000_000
_ROWS_WITH_TEXTS: Final = 250_000
#: Maximum number of time spans in a Parquet filter.
_SPANS: Final = 100


def against_truth(tables: Tables, how: Measured, *, in_order: bool, right: bool) -> MadeByTasks:
    """Joins tentative tuples with the true tuples that they stood for, by key: a full outer join.

    Columns: ``partition, episode, window_us, arrived_us, undone_at_us, tentative struct, true struct, right boolean``.
    Floats of a key are equal where their first digits are (``values.content``).

    Args:
      in_order: times of true tuples do not decrease with the id; this holds for all streams but sources.
      right: all stable tuples are known to be right; otherwise more of the truth is read.
    """
    stretches = Stretches.of(tables.stretches.toArrow())
    from_us = [BEFORE_TIME] * len(stretches.episode)
    if in_order:
        from_us = stretches.settled_us.tolist() if right else _times_of(tables.truth, stretches.places())
    spans = stretches.spans(from_us, tables.true_last_us)
    rows = _ROWS_WITH_TEXTS if any(attribute.type is AttributeType.STRING for attribute in tables.schema) else _ROWS
    tasks = 1 + (tables.true_count + sum(s["tentative"] for s in tables.sums)) // rows
    theirs, long_ = tables.truth.schema["tuple"].dataType, T.LongType()
    assert isinstance(theirs, T.StructType)
    fields = [T.StructField(attribute.name, attribute.dataType) for attribute in theirs]
    tuple_ = T.StructType(fields)  # nullable, as are its fields
    types = (T.IntegerType(), long_, long_, long_, long_, tuple_, tuple_, T.BooleanType())
    made = T.StructType([T.StructField(name, type_) for name, type_ in zip(MET, types, strict=True)])
    type_ = arrow_schema(made).field("true").type
    tentative = tables.received.tentative(Packer(type_, how.key, tasks), PACKAGES)
    pack = Packer(type_, how.key, tasks, spans)
    if tables.files is None:
        stood = _within(tables.truth, spans).select(*TRUE_ROWS).mapInArrow(pack, spark_schema(PACKAGES))
    else:
        stood = tables.files.through(pack, PACKAGES, spans)
    both = tentative.unionByName(stood).repartitionById(tasks, F.col("task"))
    return MadeByTasks(both, TaskMatcher(stretches, how.key, how.window_us, FLOAT_TOLERANCE, type_), made)


def _times_of(truth: DataFrame, places: Sequence[tuple[int, int]]) -> list[int]:
    """Returns the times of the true tuples at these places; END_OF_TIME behind the last tuple."""
    some = truth.sparkSession.createDataFrame(sorted(set(places)), "partition int, place long")
    rows = truth.select("partition", "place", "time_us").join(F.broadcast(some), ["partition", "place"]).collect()
    known = {(row["partition"], row["place"]): row["time_us"] for row in rows}
    return [known.get(place, END_OF_TIME) for place in places]


def _within(truth: DataFrame, spans: Sequence[tuple[int, int]]) -> DataFrame:
    """Selects the tuples of these time spans; with too many spans for Parquet also those between some of them."""
    hulls = _hulls(spans, _SPANS)
    return truth.where(reduce(or_, (F.col("time_us").between(*span) for span in hulls), F.lit(False)))


def _hulls(spans: Sequence[tuple[int, int]], most: int) -> list[tuple[int, int]]:
    """Covers sorted, disjoint spans by at most ``most`` spans: the smallest gaps are closed."""
    if len(spans) <= most:
        return list(spans)
    gaps = [later[0] - earlier[1] for earlier, later in pairwise(spans)]
    widest = sorted(sorted(range(len(gaps)), key=gaps.__getitem__)[len(gaps) + 1 - most :])
    begins, ends = [0, *(at + 1 for at in widest)], [*widest, len(gaps)]
    return [(spans[begin][0], spans[end][1]) for begin, end in zip(begins, ends)]


def tallies(met: DataFrame, how: Measured) -> DataFrame:
    """Applies :class:`WindowTally` to the pairs; the result is kept on disk."""
    tally, type_ = WindowTally(how.errors), met.schema["true"].dataType
    assert isinstance(type_, T.StructType)
    # Long texts are not carried: only whether there is a tuple matters.
    short = [field.name for field in type_ if not isinstance(field.dataType, T.StringType)]
    some = how.errors or (short or type_.names)[:1]
    names = [*TALLIED, *(f"{side}.{name}" for side in ("tentative", "true") for name in some)]
    return on_disk(through(met, tally, tally.made, names))


def windows(tallies: DataFrame, how: Measured) -> DataFrame:
    """A row per window: ``episode, window_us, at_us, tentative, truth``, then each measure by name."""
    of_windows = tallies.where(F.col("episode").isNotNull()).groupBy("episode", "window_us")
    counted = of_windows.agg(F.min("at_us").alias("at_us"), *_sums(how))
    return counted.select("episode", "window_us", "at_us", "tentative", "truth", *_measures(how))


def overall(tallies: DataFrame, how: Measured) -> DataFrame:
    """One row: tuples, how many were right, how long wrong ones stood, and each measure over everything."""
    median = F.percentile("stood_us", 0.5, F.col("stood"))
    counted = tallies.agg(
        *_sums(how), F.max("stood_us").alias("stood_max_us"), F.round(median).cast("long").alias("stood_median_us")
    )
    right = F.col("right").alias("right_count")
    odd = (F.col("tentative") - F.col("both")).alias("wrong_key")
    return counted.select("tentative", "truth", right, odd, "stood_max_us", "stood_median_us", *_measures(how))


def _sums(how: Measured) -> list[Column]:
    of_errors = [f"{what} {name}" for name in how.errors for what in ("sum", "count")]
    return [F.sum(f"`{name}`").alias(name) for name in ("tentative", "truth", "both", "right", *of_errors)]


def _measures(how: Measured) -> list[Column]:
    both, tentative, stood = F.col("both"), F.col("tentative"), F.col("truth")
    shares = {
        "overlap": both / F.nullif(tentative + stood - both, F.lit(0)),
        "topk": both / F.nullif(stood, F.lit(0)),
        "precision": both / F.nullif(tentative, F.lit(0)),
        "recall": both / F.nullif(stood, F.lit(0)),
        "exact": F.col("right") / F.nullif(stood, F.lit(0)),
    }
    errors = [
        (F.col(f"`sum {name}`") / F.nullif(f"`count {name}`", F.lit(0))).alias(f"error {name}") for name in how.errors
    ]
    return [*(shares[name].alias(name) for name in how.shares), *errors]
