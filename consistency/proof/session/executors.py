"""Checks that all executors see the run, before the first job: one sentence comes instead of failing tasks."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from spe.errors import SpeError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

#: Masters whose tasks run in Spark's own process; local-cluster is not among them.
_HERE: Final = re.compile(r"local(\[.*\])?")
#: Tasks per processor, so that none is likely to be left out.
_TASKS: Final = 2


def in_one_process(spark: SparkSession) -> bool:
    """Do tasks run on this machine, with the files and the environment of this process?"""
    return _HERE.fullmatch(str(spark.sparkContext.master)) is not None


def check_all_see(spark: SparkSession, unseen: Callable[[], str]) -> None:
    """Checks every executor that has registered by now.

    Args:
      unseen: runs on executors; returns the problem there, "" if there is none.

    Raises:
      SpeError: an executor has a problem; names the hosts.
    """
    if in_one_process(spark):
        return
    import pyarrow as pa

    def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield pa.RecordBatch.from_pydict({"host": [socket.gethostname()], "why": [unseen()]})

    tasks = _TASKS * spark.sparkContext.defaultParallelism
    rows = spark.range(0, tasks, 1, tasks).mapInArrow(look, "host string, why string").collect()
    if wrong := sorted({(row["host"], row["why"]) for row in rows if row["why"]}):
        hosts = ", ".join(dict.fromkeys(host for host, _ in wrong))
        raise SpeError(f"an executor of Spark on {hosts} cannot read the run: {wrong[0][1]}")


def path_unseen(path: str) -> str:
    """Returns the problem with a directory that must be on this machine, too; "" if there is none."""
    if Path(path).is_dir():
        return ""
    return (
        f"it does not see {path}; expected a file system that driver and executors see at the same path, or a URI such "
        "as s3://BUCKET/KEY (spe archive copies a run there)"
    )
