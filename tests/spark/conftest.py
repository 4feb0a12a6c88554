"""One Spark session for all tests here: starting one takes longer than what is done in it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    from consistency.proof.spark import session

    # Compiling each stage takes longer than interpreting it on a few rows.
    conf = {"spark.sql.shuffle.partitions": "2", "spark.driver.memory": "1g", "spark.sql.codegen.wholeStage": "false"}
    found = session("tests", master="local[2]", conf=conf)
    yield found
    found.stop()
