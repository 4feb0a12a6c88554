"""Top-k, as Spark computes it: among the tuples of an instant, or of a window."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import Window as Over
from pyspark.sql import functions as F

from consistency.proof.truth.stream import (
    PARTITION,
    TIME,
    Stream,
    columns,
    ordered,
    position_struct,
    quoted,
    timestamp,
    value,
)
from consistency.proof.truth.windows import WINDOW, end_of, per_window, start_of, with_windows
from spe.query.query import TopKSpec
from spe.query.typing import WINDOW_START, topk_window_attributes
from spe.stream.schema import Schema

if TYPE_CHECKING:
    from pyspark.sql import Column

_RANK: Final = "__rank"
_GROUP: Final = "__group"


def topk(spec: TopKSpec, stream: Stream, schema: Schema) -> Stream:
    """Groups come in the order of the first of their tuples that are taken, then by rank, then by arrival."""
    keys = [f"__key{i}" for i in range(len(spec.order_by))]
    frame = stream.frame.select(
        "*", *[value(text, stream.schema, name) for (text, _), name in zip(spec.order_by, keys)]
    )
    within = TIME
    if spec.window is not None:
        within = WINDOW
        frame = per_window(with_windows(frame, spec.window, spec.window.on), spec.window)
    group = Over.partitionBy(PARTITION, within, *[quoted(name) for name in spec.partition_by])
    by = [
        F.col(name).desc_nulls_last() if descending else F.col(name).asc_nulls_first()
        for name, (_, descending) in zip(keys, spec.order_by)
    ]
    if spec.with_ties:
        rank = F.rank().over(group.orderBy(*by))
    else:
        rank = F.row_number().over(group.orderBy(*by, *stream.position))
    taken = frame.withColumn(_RANK, rank.cast("long")).where(F.col(_RANK) <= spec.k)
    placed = taken.withColumn(_GROUP, F.min(position_struct(stream.position)).over(group))
    order = [*[F.col(f"{_GROUP}.{name}") for name in stream.position], F.col(_RANK), *columns(stream.position)]
    time, added = F.col(TIME), []
    if spec.window is not None:
        time = end_of(spec.window) - 1
        bounds = {WINDOW_START: start_of(spec.window)}
        for one in topk_window_attributes(stream.schema):
            added.append(timestamp(bounds.get(one.name, end_of(spec.window)), one.name))
    ranked: list[Column] = [] if spec.rank_as is None else [F.col(_RANK).alias(spec.rank_as)]
    made = placed.select(PARTITION, time.alias(TIME), *ordered(order), *stream.attributes, *added, *ranked)
    return Stream(made, schema, len(order))
