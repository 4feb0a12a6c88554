"""The truth by Spark over millions of tuples with 1,000 keys: how long, in how much memory, and how it grows."""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml

from benchmarks.tables import CHECKED, demand, show
from spe.config import load_plan_data
from spe.states import StreamId

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from consistency.proof.run import Run

KEYS: Final = 1_000
SOURCES: Final = ("a", "b")
#: Tuples per second of tuple time, of each source.
RATE: Final = 10_000
OUT: Final = StreamId("per_second")
_SOURCE: Final[dict[str, Any]] = {
    "schema": {"ts": "timestamp!", "key": "int64!", "price": "float64!", "qty": "int64!"},
    "time": "ts",
    "from": {"jsonl": "none.jsonl"},
    "replay": {"max": True},
}
CONFIG: Final[dict[str, Any]] = {
    "bucket": "100ms",
    "sources": dict.fromkeys(SOURCES, _SOURCE),
    "query": {
        "all": {"union": list(SOURCES)},
        "large": {"filter": {"from": "all", "where": "price * qty >= 10"}},
        "per_second": {
            "aggregate": {
                "from": "large",
                "window": {"tumbling": "10s"},
                "group_by": "key",
                "compute": {"orders": "count(*)", "revenue": "sum(price * qty)", "most": "max(qty)"},
            }
        },
    },
    "outputs": ["per_second"],
}


def options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("proof")
    group.add_argument("--proof-tuples", type=int, nargs="*", default=[2_000_000], help="source tuples of each run")
    group.add_argument("--proof-memory", default="4g", help="heap of Spark's driver")


def run(arguments: argparse.Namespace) -> None:
    from consistency.proof.spark import session

    begun = time.perf_counter()
    spark = session("benchmark", master="local[2]", conf={"spark.driver.memory": arguments.proof_memory})
    spark.range(1).count()
    start_s = time.perf_counter() - begun
    rows = []
    try:
        for tuples in arguments.proof_tuples:
            with tempfile.TemporaryDirectory(prefix="spe-proof-") as folder:
                made_s, run_ = _made(spark, Path(folder) / "run", tuples)
                truth_s, results = _truth(spark, run_)
            total = start_s + truth_s
            rows.append(
                (
                    f"{tuples:,}",
                    f"{made_s:.1f}",
                    f"{truth_s:.1f}",
                    f"{tuples / truth_s / 1e6:.2f}",
                    f"{results:,}",
                    f"{start_s:.1f} ({start_s / total:.0%})",
                    f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f}",
                )
            )
    finally:
        spark.stop()
    show(
        "Ground truth",
        ("tuples", "logs s", "truth s", "M tuples/s", "results", "start of Spark s", "Python driver MiB"),
        rows,
        [
            f"Two sources, union, filter, aggregate over {KEYS:,} keys and 10 s;",
            f"{arguments.proof_memory} of heap, two cores. Logs: sorted and written by Spark.",
            "Truth: from the logs to numbered tuples; nothing is collected.",
            f"{CHECKED}: places are 1, 2, 3, …; counts and sums of the windows equal those of the tuples made.",
        ],
    )


def _made(spark: SparkSession, path: Path, tuples: int) -> tuple[float, Run]:
    """A directory with the logs of both sources, written by Spark."""
    from pyspark.sql import functions as F

    from consistency.proof.run import Run
    from consistency.proof.truth.stream import TIME
    from consistency.proof.writing import write_log

    begun = time.perf_counter()
    path.mkdir()
    (path / "config.yaml").write_text(yaml.safe_dump(CONFIG, sort_keys=False))
    plan = load_plan_data(CONFIG)
    (path / "cluster.json").write_text(json.dumps({"data": str(path), "fingerprint": plan.fingerprint}))
    each = tuples // len(SOURCES)
    for at, name in enumerate(SOURCES):
        time_us = F.col("id") * (1_000_000 // RATE) + at
        number = F.xxhash64("id", F.lit(at))
        frame = spark.range(each).select(
            time_us.alias(TIME),
            F.timestamp_micros(time_us).alias("ts"),
            F.pmod(number, F.lit(KEYS)).alias("key"),
            (F.pmod(F.shiftright(number, 16), F.lit(4000)) / 4).alias("price"),  # quarters: sums are exact
            (F.pmod(F.shiftright(number, 40), F.lit(9)) + 1).alias("qty"),
        )
        write_log(frame, plan.sources[StreamId(name)], path)
    return time.perf_counter() - begun, Run(path, plan)


def _truth(spark: SparkSession, run: Run) -> tuple[float, int]:
    """Seconds and results; every numbered tuple is computed."""
    from pyspark.sql import functions as F

    from consistency.proof.recording import source_log
    from consistency.proof.truth import truth

    begun = time.perf_counter()
    found = truth(spark, run, OUT)
    sums = (F.count("place"), F.max("place"), F.sum("tuple.orders"), F.sum("tuple.revenue"), F.sum(F.hash("tuple")))
    count, last, orders, revenue, _ = found.agg(*[s.cast("string").alias(f"c{i}") for i, s in enumerate(sums)]).first()  # type: ignore[misc]
    seconds = time.perf_counter() - begun
    spark.catalog.clearCache()
    direct = source_log(spark, run, StreamId("a")).unionByName(source_log(spark, run, StreamId("b")))
    worth = F.col("price") * F.col("qty")
    large = direct.where(worth >= 10).agg(F.count(F.lit(1)).cast("string"), F.sum(worth).cast("string")).first()
    demand(count == last, f"{count} results, the last of which has place {last}")
    demand(large is not None and orders == large[0], f"windows hold {orders} tuples; {large} were expected")
    demand(large is not None and revenue == large[1], f"windows hold a worth of {revenue}; {large} was expected")
    return seconds, int(count)
