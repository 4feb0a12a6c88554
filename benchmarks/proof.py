"""The proof by Spark over millions of tuples: truth and verdict, how long, in how much memory, and how it grows."""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.proof_run import KEYS, LARGE, SUMS, Made, make_run
from benchmarks.tables import CHECKED, demand, show
from spe.stream.names import StreamId

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from consistency.proof.report.model import Report


def options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("proof")
    group.add_argument("--proof-tuples", type=int, nargs="*", default=[2_000_000], help="source tuples of each run")
    group.add_argument(
        "--proof-results",
        type=int,
        nargs="*",
        default=[],
        help="the same, of runs whose output is as large as the input",
    )
    group.add_argument("--proof-memory", default="4g", help="heap of Spark's driver")


def run(arguments: argparse.Namespace) -> None:
    from consistency.proof.session.session import session

    begun = time.perf_counter()
    spark = session("benchmark", master="local[2]", conf={"spark.driver.memory": arguments.proof_memory})
    spark.range(1_000).selectExpr("id % 7 AS k").groupBy("k").count().collect()
    spark.range(2, numPartitions=2).mapInArrow(lambda batches: batches, "id long").count()  # Python workers
    start_s = time.perf_counter() - begun
    rows = []
    try:
        for output, sizes in ((SUMS, arguments.proof_tuples), (LARGE, arguments.proof_results)):
            rows += [_measured(spark, tuples, output, start_s) for tuples in sizes]
    finally:
        spark.stop()
    head = (
        "source tuples", "output", "true, tentative tuples", "truth s", "verdict s", "us/tuple", "CPU us/tuple",
        "start of Spark", "Java MiB", "Python MiB",
    )  # fmt: skip
    show(
        "Ground truth and verdict",
        head,
        rows,
        [
            f"Two sources, union, filter, aggregate over {KEYS:,} keys and 10 s; a fifth of the time one source is cut",
            f"off; {arguments.proof_memory} of heap, two cores. Truth: from the logs to numbered tuples in Parquet.",
            "Verdict: the recording against it, with accuracy, delays and tables. Per tuple, of source tuples: both,",
            f"without the start of Spark, which took {start_s:.1f} s. MiB: the most so far.",
            f"{CHECKED}: CONSISTENT with a recording that NumPy computed; tentative tuples and how many were right.",
        ],
    )


def _measured(spark: SparkSession, tuples: int, output: StreamId, start_s: float) -> tuple[str, ...]:
    from consistency.proof.judge import judge_run
    from consistency.proof.recorded.run import Run

    java = int(spark._jvm.java.lang.ProcessHandle.current().pid())  # type: ignore[union-attr]
    with tempfile.TemporaryDirectory(prefix="spe-proof-") as folder:
        path = Path(folder) / "run"
        made = make_run(path, tuples, output)
        begun, cpu_s = time.perf_counter(), _cpu_s(java)
        report = judge_run(spark, Run.open(path), _tell, {})
        took_s, cpu_s = time.perf_counter() - begun, _cpu_s(java) - cpu_s
    _check(report, made)
    truth_s = report.timings_s[f"truth of {output}"]
    _tell(f"{tuples:,}: {took_s:.1f} s, {cpu_s:.1f} s of CPU; {report.timings_s}")
    return (
        f"{tuples:,}",
        str(output),
        f"{made.stable:,}, {made.tentative:,}",
        f"{truth_s:.1f}",
        f"{took_s - truth_s:.1f}",
        f"{took_s / tuples * 1e6:.1f}",
        f"{cpu_s / tuples * 1e6:.1f}",
        f"{start_s / (start_s + took_s):.0%}",
        f"{_most_mib(java):.0f}",
        f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f}",
    )


def _tell(step: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {step}", flush=True)


def _check(report: Report, made: Made) -> None:
    (one,) = report.outputs
    demand(str(report.verdict) == "CONSISTENT", f"{report.verdict}: {report.reasons}")
    found: dict[str, Any] = {"true": one.truth, "stable": one.stable, "undone": one.tentative.undone}
    expected = {"true": made.stable, "stable": made.stable, "undone": made.tentative}
    found |= {"tentative": one.tentative.count, "right": one.tentative.right}
    expected |= {"tentative": made.tentative, "right": made.right}
    demand(found == expected, f"the report says {found}; {expected} was expected")


def _cpu_s(root: int) -> float:
    """CPU seconds so far of a process and all below it, those that ended included.  Linux only."""
    ticks: dict[int, int] = {}
    parents: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it ended meanwhile
        pid = int(entry.parent.name)
        parents[pid] = int(fields[1])
        ticks[pid] = sum(map(int, fields[11:15]))
    inside = {root}
    while more := {p for p, parent in parents.items() if parent in inside} - inside:
        inside |= more
    return sum(ticks.get(p, 0) for p in inside) / os.sysconf("SC_CLK_TCK")


def _most_mib(pid: int) -> float:
    """Largest resident memory of a process so far."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))
