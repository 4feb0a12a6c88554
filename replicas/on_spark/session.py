"""A Spark for long-lived tasks: unsuitable settings are refused before it starts, in a sentence."""

from __future__ import annotations

import logging
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from spe.errors import SpeError

if TYPE_CHECKING:
    from pyspark import SparkConf, SparkContext

#: Settings that a run needs, unless its user has others.
_DEFAULTS: Final = {
    # A failed attempt is submitted again by us: Spark would place it without regard to partners.
    "spark.task.maxFailures": "1",
    "spark.driver.memory": "1g",
}
#: Settings that would end nodes, or run a node twice, and why.
_REFUSED: Final = {
    "spark.speculation": "it starts a second task beside a slow one, and a task that runs a node never ends",
    "spark.dynamicAllocation.enabled": "it takes executors away that the nodes of a lost one need",
}
_LOCAL: Final = re.compile(r"local(\[.*\])?")
_LOCAL_CLUSTER: Final = re.compile(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,\s*(\d+)\s*\]")
#: Error without a master.
WITHOUT_MASTER: Final = (
    "--on spark needs --master URL, such as spark://host:7077, yarn, k8s://https://host:6443 or local-cluster[3,1,1024]"
)


def check_master(master: str) -> None:
    """Raises SpeError: the master cannot run nodes, or does not answer."""
    if not master:
        raise SpeError(WITHOUT_MASTER)
    if _LOCAL.fullmatch(master):
        raise SpeError(
            f"--master {master} runs all tasks in one process, so all nodes would fail at once; expected a cluster, or "
            "local-cluster[3,1,1024]: three executors with one core and 1024 MB each"
        )
    if master.startswith("sc://"):
        raise SpeError(f"--master {master}: Spark Connect cannot run nodes, because it shows no executors")
    if master == "yarn" and not (os.environ.get("HADOOP_CONF_DIR") or os.environ.get("YARN_CONF_DIR")):
        raise SpeError("--master yarn needs HADOOP_CONF_DIR or YARN_CONF_DIR, the folder that says where YARN is")
    from consistency.proof.session.master import check_answers  # nodes import nothing of the proof

    check_answers(master)


def expected_executors(master: str, conf: Mapping[str, str]) -> int | None:
    """Returns the configured number of executors; None: it is open."""
    if match_ := _LOCAL_CLUSTER.fullmatch(master):
        return int(match_[1])
    instances = conf.get("spark.executor.instances", "")
    return int(instances) if instances.isdecimal() else None


def check_settings(conf: Mapping[str, str]) -> None:
    """Raises SpeError, with the reason, for settings under which nodes cannot live."""
    for name, why in _REFUSED.items():
        if conf.get(name, "false").strip().lower() == "true":
            raise SpeError(f"{name} must be false for nodes: {why}")


@contextmanager
def open_spark(app: str, master: str | None, conf: Mapping[str, str]) -> Iterator[SparkContext]:
    """Starts Spark, which is stopped with the block.  Takes 5 to 20 seconds.

    Args:
      master: None: that of spark-submit.

    Raises:
      SpeError: pyspark or Java is missing, the release is not supported, a setting is refused, no master answers, or
        Spark does not start.
    """
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if (url := master or conf.get("spark.master", "")) or not submitted:
        check_master(url)
    check_settings(conf)
    from consistency.proof.session.java import java_home
    from consistency.proof.session.session import check_version

    try:
        import pyspark
    except ImportError as error:
        raise SpeError(f"Spark is not installed ({error}); pip install '.[spark]'") from error
    check_version(pyspark.__version__)
    if not submitted:
        os.environ["JAVA_HOME"] = str(java_home())
        _prepare_environment()
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    with _home_of_local_cluster(url):
        context = _started(app, url, conf)
        try:
            yield context
        finally:
            with suppress(Exception):  # it may be gone
                context.stop()


def _started(app: str, url: str, conf: Mapping[str, str]) -> SparkContext:
    """Starts Spark.  Raises SpeError: a setting is refused, no master answers, or Spark does not start."""
    from py4j.protocol import Py4JError
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkException

    from consistency.proof.session.errors import essence

    try:
        SparkContext._ensure_initialized()  # otherwise settings of spark-submit and of files are missing
        return SparkContext(conf=_with_settings(SparkConf(), app, url, conf))
    except (PySparkException, Py4JError, OSError, ValueError) as error:
        raise SpeError(f"Spark does not start: {essence(error)}") from error


def _with_settings(known: SparkConf, app: str, url: str, conf: Mapping[str, str]) -> SparkConf:
    """Adds our settings to those of spark-submit and of files.  Raises SpeError: a setting or the master is refused."""
    known.setAppName(app)
    known.set("spark.ui.showConsoleProgress", "false")  # Spark itself sets it, so it is never missing
    for name, value in _DEFAULTS.items():
        known.setIfMissing(name, value)
    for name, value in conf.items():
        known.set(name, value)
    if url:
        known.setMaster(url)
    else:
        check_master(known.get("spark.master") or "")
    check_settings(dict(known.getAll()))
    return known


def _prepare_environment() -> None:
    """Sets the environment of Spark's Python processes on this machine: this interpreter, and its modules."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if "SPARK_HOME" not in os.environ:  # an installation has its own configuration
        import consistency.proof

        conf = Path(str(consistency.proof.__file__)).with_name("conf")
        os.environ.setdefault("SPARK_CONF_DIR", str(conf))
    known = [os.getcwd() if path == "" else path for path in sys.path]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(known))


@contextmanager
def _home_of_local_cluster(master: str) -> Iterator[None]:
    """Gives executors of a local-cluster a writable SPARK_HOME, for they write into its folder ``work``."""
    if not _LOCAL_CLUSTER.fullmatch(master) or "SPARK_HOME" in os.environ:
        yield
        return
    import pyspark

    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    home = Path(tempfile.mkdtemp(prefix="spe-spark-"))
    for entry in Path(pyspark.__path__[0]).iterdir():
        if entry.name != "work":
            (home / entry.name).symlink_to(entry)
    os.environ["SPARK_HOME"] = str(home)
    try:
        yield
    finally:
        del os.environ["SPARK_HOME"]
        shutil.rmtree(home, ignore_errors=True)


def settings(context: SparkContext) -> dict[str, str]:
    """Returns the settings in force."""
    pairs: list[Any] = context.getConf().getAll()
    return {str(name): str(value) for name, value in pairs}
