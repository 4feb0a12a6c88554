"""The ground truth of an output: what a run without failures gives, by Spark and from the sources' logs alone.

The query is what the user's file says, by a reader of its own, and its types are Spark's.  What is shared with the
engine all the same is listed in docs/internals/proof.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from consistency.proof.kept import Keep
from consistency.proof.truth.network import TimeRange, TruthNetwork
from consistency.proof.truth.stream import PARTITION, TIME, TruthStream
from spe.stream.names import StreamId

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row

__all__ = ["TimeRange", "Truth", "TruthNetwork", "truth"]

_ROW: Final = "__row"
_PIECE: Final = "__piece"


@dataclass(frozen=True)
class Truth:
    """The stable stream of an output.

    Attributes:
      rows: ``partition int, place long, time_us long, tuple struct<attributes>``: ``place`` is the tuple's stable id,
        1, 2, 3, … in each partition (of a range, counted from its beginning on, but for sources).
      counts: tuples, by partition.
      last_us: the largest time; 0 without any.
    """

    rows: DataFrame
    counts: Mapping[int, int]
    last_us: int

    @property
    def count(self) -> int:
        return sum(self.counts.values())


def truth(network: TruthNetwork, output: StreamId, keep: Keep) -> Truth:
    """The stable stream of an output, as far as the sources' logs decide it.

    Args:
      keep: stores it, sorted over all tasks, with the number of each row: of a source its place.

    Raises:
      SpeError: a log is missing or damaged; damage inside a log is an error of Spark.
    """
    stream = network.stream(output)
    if network.part is not None:
        stream = stream.since(network.part.since_us).before(network.part.until_us)
    if output in network.plan.sources:  # a source's ids are those of its log, in order of arrival
        kept = keep(str(output), _named(stream, stream.frame, F.col(stream.order[0]).cast("long").alias("place")))
        return _truth(kept, _pieces(kept, F.lit(0)))
    ordered = stream.frame
    if not stream.in_order:
        ordered = _ordered(stream, network.plan.partitions_of(output), network.edges(output))
    kept = keep(str(output), _named(stream, ordered, F.monotonically_increasing_id().alias(_ROW)))
    pieces = _pieces(kept, F.shiftright(_ROW, 33), F.min(_ROW).alias("first"))
    return _truth(_placed(kept, pieces), pieces)


def _placed(kept: DataFrame, pieces: Sequence[Row]) -> DataFrame:
    """With places: a row's number begins with that of its task, so that of a task's first row says what to add.

    Not by a join, below which Spark would not tell Parquet which times are asked for.
    """
    added, before = dict[int, dict[int, int]](), Counter[int]()
    for piece in sorted(pieces, key=lambda row: (row["partition"], row[_PIECE])):
        of_task = added.setdefault(piece[_PIECE], {})
        of_task[piece["partition"]] = before[piece["partition"]] - piece["first"] + 1
        before[piece["partition"]] += piece["count"]
    tasks = [added.get(task, {}) for task in range(1 + max(added, default=-1))]
    maps = [f"map({', '.join(f'{p}, {number}L' for p, number in one.items())})" if one else "null" for one in tasks]
    known = F.expr(f"cast(array({', '.join(maps)}) as array<map<int, bigint>>)")  # of literals: Spark makes it once
    add = F.get(known, F.shiftright(_ROW, 33).cast("int"))[F.col("partition")]
    return kept.select("partition", (F.col(_ROW) + add).alias("place"), "time_us", "tuple")


def _ordered(stream: TruthStream, partitions: int, edges: Sequence[int]) -> DataFrame:
    """Sorted over all tasks, by times that are known or by ranges of a sample, for which all is computed twice."""
    # A sort by what is the same everywhere compares each pair twice.
    by = stream.position if partitions == 1 else [PARTITION, *stream.position]
    if not edges:
        return stream.frame.orderBy(*by)
    part = sum(((F.col(TIME) >= edge).cast("int") for edge in edges), F.col(PARTITION) * (len(edges) + 1))
    return stream.frame.repartitionById(partitions * (len(edges) + 1), part).sortWithinPartitions(*by)


def _pieces(kept: DataFrame, piece: Column, *more: Column) -> list[Row]:
    """What a task wrote of a partition: how many rows, and the largest time."""
    count, last = F.count(F.lit(1)).alias("count"), F.max("time_us").alias("last_us")
    return kept.groupBy("partition", piece.alias(_PIECE)).agg(count, last, *more).collect()


def _truth(rows: DataFrame, pieces: Sequence[Row]) -> Truth:
    counts: Counter[int] = Counter()
    for piece in pieces:
        counts[piece["partition"]] += piece["count"]
    return Truth(rows, counts, max((piece["last_us"] for piece in pieces), default=0))


def _named(stream: TruthStream, frame: DataFrame, number: Column) -> DataFrame:
    partition, time = F.col(PARTITION).alias("partition"), F.col(TIME).alias("time_us")
    return frame.select(partition, number, time, F.struct(*stream.attributes).alias("tuple"))
