"""One Spark session for all tests here: starting one takes longer than most tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from consistency.proof.report.model import Report
from tests.support.in_turn import only_process
from tests.support.reports import check_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session", autouse=True)
def _in_turn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with only_process("spark", tmp_path_factory):
        yield


@pytest.fixture(scope="session", autouse=True)
def _valid_reports() -> Iterator[None]:
    """Every report that a test makes is valid by the schema that is shipped."""

    def made(**values: Any) -> Report:
        found = Report(**values)
        check_schema(found.model_dump_json())
        return found

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("consistency.proof.judge.Report", made)
        yield


@pytest.fixture(scope="module")
def commands_use_it(spark: SparkSession) -> Iterator[None]:
    """Commands run in this process take the session of the tests, and do not stop it."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("consistency.proof.session.session.session", lambda *args, **more: spark)
        patched.setattr(spark, "stop", lambda: None)
        yield


@pytest.fixture
def compiling(spark: SparkSession) -> Iterator[SparkSession]:
    """The session, which compiles expressions and stages as it does for users."""
    spark.conf.set("spark.sql.codegen.wholeStage", "true")
    spark.conf.set("spark.sql.codegen.factoryMode", "FALLBACK")
    yield spark
    spark.conf.set("spark.sql.codegen.wholeStage", "false")
    spark.conf.set("spark.sql.codegen.factoryMode", "NO_CODEGEN")


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    from consistency.proof.session.session import session

    # On a few rows interpreting is faster than compiling, and one plan faster than one after each stage.
    conf = {
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    }
    found = session("tests", master="local[2]", conf=conf)
    yield found
    found.stop()
