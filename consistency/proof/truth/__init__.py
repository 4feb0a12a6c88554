"""Computes the ground truth of an output: the result of a run without failures, by Spark, from the sources' logs alone.

The query comes from the user's file, read by an independent reader, and its types are Spark's.  What is shared with the
engine all the same is listed in docs/internals/proof.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F

from consistency.proof.storage.files import ROW, TASK_BITS, TruthFiles, footers, local_files
from consistency.proof.storage.tables import Keep
from consistency.proof.truth.network import TimeRange, TruthNetwork
from consistency.proof.truth.stream import PARTITION, TIME, TruthStream
from spe.stream.names import StreamId

__all__ = ["TimeRange", "Truth", "TruthFiles", "TruthNetwork", "truth"]


@dataclass(frozen=True)
class Truth:
    """The stable stream of an output.

    Attributes:
      rows: ``partition int, place long, time_us long, tuple struct<attributes>``: ``place`` is the tuple's stable id,
        1, 2, 3, … in each partition (in a range, counted from its beginning, except for sources).
      counts: number of tuples, by partition.
      last_us: the largest time; 0 without any tuples.
      files: the same, if tasks can read it themselves.
    """

    rows: DataFrame
    counts: Mapping[int, int]
    last_us: int
    files: TruthFiles | None = None

    @property
    def count(self) -> int:
        return sum(self.counts.values())


def truth(network: TruthNetwork, output: StreamId, keep: Keep) -> Truth:
    """Returns the stable stream of an output, as far as the sources' logs decide it.

    Args:
      keep: stores it, sorted over all tasks, with the number of each row, which for a source is its place.

    Raises:
      SpeError: a log is missing or damaged; damage inside a log is an error of Spark.
    """
    stream = network.stream(output)
    if network.part is not None:
        stream = stream.since(network.part.since_us).before(network.part.until_us)
    if output in network.plan.sources:  # a source's ids are those of its log, in order of arrival
        stored = keep(str(output), _named(stream, stream.frame, F.col(stream.order[0]).cast("long").alias("place")))
        files = local_files(stored)
        return _truth(stored, _pieces(stored, files, "place"), files, None)
    ordered = stream.frame
    if not stream.in_order:
        ordered = _ordered(stream, network.plan.partitions_of(output), network.edges(output))
    stored = keep(str(output), _named(stream, ordered, F.monotonically_increasing_id().alias(ROW)))
    files = local_files(stored)
    pieces = _pieces(stored, files, ROW)
    added = _added(pieces)
    return _truth(_placed(stored, added), pieces, files, added)


def _added(pieces: Sequence[_Piece]) -> dict[int, dict[int, int]]:
    """Returns the offset from a row's number to its place, by task and partition.

    The number begins with that of the task, and counts its rows: the number of a partition's first row is the offset.
    """
    added, before = dict[int, dict[int, int]](), Counter[int]()
    for piece in sorted(pieces):
        of_task = added.setdefault(piece.first >> TASK_BITS, {})
        of_task.setdefault(piece.partition, before[piece.partition] - piece.first + 1)
        before[piece.partition] += piece.rows
    return added


def _placed(stored: DataFrame, added: Mapping[int, Mapping[int, int]]) -> DataFrame:
    """Adds places.  Not by a join: Spark would not push filters on time through it to Parquet."""
    tasks = [added.get(task, {}) for task in range(1 + max(added, default=-1))]
    maps = [
        f"map({', '.join(f'{p}, {number}L' for p, number in offsets.items())})" if offsets else "null"
        for offsets in tasks
    ]
    known = F.expr(f"cast(array({', '.join(maps)}) as array<map<int, bigint>>)")  # of literals: Spark makes it once
    add = F.get(known, F.shiftright(ROW, TASK_BITS).cast("int"))[F.col("partition")]
    return stored.select("partition", (F.col(ROW) + add).alias("place"), "time_us", "tuple")


def _ordered(stream: TruthStream, partitions: int, edges: Sequence[int]) -> DataFrame:
    """Sorts over all tasks, by known times or by ranges of a sample, for which everything is computed twice."""
    # A sort column that is equal everywhere would compare each pair twice.
    by = stream.position if partitions == 1 else [PARTITION, *stream.position]
    if not edges:
        return stream.frame.orderBy(*by)
    part = sum(((F.col(TIME) >= edge).cast("int") for edge in edges), F.col(PARTITION) * (len(edges) + 1))
    return stream.frame.repartitionById(partitions * (len(edges) + 1), part).sortWithinPartitions(*by)


class _Piece(NamedTuple):
    """A partition's rows from one task, or a part of them: first number, number of rows, and the largest time."""

    partition: int
    first: int
    rows: int
    last_us: int


def _pieces(stored: DataFrame, files: Sequence[Path], number: str) -> list[_Piece]:
    figures: Sequence[Mapping[str, int] | Row] | None = footers(files, number) if files else None
    if figures is None:
        first, count, last = F.min(number).alias("first"), F.count(F.lit(1)).alias("rows"), F.max("time_us")
        task = F.shiftright(number, TASK_BITS).alias("__task")
        figures = stored.groupBy("partition", task).agg(first, count, last.alias("last_us")).collect()
    return [_Piece(*(int(row[name]) for name in _Piece._fields)) for row in figures]


def _truth(
    rows: DataFrame, pieces: Sequence[_Piece], files: Sequence[Path], added: Mapping[int, Mapping[int, int]] | None
) -> Truth:
    counts: Counter[int] = Counter()
    for piece in pieces:
        counts[piece.partition] += piece.rows
    last_us = max((piece.last_us for piece in pieces), default=0)
    return Truth(rows, counts, last_us, TruthFiles(rows.sparkSession, files, added) if files else None)


def _named(stream: TruthStream, frame: DataFrame, number: Column) -> DataFrame:
    partition, time = F.col(PARTITION).alias("partition"), F.col(TIME).alias("time_us")
    return frame.select(partition, number, time, F.struct(*stream.attributes).alias("tuple"))
