"""Spark and the engine give the same value, to the bit, for hundreds of random expressions over unpleasant rows."""

from __future__ import annotations

import math
import struct
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import types as T

from consistency.proof.storage.arrow import spark_fields
from consistency.proof.truth.stream import values
from spe.errors import ExpressionError
from spe.expressions import compile_expression
from spe.stream.batch import Rows
from spe.stream.schema import AttributeType
from tests.support.expressions import SCHEMA, Expressions, rows
from tests.support.long_forms import long_but

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EXPRESSIONS = 400
#: In one select: Spark compiles so many at once.
PER_QUERY = 50
ROWS = rows(Random("rows"), 60)


@pytest.fixture(scope="module")
def frame(spark: SparkSession) -> DataFrame:
    columns = list(zip(*ROWS))
    arrays = []
    for attribute, column in zip(SCHEMA, columns):
        if attribute.type is AttributeType.TIMESTAMP:
            arrays.append(pa.array(column, pa.int64()).cast(pa.timestamp("us", tz="UTC")))
        else:
            arrays.append(pa.array(column))
    table = pa.table([*arrays, pa.array(range(len(ROWS)))], names=[*SCHEMA.names, "row"])
    schema = T.StructType([*spark_fields(SCHEMA), T.StructField("row", T.LongType())])
    return spark.createDataFrame(table, schema).coalesce(1).cache()


def accepted(random: Random, count: int) -> list[str]:
    """Expressions that the engine accepts: only these must mean the same in Spark."""
    made = Expressions(random)
    found: list[str] = []
    while len(found) < count:
        text = made.any(random.choice([1, 2, 2, 3, 4]))
        try:
            compile_expression(text, SCHEMA)
        except ExpressionError:
            continue
        found.append(text)
    return found


def of_engine(text: str) -> list[Any]:
    given = Rows.from_tuples(SCHEMA, np.arange(len(ROWS)), ROWS)
    return compile_expression(text, SCHEMA).evaluate(given).to_list()


def of_spark(frame: DataFrame, texts: list[str]) -> list[list[Any]]:
    columns = values(frame, {f"e{i}": text for i, text in enumerate(texts)})
    table = frame.select("row", *columns).toArrow().sort_by("row")
    found = []
    for column in table.columns[1:]:
        if pa.types.is_timestamp(column.type):
            column = column.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
        found.append(column.to_pylist())
    return found


def bits(item: Any) -> Any:
    if isinstance(item, float):
        return "NaN" if math.isnan(item) else struct.pack("<d", item)
    return item


@pytest.mark.usefixtures("compiling")
@pytest.mark.parametrize("part", long_but(range(2), range(EXPRESSIONS // PER_QUERY)))
def test_random_expressions_mean_the_same_in_spark(frame: DataFrame, part: int) -> None:
    texts = accepted(Random(f"expressions {part}"), PER_QUERY)
    wrong = []
    for text, theirs in zip(texts, of_spark(frame, texts)):
        for row, ours, other in zip(ROWS, of_engine(text), theirs):
            if bits(ours) != bits(other) or type(ours) is not type(other):
                wrong.append(f"{text}\n    engine {ours!r}, Spark {other!r} of {row}")
                break
    assert not wrong, f"{len(wrong)} of {len(texts)}:\n" + "\n".join(wrong)
