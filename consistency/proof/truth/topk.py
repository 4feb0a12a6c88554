"""Top-k, as Spark computes it: among the tuples of an instant, or of a window."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column
from pyspark.sql import Window as Over
from pyspark.sql import functions as F

from consistency.proof.recorded.query_file import TopKEntry
from consistency.proof.truth.stream import (
    PARTITION,
    TIME,
    TruthStream,
    columns,
    ordered,
    position_struct,
    quoted,
    timestamp,
    values,
)
from consistency.proof.truth.windows import WINDOW, end_of, per_window, start_of, with_windows

_RANK: Final = "__rank"
_GROUP: Final = "__group"


def topk(spec: TopKEntry, stream: TruthStream) -> TruthStream:
    """Returns the top rows: groups by their first selected tuple, then by rank, then by arrival."""
    keys = [f"__key{i}" for i in range(len(spec.order_by))]
    texts = [text for text, _ in spec.order_by]
    frame = stream.frame.select("*", *values(stream.frame, dict(zip(keys, texts))))
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
    time = F.col(TIME)
    added: list[Column] = []
    if spec.window is not None:
        time = end_of(spec.window) - 1
        bounds = {"window_start": start_of(spec.window), "window_end": end_of(spec.window)}
        added = [timestamp(at).alias(name) for name, at in bounds.items() if name not in stream.names]
    ranked: list[Column] = [] if spec.rank_as is None else [F.col(_RANK).alias(spec.rank_as)]
    made = placed.select(PARTITION, time.alias(TIME), *ordered(order), *stream.attributes, *added, *ranked)
    return TruthStream(made, len(order))
