"""Frames of the proof from streams as text (tests.support.streams).

Several streams fit into one frame, a partition each, so that one Spark job judges them all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from consistency.proof.recorded.elements import REC_DONE, STABLE, STABLE_BOUNDARY, TENTATIVE, TENTATIVE_BOUNDARY, UNDO
from consistency.proof.recorded.received_output import ReceivedRecording, ReceivedStream
from consistency.proof.recorded.records import SUMMARY, Wanted, summaries
from consistency.proof.storage.tables import Keep, OfBatches
from consistency.proof.truth import Truth
from spe.stream.batch import Batch, Element, RecDone, Undo
from spe.stream.names import Kind
from spe.stream.schema import AttributeType, Schema
from tests.support.streams import PAYLOAD, parse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TYPES = {"int64": "long", "float64": "double", "bool": "boolean", "string": "string", "timestamp": "long"}


def struct_of(schema: Schema) -> str:
    """DDL of the struct that holds a tuple's attributes, timestamps as microseconds."""
    return "struct<" + ", ".join(f"`{a.name}`: {_TYPES[a.type]}" for a in schema) + ">"


def received(
    spark: SparkSession,
    streams: Sequence[str | Iterable[Element]],
    schema: Schema = PAYLOAD,
    *,
    start_us: int = 0,
    keep: Keep = lambda _, frame: frame,
) -> ReceivedStream:
    """What a client received of streams, an element a second: read by need, as from a recording."""
    elements = [
        [
            (sequence, start_us + sequence * 1_000_000, element)
            for sequence, element in enumerate(
                parse(stream, schema, position=0) if isinstance(stream, str) else stream, 1
            )
        ]
        for stream in streams
    ]
    batches = [batch for number, each in enumerate(elements) for batch in summaries(schema, number, each)]
    summary = spark.createDataFrame(pa.Table.from_batches(batches, SUMMARY))

    def read(wanted: Wanted | None) -> DataFrame:
        rows = [
            row
            for number, each in enumerate(elements)
            for one in each
            if wanted is None or wanted(number, one[0], one[2])
            for row in _rows(number, *one)
        ]
        ddl = "partition int, sequence long, row int, arrived_us long, kind string, id long, time_us long"
        return _with_timestamps(spark.createDataFrame(rows, f"{ddl}, tuple {struct_of(schema)}"), schema)

    def through(wanted: Wanted, each: OfBatches, made: pa.Schema) -> DataFrame:
        return ReceivedStream(summary, read(wanted)).tentative(each, made)

    return ReceivedRecording(summary, read, through, keep)


def truth(spark: SparkSession, streams: Sequence[str], schema: Schema = PAYLOAD) -> Truth:
    """The truth of streams: their stable tuples."""
    rows = [
        (partition, id_, time, values)
        for partition, stream in enumerate(streams)
        for element in parse(stream, schema, position=0)
        if isinstance(element, Batch)
        for id_, time, values in zip(element.row_ids().tolist(), element.rows.time.tolist(), element.rows.to_tuples())
    ]
    ddl = f"partition int, place long, time_us long, tuple {struct_of(schema)}"
    frame = _with_timestamps(spark.createDataFrame(rows, ddl), schema)
    return Truth(frame, Counter(row[0] for row in rows), max((row[2] for row in rows), default=0))


def _with_timestamps(frame: DataFrame, schema: Schema) -> DataFrame:
    """Turns the microseconds that rows were made with into timestamps."""
    from pyspark.sql import functions as F

    made = [
        F.timestamp_micros(f"tuple.`{a.name}`").alias(a.name)
        if a.type is AttributeType.TIMESTAMP
        else F.col(f"tuple.`{a.name}`")
        for a in schema
    ]
    return frame.withColumn("tuple", F.when(F.col("tuple").isNotNull(), F.struct(*made)))


def _rows(partition: int, sequence: int, arrived_us: int, element: Element) -> list[tuple[Any, ...]]:
    head = (partition, sequence)
    if isinstance(element, Batch):
        kind = STABLE if element.kind is Kind.STABLE else TENTATIVE
        ids, times, tuples = element.row_ids().tolist(), element.rows.time.tolist(), element.rows.to_tuples()
        return [(*head, at, arrived_us, kind, *one) for at, one in enumerate(zip(ids, times, tuples))]
    if isinstance(element, Undo):
        return [(*head, 0, arrived_us, UNDO, element.upto_id, None, None)]
    if isinstance(element, RecDone):
        return [(*head, 0, arrived_us, REC_DONE, None, None, None)]
    kind = STABLE_BOUNDARY if element.kind is Kind.STABLE else TENTATIVE_BOUNDARY
    return [(*head, 0, arrived_us, kind, element.upto_id, element.time, None)]
