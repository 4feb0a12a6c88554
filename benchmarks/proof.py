"""The proof by Spark over millions of tuples: truth and verdict, how long, in how much memory, and how it grows."""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final
from unittest.mock import patch

import numpy as np
import yaml

from benchmarks.cpu import cpu_of_family, memory_mib
from benchmarks.proof_run import LARGE, SUMS, Made, make_run
from benchmarks.tables import benchmark, demand
from replicas.reference import run_reference
from spe.config import load_data
from spe.log.source_log import SourceState
from spe.stream.batch import Batch, Boundary, Column, Element, Rows
from spe.stream.change import Change
from spe.stream.names import Kind, StreamId
from spe.stream.times import END_OF_TIME, MILLISECOND, SECOND
from tests.support import runs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from consistency.proof.report.follow_model import Followed
    from consistency.proof.report.model import Report


HEAP: Final = "4g"


def options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("proof")
    group.add_argument("--proof-tuples", type=int, nargs="*", default=[2_000_000], help="source tuples of each run")
    group.add_argument("--proof-results", type=int, nargs="*", default=[], help="the same, with as large an output")
    group.add_argument("--follow-hours", type=float, default=1.0, help="of the stream (follow)")


@contextmanager
def spark_session(**conf: str) -> Iterator[tuple[SparkSession, int]]:
    """A session of two cores that has started its workers, and the process of its driver."""
    from consistency.proof.session.session import session

    spark = session("benchmark", master="local[2]", conf=conf)
    try:
        spark.range(1_000).selectExpr("id % 7 AS k").groupBy("k").count().collect()
        spark.range(2, numPartitions=2).mapInArrow(lambda batches: batches, "id long").count()  # Python workers
        yield spark, int(spark._jvm.java.lang.ProcessHandle.current().pid())
    finally:
        spark.stop()


@benchmark(
    "proof",
    "source tuples | output | true, tentative tuples | truth s | verdict s | us/tuple | CPU us/tuple | Java MiB | "
    "Python MiB",
    options,
)
def _rows(arguments: argparse.Namespace) -> Iterator[list[str] | str]:
    """Ground truth and verdict.

    Two sources, union, filter, aggregate over 1,000 keys and 10 s; a fifth of the time one source is cut off; two
    cores.  Truth: from the logs to numbered tuples in Parquet.  Verdict: the recording against it, with accuracy,
    delays and tables.  Per tuple, of source tuples: both.  MiB: the most so far.  Checked: CONSISTENT with a recording
    that NumPy computed; tentative tuples and how many were right.
    """
    begun = time.perf_counter()
    with spark_session(**{"spark.driver.memory": HEAP}) as (spark, java):
        start_s = time.perf_counter() - begun
        for output, sizes in ((SUMS, arguments.proof_tuples), (LARGE, arguments.proof_results)):
            for tuples in sizes:
                yield _measured(spark, java, tuples, output)
    yield f"{HEAP} of heap.  The start of Spark, which is left out, took {start_s:.1f} s."


def _measured(spark: SparkSession, java: int, tuples: int, output: StreamId) -> list[str]:
    from consistency.proof.judge import judge_run
    from consistency.proof.recorded.run import Run

    with tempfile.TemporaryDirectory(prefix="spe-proof-") as folder:
        path = Path(folder) / "run"
        made = make_run(path, tuples, output)
        begun, cpu_s = time.perf_counter(), cpu_of_family(java)
        report = judge_run(spark, Run.open(path), _tell, {})
        took_s, cpu_s = time.perf_counter() - begun, cpu_of_family(java) - cpu_s
    _check(report, made)
    truth_s = report.timings_s[f"truth of {output}"]
    _tell(f"{tuples:,}: {took_s:.1f} s, {cpu_s:.1f} s of CPU; {report.timings_s}")
    python_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return [
        *(f"{tuples:,}", str(output), f"{made.stable:,}, {made.tentative:,}"),
        *(f"{value:.1f}" for value in (truth_s, took_s - truth_s, took_s / tuples * 1e6, cpu_s / tuples * 1e6)),
        *(f"{mib:.0f}" for mib in (memory_mib(java, "VmHWM"), python_mib)),
    ]


def _tell(step: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {step}", flush=True)


def _check(report: Report, made: Made) -> None:
    (judged,) = report.outputs
    demand(str(report.verdict) == "CONSISTENT", f"{report.verdict}: {report.reasons}")
    tentative = judged.tentative
    counts: dict[str, Any] = {"true": judged.truth, "stable": judged.stable, "undone": tentative.undone}
    expected = {"true": made.stable, "stable": made.stable, "undone": made.tentative}
    counts |= {"tentative": tentative.count, "right": tentative.right}
    expected |= {"tentative": made.tentative, "right": made.right}
    demand(counts == expected, f"the report says {counts}; {expected} was expected")


# --- the proof of a run that goes on: an hour of the stream, in steps of a minute, and after the run ---

SOURCES: Final = ("a", "b")
FOLLOWED_KEYS: Final = 20
#: Tuples per second, of both sources.
RATE: Final = 100
#: A source sends what is due so often, and a boundary.
_SENDS_US: Final = 25 * MILLISECOND
_BOUNDARY_US: Final = 100 * MILLISECOND
CONFIG: Final = """
bucket: 100ms
sources:
  a: &source
    schema: {ts: timestamp!, key: int64!, price: float64!}
    time: ts
    from: {jsonl: none.jsonl}
    replay: {max: true}
  b: *source
query:
  all: {union: [a, b]}
  large: {filter: {from: all, where: price >= 10}}
  per_second: {aggregate: {from: large, window: 1s, group_by: key, compute: {orders: count(*), revenue: sum(price)}}}
  load: {aggregate: {from: large, window: {sliding: 10s, slide: 1s}, compute: {orders: count(*), mean: avg(price)}}}
outputs: [per_second, load]
nodes: [n1, n2]
clients: {board: {reads: [per_second, load]}}
"""


@benchmark("follow", "step | steps | results | s per hour | CPU s per hour | median step s | state KiB | Java MiB")
def _follow_rows(arguments: argparse.Namespace) -> Iterator[list[str]]:
    """Proof of a run that goes on.

    Two sources, a record of each log every 25 ms; results per second and key, and a mean over 10 s every second, at one
    client.  Without the start of Spark.  Checked: every result is that of spe reference.
    """
    seconds = round(arguments.follow_hours * 3_600)
    with spark_session() as (spark, java), tempfile.TemporaryDirectory(prefix="spe-follow-") as folder:
        for minutes in (True, False):
            yield _followed(spark, java, Path(folder) / str(minutes), seconds, minutes)


def _followed(spark: SparkSession, java: int, path: Path, seconds: int, minutes: bool) -> list[str]:
    from consistency.proof.follow import ranges
    from consistency.proof.follow.follow_loop import Following

    made = _make(path, seconds)
    cpu_s, own_s, took = cpu_of_family(java), time.process_time(), []
    records = ranges.STEP_RECORDS if not minutes else 60 * len(SOURCES) * SECOND // _SENDS_US
    with patch.object(ranges, "STEP_RECORDS", records):
        proof = Following(path, 60 * SECOND)
        while not proof.state.over:
            step = proof.step(spark, lambda what: None)
            assert step is not None
            took.append(step.seconds)
            print(f"{time.strftime('%H:%M:%S')}  step {step.number}: {step.seconds} s", flush=True)
    followed = proof.write()
    _check_followed(followed, made)
    hours = seconds / 3_600
    cpu_s = cpu_of_family(java) - cpu_s + time.process_time() - own_s
    size = sum(p.stat().st_size for p in (path / "follow").rglob("*"))
    return [
        *("a minute" if minutes else "as much as fits", f"{followed.steps}", f"{made:,}"),
        *(f"{s:.1f}" for s in (followed.seconds / hours, cpu_s / hours, median(took))),
        *(f"{size / 1024:.0f}", f"{memory_mib(java, 'VmHWM'):.0f}"),
    ]


def _check_followed(followed: Followed, made: int) -> None:
    wrong = [o.title for o in followed.outputs if o.findings]
    demand(not wrong, f"tuples are wrong of {wrong}")
    demand(sum(o.truth for o in followed.outputs) == made, f"{made} results were expected")
    demand(sum(o.stable for o in followed.outputs) == made, f"{made} results were received")


def _make(path: Path, seconds: int) -> int:
    """Makes a run that is over; returns the number of results."""
    config, events = yaml.safe_load(CONFIG), [{"t": 0, "event": "begin", "begun_us": 0}]
    inputs = {StreamId(name): list(_sent(at, seconds, RATE // len(SOURCES))) for at, name in enumerate(SOURCES)}
    results = run_reference(load_data(config).plan, inputs, step_rows=RATE // 10)
    changes = [Change(channel, element, at) for at, (channel, element) in enumerate(results)]
    runs.make_run(path, config, inputs, {"board": changes}, events, begun=SourceState(origin_us=0, begun_us=0))
    return sum(len(change.element) for change in changes if isinstance(change.element, Batch))


def _sent(source: int, seconds: int, rate: int) -> Iterator[Element]:
    """Elements of a source: a batch for each 25 ms, and its boundaries."""
    ids = np.arange(seconds * rate, dtype=np.int64)
    time_us = ids * SECOND // rate + source
    random = np.random.default_rng(source)
    columns = (
        Column(time_us),
        Column(random.integers(0, FOLLOWED_KEYS, len(ids))),
        Column(random.integers(0, 400, len(ids)) / 4),
    )
    rows = Rows(time_us, time_us, columns)
    ends = np.arange(_SENDS_US, seconds * SECOND + 1, _SENDS_US)
    before = 0
    for end, upto in zip(ends.tolist(), time_us.searchsorted(ends).tolist()):
        if upto > before:
            yield Batch(Kind.STABLE, before, upto, None, rows.slice(before, upto))
            before = upto
        if end % _BOUNDARY_US == 0:
            yield Boundary(Kind.STABLE, end, before)
    yield Boundary(Kind.STABLE, END_OF_TIME, before)
