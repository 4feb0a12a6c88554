"""The digests that NumPy makes of a recording against those that Spark makes of the truth."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

from consistency.proof.comparing import digests
from consistency.proof.comparing.digests import Digester, block_digests, text_hashes
from consistency.proof.storage.arrow import ToArrow, arrow_fields
from spe.stream.batch import Column, Rows, concat_rows
from spe.stream.schema import Attribute, AttributeType, Schema
from spe.stream.strings import StringDictionary

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TEXTS = ["", "a", "\x00", "grün", "日本語テキスト", "x" * 31, "y" * 32, "z" * 33, *("ab💧" * n for n in range(40))]
VALUES: dict[AttributeType, list[object]] = {
    AttributeType.INT64: [0, 1, -1, 2**63 - 1, -(2**63)],
    AttributeType.FLOAT64: [0.0, 1.5, -1.5, math.nan, math.inf, -math.inf, 5e-324, 1e308],
    AttributeType.BOOL: [False, True],
    AttributeType.STRING: list(TEXTS),
    AttributeType.TIMESTAMP: [0, 1, 1_700_000_000_000_000],
}


def drawn(schema: Schema, count: int, seed: int) -> Rows:
    """Rows, one value in five of them null."""
    rng = np.random.default_rng(seed)
    columns = []
    for attribute in schema:
        known = VALUES[attribute.type]
        picked = [None if rng.random() < 0.2 else known[int(rng.integers(len(known)))] for _ in range(count)]
        columns.append(Column.from_list(picked, attribute.type))
    time = rng.integers(0, 2**50, count)
    return Rows(time, time, tuple(columns))


@pytest.mark.parametrize(
    "schema",
    [
        Schema(tuple(Attribute(type_.name.lower(), type_) for type_ in VALUES)),
        Schema(tuple(Attribute(f"a{i}", AttributeType.INT64) for i in range(70))),  # more nulls than a number tells
    ],
    ids=["types", "many"],
)
def test_numpy_and_spark_agree_on_each_row(
    spark: SparkSession, schema: Schema, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digests, "BLOCK", 1)
    digester = Digester(schema)
    # The second half has a dictionary of its own.
    parts = [drawn(schema, 60, seed) for seed in (1, 2)]
    places = [np.arange(1, 61), np.arange(61, 121)]
    found: dict[int, int] = {}
    for place, rows in zip(places, parts):
        block, count, digest = digester.blocks(place, rows)
        assert count.tolist() == [1] * 60
        found |= dict(zip(block.tolist(), digest.tolist()))
    rows = concat_rows(parts)
    arrays = ToArrow().arrays(rows, schema)
    table = pa.table(
        [pa.array(np.zeros(120, np.int32)), pa.array(np.arange(1, 121)), pa.array(rows.time), *arrays],
        schema=pa.schema([("partition", pa.int32()), ("place", pa.int64()), ("t", pa.int64()), *arrow_fields(schema)]),
    )
    names = ", ".join(f"`{n}`" for n in schema.names)
    frame = spark.createDataFrame(table).selectExpr("partition", "place", "t", f"struct({names}) as tuple")
    made = block_digests(frame, "tuple", "t", schema, "their").collect()
    assert {row["block"]: row["their_digest"] for row in made} == found


def test_runs_of_places_in_a_block_are_distinguished() -> None:
    schema = Schema.of(x="int64")
    place = np.array([digests.BLOCK - 1, digests.BLOCK, digests.BLOCK + 1, 5])
    time = np.zeros(4, np.int64)
    rows = Rows(time, time, (Column(np.arange(4)),))
    each = Digester(schema).rows(place, rows)
    block, count, digest = Digester(schema).blocks(place, rows)
    assert (block.tolist(), count.tolist()) == ([0, 1, 0], [1, 2, 1])
    assert digest.view(np.uint64).tolist() == [each[0], each[1] ^ each[2], each[3]]


def test_texts_are_hashed_as_spark_hashes_them(spark: SparkSession) -> None:
    made = spark.createDataFrame([(t,) for t in TEXTS], "t string").selectExpr("t", "xxhash64(t) as h").collect()
    by_text = {row["t"]: row["h"] for row in made}
    assert text_hashes(TEXTS).view(np.int64).tolist() == [by_text[t] for t in TEXTS]


def test_a_dictionary_that_grows_is_hashed_on() -> None:
    schema = Schema.of(s="string")
    dictionary = StringDictionary(["a", "b"])
    digester, place, time = Digester(schema), np.array([1]), np.zeros(1, np.int64)

    def of(code: int) -> int:
        column = Column(np.array([code], np.int32), None, dictionary)
        return int(digester.rows(place, Rows(time, time, (column,)))[0])

    first = of(0)
    assert of(1) != first
    new = dictionary.code("c")
    assert of(new) not in (first, of(1))
    assert of(0) == first
