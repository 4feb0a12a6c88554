"""Proves a run within a Spark session of the caller: ``prove(spark, run)`` of the package ``spe``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from replicas.planning.cluster_topology import fidelity_of
from replicas.planning.recovery.cluster import value_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from consistency.proof.recorded.run import Run
    from consistency.proof.report.model import Report, SinkFacts


def _silent(step: str) -> None:
    pass


def prove(spark: SparkSession, run: str | Path, *, tell: Callable[[str], None] = _silent) -> Report:
    """Returns the report on a run, and writes it into the run's directory, as ``spe report`` does.

    Args:
      spark: any session except Spark Connect; its settings and its cache stay unchanged.
      run: path of the directory, which every executor sees, or a URI that Spark reads.
      tell: called with each step as it begins.

    Raises:
      SpeError: the run cannot be judged, the session cannot be used, or Spark fails.
    """
    from consistency.proof.judge import write_report
    from consistency.proof.session.errors import explained
    from consistency.proof.session.session import within
    from consistency.proof.storage.remote import opened

    with explained():
        own = within(spark)
        with opened(own, run) as opened_run:
            report = judged(own, opened_run, tell)
            write_report(own, report, opened_run)
            return report


def judged(
    spark: SparkSession,
    run: Run,
    tell: Callable[[str], None],
    started_s: float = 0.0,
    *,
    tables: str | None = None,
    sinks_known: list[SinkFacts] | None = None,
) -> Report:
    """Returns the report on an open run; see ``consistency.proof.judge``."""
    from consistency.proof.judge import judge_run

    steps = {"start-up of Spark": started_s} if started_s else {}
    fidelity, value = (partial(figure, run.plan, run.directory) for figure in (fidelity_of, value_of))
    return judge_run(spark, run, tell, steps, fidelity, value, tables=tables, sinks_known=sinks_known)


def again(spark: SparkSession, run: Run, earlier: Report, tell: Callable[[str], None]) -> Report:
    """Computes the report on a run once more, except its sinks; the run's directory stays unchanged.

    On a cluster, temporary tables are written next to the run, which executors see.
    """
    from consistency.proof.session.executors import in_one_process
    from consistency.proof.storage.hadoop import HadoopFolder
    from consistency.proof.storage.remote import folder_of

    if in_one_process(spark) and not run.origin:
        with TemporaryDirectory(prefix="spe-verify-") as folder:
            return judged(spark, run, tell, tables=folder, sinks_known=earlier.sinks)
    parent, _, name = (run.origin or str(run.path.absolute())).rpartition("/")
    name = f"{name}.verification"
    try:
        return judged(spark, run, tell, tables=f"{parent}/{name}", sinks_known=earlier.sinks)
    finally:
        (folder_of(spark, parent) if run.origin else HadoopFolder(spark, parent)).remove(PurePosixPath(name))
