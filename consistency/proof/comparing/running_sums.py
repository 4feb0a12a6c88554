"""Running sums and maxima over an ordered stream, without sorting it in one place.

A window over a whole partition of a stream is one task, however long the stream is.  Here each chunk of records gets
its own running values, and a small table of the chunks' totals has the sums before each chunk.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

#: Records in a chunk, sorted by one task at once.
CHUNK_RECORDS: Final = 4_096


def before(frame: DataFrame, values: Mapping[str, tuple[Literal["sum", "max"], Column]]) -> DataFrame:
    """Adds running values over the earlier records to ``frame``; null where none of them has a value.

    Args:
      frame: one row per record, with ``partition`` and ``sequence``.
      values: by the name of the new column: (how to combine, column); nulls are ignored.
    """
    combine = {"sum": F.sum, "max": F.max}
    so_far = (Window.unboundedPreceding, -1)
    inside = Window.partitionBy("partition", "_chunk").orderBy("sequence").rowsBetween(*so_far)
    across = Window.partitionBy("partition").orderBy("_chunk").rowsBetween(*so_far)
    chunked = frame.withColumn("_chunk", F.floor(F.col("sequence") / CHUNK_RECORDS))
    totals = [combine[how](what).alias(f"_{name}") for name, (how, what) in values.items()]
    chunks = chunked.groupBy("partition", "_chunk").agg(*totals)
    earlier = [combine[how](f"_{name}").over(across).alias(f"_{name}") for name, (how, _) in values.items()]
    own = {f"{name}": combine[how](what).over(inside) for name, (how, what) in values.items()}
    whole = chunked.withColumns(own).join(
        F.broadcast(chunks.select("partition", "_chunk", *earlier)), ["partition", "_chunk"], how="left"
    )
    both = {
        name: F.greatest(name, f"_{name}")
        if how == "max"
        else F.coalesce(F.col(name) + F.col(f"_{name}"), F.col(name), F.col(f"_{name}"))
        for name, (how, _) in values.items()
    }
    return whole.withColumns(both).drop("_chunk", *(f"_{name}" for name in values))
