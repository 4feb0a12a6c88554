"""Compares the types of received attributes with those that Spark derives, before any value is compared."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from consistency.proof.recorded.received_output import ReceivedStream
from consistency.proof.storage.arrow import spark_type
from spe.stream.schema import Attribute, AttributeType, Schema


def settled(
    truth: DataFrame, received: ReceivedStream, schema: Schema
) -> tuple[DataFrame, ReceivedStream, Schema, list[str]]:
    """Brings both sides into tuples of one shape, and lists the differences of their types.

    Nothing is cast where types differ, since a cast would hide a loss: such an attribute is compared as text, 3 with
    3.5.

    Args:
      truth: TRUTH (consistency.proof.recorded.elements), with tuples of Spark's types.
      received: with tuples of the recorded types.
      schema: the recorded schema.

    Returns:
      truth, received, their schema, and a sentence per attribute of another type, missing or superfluous.
    """
    whole = truth.schema["tuple"].dataType
    assert isinstance(whole, T.StructType)
    theirs = {field.name: field.dataType for field in whole}
    differences = [
        f"attribute {a.name!r} was received as {a.type}, and by the configuration is "
        + (theirs[a.name].simpleString() if a.name in theirs else "none of this stream")
        for a in schema
        if theirs.get(a.name) != spark_type(a.type)
    ]
    differences += [f"attribute {name!r} is missing in what was received" for name in theirs if name not in schema]
    if not differences and list(theirs) == list(schema.names):
        return truth, received, schema, []
    if not differences:
        differences = [
            f"attributes were received as {', '.join(schema.names)}; by the configuration they are {', '.join(theirs)}"
        ]
    same = {a.name for a in schema if theirs.get(a.name) == spark_type(a.type)}
    shape = Schema(tuple(a if a.name in same else Attribute(a.name, AttributeType.STRING) for a in schema))
    ours = received.reshaped(lambda rows: _shaped(rows, shape, same, set(schema.names)))
    return _shaped(truth, shape, same, set(theirs)), ours, shape, differences


def _shaped(frame: DataFrame, shape: Schema, same: set[str], there: set[str]) -> DataFrame:
    def part(name: str) -> Column:
        if name not in there:
            return F.lit(None).cast("string").alias(name)
        column = F.col(f"tuple.`{name}`")
        return (column if name in same else column.cast("string")).alias(name)

    made = F.struct(*[part(a.name) for a in shape])
    return frame.withColumn("tuple", F.when(F.col("tuple").isNotNull(), made))
