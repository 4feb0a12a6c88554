"""The ground truth of an output: what a run without failures gives, by Spark and from the sources' logs alone.

The query is what the user's file says, by a reader of its own, and its types are Spark's.  What is shared with the
engine all the same is listed in docs/internals/proof.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as F

from consistency.proof.kept import on_disk
from consistency.proof.truth.network import TimeRange, TruthNetwork
from consistency.proof.truth.stream import PARTITION, TIME, TruthStream
from spe.stream.names import StreamId

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["TimeRange", "TruthNetwork", "truth"]

_ROW: Final = "__row"
_PIECE: Final = "__piece"


def truth(network: TruthNetwork, output: StreamId) -> DataFrame:
    """The stable stream of an output, as far as the sources' logs decide it.

    Returns:
      Columns ``partition int, place long, time_us long, tuple struct<attributes>``: ``place`` is the tuple's stable id,
      1, 2, 3, … in each partition (of a range, counted from its beginning on, but for sources).
      It is kept on disk (``consistency.proof.kept``).

    Raises:
      SpeError: a log is missing or damaged; damage inside a log is an error of Spark when the frame is computed.
    """
    stream = network.stream(output)
    if network.part is not None:
        stream = stream.since(network.part.since_us).before(network.part.until_us)
    if output in network.plan.sources:  # a source's ids are those of its log, in order of arrival
        return stream.frame.select(*_named(stream, F.col(stream.order[0])))
    return _numbered(stream)


def _named(stream: TruthStream, place: Column) -> list[Column]:
    return [
        F.col(PARTITION).alias("partition"),
        place.cast("long").alias("place"),
        F.col(TIME).alias("time_us"),
        F.struct(*stream.attributes).alias("tuple"),
    ]


def _numbered(stream: TruthStream) -> DataFrame:
    """Ordinals, without bringing everything to one task.

    The stream is sorted over all tasks and kept; then each task's first row and number of rows say what to add.
    """
    rows = stream.frame.orderBy(PARTITION, *stream.position).withColumn(_ROW, F.monotonically_increasing_id())
    kept = rows.select(*_named(stream, F.col(_ROW)), _ROW, F.shiftright(_ROW, 33).alias(_PIECE))
    kept = on_disk(kept)
    pieces = kept.groupBy("partition", _PIECE).agg(F.min(_ROW).alias("__first"), F.count(F.lit(1)).alias("__count"))
    before = Window.partitionBy("partition").orderBy(_PIECE).rowsBetween(Window.unboundedPreceding, -1)
    offsets = pieces.withColumn("__before", F.coalesce(F.sum("__count").over(before), F.lit(0)))
    joined = kept.join(F.broadcast(offsets), ["partition", _PIECE])
    place = F.col(_ROW) - F.col("__first") + F.col("__before") + 1
    return joined.select("partition", place.alias("place"), "time_us", "tuple")
