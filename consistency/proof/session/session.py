"""The Spark session of a command, configured to avoid the usual failures, and one within a caller's."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from consistency.proof.session.errors import essence
from consistency.proof.session.java import java_home, java_options
from consistency.proof.session.master import check_answers
from consistency.proof.session.parallel import OWN_POOLS
from spe.errors import SpeError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Settings on which the meaning of expressions depends (docs/reference/expressions.md): not for users to change.
SEMANTICS: Final = {
    "spark.sql.ansi.enabled": "false",
    "spark.sql.caseSensitive": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.optimizer.excludedRules": ",".join(
        f"org.apache.spark.sql.catalyst.optimizer.{rule}"
        for rule in (
            # It replaces lower(upper(s)) by lower(s), which is wrong for 'straße'.
            "SimplifyCaseConversionExpressions",
            # A filter behind maps would hold what they compute, written out for each use, and each use of a use: behind
            # 13 attributes, each computed from the two before it, memory ran out.  The second works within a rule that
            # runs behind Python's.
            "PushDownPredicates",
            "PushPredicateThroughNonJoin",
        )
    ),
}
_DEFAULTS: Final = {
    "spark.scheduler.mode": "FAIR",  # small jobs along with a large one
    OWN_POOLS: "true",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "2g",
    "spark.sql.shuffle.partitions": str(4 * (os.cpu_count() or 1)),
    "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
    # Whole segments go through Arrow where they lie on another file system.
    "spark.sql.execution.arrow.maxBytesPerBatch": str(64 << 20),
    # Tasks take texts as Arrow has them by default.
    "spark.sql.execution.arrow.useLargeVarTypes": "false",
    # Each call on a column would record its caller, which takes ten times longer than the call.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    # Spark writes 96 bits by default, which take several times as long, and which others read as nanoseconds.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # The two sides of a join, each numbered by some of its keys before, need not be shuffled again.
    "spark.sql.requireAllClusterKeysForCoPartition": "false",
    # Memory of a task's arrays is kept for the next ones: allocating it anew took a seventh of the workers' time.
    "spark.executorEnv.MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "spark.executorEnv.MALLOC_TRIM_THRESHOLD_": str(512 << 20),
    # With a network of many operators the planner inferred constraints until it ran out of memory.
    "spark.sql.constraintPropagation.enabled": "false",
}


#: Settings of _DEFAULTS that a running session accepts.
_WHILE_RUNNING: Final = (
    "spark.sql.execution.arrow.maxRecordsPerBatch",
    "spark.sql.execution.arrow.maxBytesPerBatch",
    "spark.sql.execution.arrow.useLargeVarTypes",
    "spark.sql.parquet.outputTimestampType",
    "spark.sql.requireAllClusterKeysForCoPartition",
    "spark.sql.constraintPropagation.enabled",
)
#: The first supported release of Spark, and the first that was never tested.
_OLDEST: Final = (4, 3)
_BEYOND: Final = (5, 0)
_CONNECT: Final = (
    "Spark Connect is not supported, because the proof needs the JVM of its driver; expected the master of a cluster, "
    "such as local[*] or spark://host:7077"
)


def within(spark: SparkSession) -> SparkSession:
    """Returns a session of the proof's own within a caller's: same Spark, other settings.  The caller's is unchanged.

    Raises:
      SpeError: it is of Spark Connect, was stopped, or is of an unsupported release.
    """
    if "pyspark.sql.connect" in type(spark).__module__:
        raise SpeError(f"this session is of Spark Connect: {_CONNECT}")
    from pyspark.sql import SparkSession as Some

    if not isinstance(spark, Some):
        raise SpeError(f"expected a SparkSession, got {type(spark).__name__}")
    if spark._sc._jsc is None:
        raise SpeError("this SparkSession was stopped; start another one")
    check_version(spark.version)
    own = spark.newSession()
    for name in _WHILE_RUNNING:
        own.conf.set(name, _DEFAULTS[name])
    for name, value in SEMANTICS.items():
        own.conf.set(name, value)
    return own


def check_version(version: str) -> None:
    """Raises SpeError for an unsupported release of Spark."""
    number = tuple(int(part) for part in version.split(".")[:2])
    if not _OLDEST <= number < _BEYOND:
        least, beyond = (".".join(map(str, n)) for n in (_OLDEST, _BEYOND))
        raise SpeError(f"Spark {version} is not supported; expected {least} or later, before {beyond}")


def _check_no_connect(master: str | None, conf: Mapping[str, str]) -> None:
    """Raises SpeError where the settings would start a session of Spark Connect."""
    asked = {"--master": master or "", "--conf spark.remote": conf.get("spark.remote", "")}
    asked |= {name: os.environ.get(name, "") for name in ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED")}
    for name, value in asked.items():
        if value.startswith("sc://") or (value and name != "--master"):
            raise SpeError(f"{name} {value}: {_CONNECT}")


def session(app: str, *, master: str | None = None, conf: Mapping[str, str] | None = None) -> SparkSession:
    """Returns a session that finds the data source ``spe`` by a module's name (pyspark_spe.py).  Takes 5 to 10 seconds.

    Args:
      app: name of the command.
      master: of a cluster; all processors of this machine by default.
      conf: further settings of Spark.

    Raises:
      SpeError: pyspark or Java is missing, a setting would change the meaning of expressions, Spark Connect is
        requested, the release is not supported, no master answers, or Spark does not start.
    """
    settings = dict(conf or {})
    for name, value in SEMANTICS.items():
        if settings.get(name, value) != value:
            raise SpeError(f"{name} must be {value}, got {settings[name]!r}: else results mean something else")
    _check_no_connect(master, settings)
    check_answers(master or settings.get("spark.master", ""))
    try:
        import pyspark
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise SpeError(f"Spark is not installed ({error}); pip install '.[spark]'") from error
    check_version(pyspark.__version__)
    _prepare_environment()
    logging.getLogger("py4j").setLevel(logging.CRITICAL)  # it logs each failing call, which also raises
    logging.getLogger().addFilter(_is_not_of_py4j)  # some of its records go to the root logger
    builder = SparkSession.builder.appName(app).master(master or "local[*]")
    options = {"spark.driver.extraJavaOptions": java_options(settings.get("spark.driver.defaultJavaOptions", ""))}
    for name, value in {**_DEFAULTS, **options, **settings, **SEMANTICS}.items():
        builder = builder.config(name, value)
    try:
        spark = builder.getOrCreate()
    except (PySparkException, Py4JError, OSError) as error:
        raise SpeError(f"Spark does not start: {essence(error)}") from error
    _say_once_that_java_is_gone(spark)
    return spark


def _say_once_that_java_is_gone(spark: SparkSession) -> None:
    """Suppresses the traceback of Spark's server of accumulators when its connection breaks."""
    server = spark.sparkContext._accumulatorServer
    handle = server.handle_error

    def handle_error(request: Any, address: Any) -> None:
        if not isinstance(sys.exception(), EOFError | OSError):
            handle(request, address)

    server.handle_error = handle_error  # type: ignore[method-assign,assignment]


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    return Path(record.pathname).parent.name != "py4j"


def _prepare_environment() -> None:
    """Sets the environment of the JVM and Spark's Python workers: Java, interpreter, modules, no host name lookup."""
    os.environ["JAVA_HOME"] = str(java_home())
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("SPARK_CONF_DIR", str(Path(__file__).with_name("conf")))  # no log output from the start
    known = [os.getcwd() if path == "" else path for path in sys.path]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(known))
