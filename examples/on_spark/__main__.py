"""Spark feeds a query, runs its nodes, and reads it; an executor is killed; and the run is proved."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any, Final

from consistency.proof.session.session import session
from examples.on_spark.judge import TotalsRead, judge
from examples.on_spark.processes import executor_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

HERE: Final = Path(__file__).parent
SPE: Final = (sys.executable, "-m", "replicas.cli")
#: Each row is an order.
RATE: Final = 200
SHOPS: Final = 5
#: What takes longer than this has failed.
PATIENCE_S: Final = 900.0
TOO_SLOW: Final = ("failed to connect back", "CANNOT_OPEN_SOCKET")
LOST: Final = "n1 was lost with executor"
BACK: Final = "main/0@n1 RECOVERING → STABLE"
OVER: Final = "comparing with the reference run"


def main() -> int:
    """Exit status: 0 where the run is proved, and Spark has read all of it once."""
    parser = argparse.ArgumentParser(prog="python -m examples.on_spark", description=__doc__)
    add = parser.add_argument
    add("--master", default="local-cluster[3,1,512]", help="where nodes run; executors must be on this machine")
    add("--seconds", type=float, default=15.0, help="before and after the executor is killed")
    given = parser.parse_args()
    folder = Path("runs", f"on_spark_{time.strftime('%m%d_%H%M%S')}").absolute()
    folder.mkdir(parents=True)
    print(f"recorded in {folder}", flush=True)
    shutil.copy(HERE / "shop.yaml", folder)
    run, read = folder / "run", TotalsRead()
    with running(folder, given.master) as cluster:
        cluster.until(BACK)
        spark = session("feeds and reads", master="local[2]")
        feeding, reading = feed(spark, run, folder), follow(spark, run, folder, read)
        wait(lambda: read.rows, "result", feeding, reading)
        print("the first results were read", flush=True)
        time.sleep(given.seconds)
        executor = executor_of("n1", run)
        print(f"kills the executor of n1, process {executor}", flush=True)
        os.kill(executor, signal.SIGKILL)
        cluster.until(LOST)
        cluster.until(BACK, times=2)
        time.sleep(given.seconds)
        feeding.stop()
        fed = sum(progress["numInputRows"] for progress in feeding.recentProgress)
        print("Spark has stopped feeding", flush=True)
        subprocess.run([*SPE, "end", str(run), "orders"], check=True)
        cluster.until(OVER)  # the reading job has all of it
        reading.stop()
        spark.stop()
        status = cluster.process.wait(PATIENCE_S)
    wrong = judge(json.loads((run / "report" / "report.json").read_text()), read, fed)
    wrong += [f"the exit status of spe run is {status}"] * bool(status)
    if wrong:
        print("\n".join(f"WRONG: {text}" for text in wrong))
        return 1
    print(f"CONSISTENT: Spark has fed {read.orders} orders, and has read each of {len(read.rows)} results once.")
    return 0


class Run:
    """``spe run --on spark``, whose lines are shown."""

    def __init__(self, folder: Path, master: str) -> None:
        command = [*SPE, "run", str(folder / "shop.yaml"), "--run-dir", str(folder / "run"), "--no-view"]
        command += ["--dashboard", "off", "--on", "spark", "--master", master, "--report"]
        for setting in ("spark.executor.memory=512m", "spark.driver.memory=512m"):
            command += ["--conf", setting]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
        )
        self._lines: list[str] = []
        Thread(target=self._show, daemon=True).start()

    def _show(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.append(line)
            print(f"    {line}", end="", flush=True)

    def until(self, text: str, *, times: int = 1) -> None:
        """Waits until it has said something so often."""
        end = time.monotonic() + PATIENCE_S
        while sum(text in line for line in list(self._lines)) < times:
            if self.process.poll() is not None or time.monotonic() > end:
                raise SystemExit(f"WRONG: spe run did not say {text!r}")
            time.sleep(0.2)


@contextmanager
def running(folder: Path, master: str) -> Iterator[Run]:
    """It ends with the block."""
    one = Run(folder, master)
    try:
        yield one
    finally:
        one.process.send_signal(signal.SIGINT)
        try:
            one.process.wait(PATIENCE_S)
        finally:
            one.process.kill()


def feed(spark: SparkSession, run: Path, folder: Path) -> StreamingQuery:
    """Orders, as they come."""
    orders = spark.readStream.format("rate").option("rowsPerSecond", RATE).load()
    shop = f"concat('shop ', value % {SHOPS}) AS shop"
    frame = orders.selectExpr("timestamp AS ts", shop, "value % 97 AS price")
    options = {"cluster": str(run), "source": "orders", "writer": "feed", "checkpointLocation": str(folder / "feed")}
    return started(frame.writeStream.format("spe").options(**options).trigger(processingTime="1 second"))


def follow(spark: SparkSession, run: Path, folder: Path, read: TotalsRead) -> StreamingQuery:
    """Totals, as they are final."""

    def take(frame: DataFrame, number: int) -> None:
        read.batches[number] = [row.asDict() for row in frame.collect()]

    options = {"cluster": str(run), "output": "totals", "client": "reader"}
    totals = spark.readStream.format("spe").options(**options).load()
    return started(totals.writeStream.foreachBatch(take).option("checkpointLocation", str(folder / "read")))


def started(writer: DataStreamWriter) -> StreamingQuery:
    """Spark gives its Python processes ten seconds to start, whatever else the machine does; then it begins again."""
    query = writer.start()
    wait(lambda: not query.isActive or not query.status["message"].startswith("Initializing"), "start of a query")
    slow = any(text in str(query.exception()) for text in TOO_SLOW)
    return started(writer) if slow else query


def wait(true: Callable[[], Any], what: str, *queries: StreamingQuery) -> None:
    """Waits for what queries bring about."""
    end = time.monotonic() + PATIENCE_S
    while not true():
        for query in queries:
            if (error := query.exception()) is not None:
                raise error
        if time.monotonic() > end:
            raise SystemExit(f"WRONG: no {what} within {PATIENCE_S:g} s")
        time.sleep(0.2)


if __name__ == "__main__":
    sys.exit(main())
