"""Which values of an attribute the proof takes for equal."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from consistency.proof.comparing.values import FLOAT_TOLERANCE, alike
from spe.stream.schema import AttributeType

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Two floats, and whether they are equal.
PAIRS: list[tuple[float | None, float | None, bool]] = [
    (1.0, 1.0, True),
    (1.0, 1.0 + FLOAT_TOLERANCE / 2, True),
    (1.0, 1.0 + 2 * FLOAT_TOLERANCE, False),
    (0.0, -0.0, True),
    (0.0, 1e-300, False),
    (None, None, True),
    (None, 1.0, False),
    (None, math.nan, False),
    (math.nan, math.nan, True),
    (math.nan, 1.0, False),
    (math.nan, math.inf, False),
    (math.inf, math.inf, True),
    (math.inf, -math.inf, False),
    (math.inf, 1.0, False),
    (-math.inf, 1e308, False),
    (1e308, -1e308, False),
]


def test_floats_are_equal_only_within_relative_tolerance(spark: SparkSession) -> None:
    """To Spark NaN is the largest number, and ``NaN <= NaN`` holds: NaN and the infinities were equal to any number."""
    from pyspark.sql import functions as F

    pairs = [(a, b) for one, other, _ in PAIRS for a, b in ((one, other), (other, one))]
    frame = spark.createDataFrame([(at, *pair) for at, pair in enumerate(pairs)], "at int, a double, b double")
    for tolerance in (FLOAT_TOLERANCE, 0.0):
        found = frame.select("at", alike(F.col("a"), F.col("b"), AttributeType.FLOAT64, tolerance).alias("same"))
        same = [row["same"] for row in sorted(found.collect(), key=lambda row: row["at"])]
        expected = [equal and (tolerance > 0 or a == b or a is None or math.isnan(a)) for a, b, equal in PAIRS]
        assert same == [equal for equal in expected for _ in range(2)], tolerance
