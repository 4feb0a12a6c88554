"""Compares the truth by Spark with the reference of the engine: every tuple, in order, floats within a tolerance."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from consistency.proof.recorded.run import Run
from consistency.proof.storage.tables import on_disk
from consistency.proof.truth import TruthNetwork, truth
from consistency.proof.truth.network import Segments
from replicas.reference import reference_rows
from spe.stream.batch import Element
from spe.stream.ids import Channel
from spe.stream.names import StreamId
from spe.stream.schema import AttributeType, Schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Relative; sums that leave the query are added by Spark in another order.
TOLERANCE = 1e-9


def differences(
    spark: SparkSession,
    run: Run,
    inputs: Mapping[StreamId, Iterable[Element]],
    limit: int = 3,
    segments: Segments | None = None,
) -> tuple[int, list[str]]:
    """(tuples compared, what differs) over all outputs of a run."""
    expected = reference_rows(run.plan, inputs)
    network = TruthNetwork(spark, run, segments)
    compared, found = 0, []
    for output in run.plan.query.outputs:
        schema = run.plan.query.schema_of(output)
        ours = truth_rows(network, output)
        for partition in range(run.plan.partitions_of(output)):
            ids, rows = expected[Channel(output, partition)]
            theirs = list(zip(ids.tolist(), rows.time.tolist(), rows.to_tuples()))
            mine = ours.get(partition, [])
            compared += len(theirs)
            wrong = [
                f"{output}/{partition}: engine {a}, Spark {b}"
                for a, b in zip(theirs, mine)
                if a[:2] != b[:2] or not alike(a[2], b[2], schema)
            ]
            if len(theirs) != len(mine):
                wrong.append(f"{output}/{partition}: engine has {len(theirs)} tuples, Spark {len(mine)}")
            found += wrong[:limit]
    spark.catalog.clearCache()
    return compared, found


def truth_rows(network: TruthNetwork, output: StreamId) -> dict[int, list[tuple[int, int, tuple[Any, ...]]]]:
    """(id, time, attributes) by partition, in order; timestamps in microseconds."""
    schema = network.plan.query.schema_of(output)
    names = [
        f"unix_micros(tuple.`{a.name}`)" if a.type is AttributeType.TIMESTAMP else f"tuple.`{a.name}`" for a in schema
    ]
    frame = truth(network, output, lambda _, rows: on_disk(rows)).rows.selectExpr(
        "partition", "place", "time_us", *names
    )
    table = frame.toArrow()
    by_partition: dict[int, list[tuple[int, int, tuple[Any, ...]]]] = {}
    for partition, place, time_us, *values in sorted(
        zip(*[c.to_pylist() for c in table.columns]), key=lambda row: row[:2]
    ):
        by_partition.setdefault(partition, []).append((place, time_us, tuple(values)))
    return by_partition


def alike(one: tuple[Any, ...], other: tuple[Any, ...], schema: Schema) -> bool:
    """Are two tuples equal?  Null equals null, NaN equals NaN, and floats may differ by the tolerance."""
    return all(_same(a, b) for a, b, _ in zip(one, other, schema, strict=True))


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return (math.isnan(a) and math.isnan(b)) or a == b or math.isclose(a, b, rel_tol=TOLERANCE)
    return a == b and type(a) is type(b)
