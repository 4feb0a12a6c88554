"""Outputs of a running cluster through Spark: real processes, one of them killed and a source cut off meanwhile."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from replicas.client.recorder import recorded_stable
from replicas.local.run_dir import load_target
from spe.log.recording import client_folder
from spe.runtime.storage import DiskStorage
from spe.stream.ids import Channel
from spe.stream.names import StreamId

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

pytestmark = pytest.mark.long

CONFIG = """
cluster: live
bucket: 100ms
sources:
  a: {from: {generator: {name: orders, rate: 100, seed: 1, keys: 50, duration: 20m}}}
  c: {schema: {ts: timestamp!, n: int64!, word: string}, time: ts, disorder: 1s, idle: 2s, from: {push: [etl]}}
query:
  totals: {aggregate: {from: a, window: 1s, group_by: key, compute: {n: count(*), revenue: sum(price * qty)}}}
  pushed: {filter: {from: c, where: n >= 0}}
outputs: [totals, pushed]
fragments:
  all: {operators: [totals], key: key, partitions: 2, replicas: 2}
  more: {operators: [pushed], replicas: 2}
nodes: [n1, n2]
defaults: {x: 4s}
timing: {tick: 20ms, heartbeat: 400ms, connect: 3s}  # Spark starts beside it, perhaps on two cores that others use, too
limits: {tail: off}
clients:
  board: {reads: [totals, pushed]}
  spark: {reads: [totals], external: true}
  watcher: {reads: [totals], external: true}
"""
#: A test that waits longer for something has failed.
PATIENCE_S = 240


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cluster that runs until the tests of this file are through."""
    folder = tmp_path_factory.mktemp("live")
    (folder / "live.yaml").write_text(CONFIG)
    path = folder / "run"
    command = [sys.executable, "-m", "replicas.cli", "run", folder / "live.yaml", "--run-dir", path, "--no-view"]
    with (folder / "said").open("wb") as said:
        running = subprocess.Popen(command, stdout=said, stderr=said)
    try:
        until(lambda: "stable" in (folder / "said").read_text(), "results")
        yield path
    finally:
        running.terminate()
        running.wait(PATIENCE_S)


@pytest.fixture(autouse=True)
def _no_query_is_left(spark: SparkSession) -> Iterator[None]:
    """One of a test that failed would keep its client's name."""
    yield
    for query in spark.streams.active:
        query.stop()


def until(true: Callable[[], Any], what: str, query: StreamingQuery | None = None) -> None:
    """Waits for what a query, if any, brings about."""
    assert met(true, PATIENCE_S, query), f"no {what} within {PATIENCE_S} s"


def met(true: Callable[[], Any], seconds: float, query: StreamingQuery | None = None) -> bool:
    """Whether something holds before the time is up."""
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            return False
        if query is not None and (error := query.exception()) is not None:
            raise error
        time.sleep(0.2)
    return True


def inject(run: Path, *words: str) -> None:
    subprocess.run([sys.executable, "-m", "replicas.cli", "inject", run, *words], check=True, capture_output=True)


def recorded(run: Path, output: str = "totals") -> dict[tuple[int, int], tuple[Any, ...]]:
    """What the client ``board`` has recorded of an output so far: (partition, id) -> the tuple."""
    plan, stream = load_target(run).plan, StreamId(output)
    schemas = {Channel(stream, p): plan.query.schema_of(stream) for p in range(plan.partitions_of(stream))}
    found = recorded_stable(DiskStorage(run), client_folder("board"), schemas)
    return {(c.partition, i): row for c, (ids, rows) in found.items() for i, row in zip(ids.tolist(), rows.to_tuples())}


class Sink:
    """What a query has written: batches by number, so that one that comes again takes the place of the first."""

    def __init__(self) -> None:
        self.batches: dict[int, list[Any]] = {}

    def __call__(self, frame: DataFrame, number: int) -> None:
        order = [c for c in ("_partition", "_sequence", "_row", "_id") if c in frame.columns]
        self.batches[number] = frame.orderBy(*order).collect()

    @property
    def rows(self) -> list[Any]:
        return [row for number in sorted(self.batches) for row in self.batches[number]]

    def has(self, rows: int) -> bool:
        return len(self.rows) >= rows


def stream(spark: SparkSession, run: Path, **options: str) -> DataFrame:
    options = {"cluster": str(run), "output": "totals", "client": "spark", **options}
    return spark.readStream.format("spe").options(**options).load()


def start(frame: DataFrame, sink: Sink, checkpoint: Path, **trigger: Any) -> StreamingQuery:
    writer = frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(checkpoint))
    return running(writer.trigger(**trigger) if trigger else writer)


def running(writer: DataStreamWriter) -> StreamingQuery:
    """Spark gives its Python processes ten seconds to start, whatever else the machine does; so it begins again."""
    query = writer.start()
    until(lambda: not query.isActive or not query.status["message"].startswith("Initializing"), "start")
    return running(writer) if "failed to connect back" in str(query.exception()) else query


def test_each_stable_tuple_is_read_once_over_restarts(spark: SparkSession, run: Path, tmp_path: Path) -> None:
    sink, frame = Sink(), stream(spark, run, rows="500")
    query = start(frame, sink, tmp_path / "ck")
    until(lambda: len(sink.batches) >= 2, "micro-batch", query)
    inject(run, "kill", "n1", "--for", "3s")
    before = len(sink.rows)
    until(lambda: len(sink.rows) > before + 150, "result after a kill", query)
    (progress,) = query.lastProgress["sources"]
    query.stop()
    assert max(map(len, sink.batches.values())) <= 500
    latest = json.loads(json.dumps(progress["latestOffset"]))
    latest = json.loads(latest) if isinstance(latest, str) else latest
    assert set(latest) == {"ids", "backlog", "states"}
    assert latest["states"].keys() == {"0", "1"}

    inject(run, "kill", "n2", "--for", "1s")
    query = start(frame, sink, tmp_path / "ck", availableNow=True)  # takes all that is there, and ends
    assert query.awaitTermination(PATIENCE_S)
    board = {}
    last = {p: max(r["_id"] for r in sink.rows if r["_partition"] == p) for p in (0, 1)}

    def all_recorded() -> bool:
        board.update(recorded(run))
        return all((p, i) in board for p, i in last.items())

    until(all_recorded, "recording that reaches as far", query)
    ids = sorted((r["_partition"], r["_id"]) for r in sink.rows)
    assert ids == [(p, i) for p in (0, 1) for i in range(1, last[p] + 1)]
    assert all(
        (r["key"], r["n"], r["revenue"]) == (b := board[r["_partition"], r["_id"]])[0:1] + b[-2:] for r in sink.rows
    )


def test_all_changes_add_up_to_stable_stream(spark: SparkSession, run: Path, tmp_path: Path) -> None:
    """A source is cut off while the query runs, so that tentative tuples come; the query is ended with some of them in
    its sink, and started again."""
    sink, frame = Sink(), stream(spark, run, client="watcher", mode="changes", begin="first", rows="5000")
    query = start(frame, sink, tmp_path / "ck")
    until(lambda: len(sink.rows) > 100, "change", query)
    for _ in range(10):  # only the window that is open then can be tentative: there may be hardly a row in it
        inject(run, "cut", "source:a", "all", "--for", "60s")
        if met(lambda: sum(r["_kind"] == "tentative" for r in sink.rows) > 20, 20, query):
            break
        inject(run, "heal")
        until(partial(sink.has, len(sink.rows) + 50), "change", query)
    else:
        pytest.fail("no tentative tuples")
    until(
        lambda: (query.lastProgress["sources"][0]["latestOffset"] or "").count("tentative") > 0, "report of them", query
    )
    query.stop()
    inject(run, "heal")
    query = start(frame, sink, tmp_path / "ck")
    reached = max(r["_id"] or 0 for r in sink.rows if r["_kind"] == "stable")
    until(lambda: max(r["_id"] or 0 for r in sink.rows if r["_kind"] == "stable") > reached + 50, "stable tuple", query)
    query.stop()

    held: dict[int, list[Any]] = {0: [], 1: []}
    places: dict[int, tuple[int, int]] = {0: (-1, 0), 1: (-1, 0)}
    for row in sink.rows:
        p = row["_partition"]
        assert (row["_sequence"], row["_row"]) > places[p]
        places[p] = row["_sequence"], row["_row"]
        if row["_kind"] == "undo":
            held[p] = [r for r in held[p] if r["_id"] <= row["_id"]]
        elif row["_kind"] in ("stable", "tentative"):
            assert row["_kind"] == "tentative" or all(r["_kind"] == "stable" for r in held[p])
            held[p].append(row)
    stable = {p: [r["_id"] for r in rows if r["_kind"] == "stable"] for p, rows in held.items()}
    assert all(ids == list(range(1, len(ids) + 1)) and ids for ids in stable.values())
    board = recorded(run)
    assert all(board[p, r["_id"]][-2:] == (r["n"], r["revenue"]) for p, rows in held.items() for r in rows
               if r["_kind"] == "stable" and (p, r["_id"]) in board)  # fmt: skip


def test_each_micro_batch_is_pushed_once_over_restarts(spark: SparkSession, run: Path, tmp_path: Path) -> None:
    """Files of rows, each a micro-batch, in two tasks.  The source is killed while the query runs; the query is
    stopped, and its last batch is taken for unfinished when it begins again."""
    rows, folder = 400, tmp_path / "in"
    folder.mkdir()

    def add(first: int) -> None:
        """Files appear as a whole."""
        now_us = time.time_ns() // 1000
        lines = [
            json.dumps({"ts": now_us + 1000 * (n - first), "n": n, "word": None if n % 5 == 0 else f"wörd {n % 3}"})
            for n in range(first, first + rows)
        ]
        aside = tmp_path / f"{first}.new"
        aside.write_text("\n".join(reversed(lines)))
        aside.rename(folder / f"{first:06}.json")

    def query() -> StreamingQuery:
        read = spark.readStream.schema("ts long, n int, word string").option("maxFilesPerTrigger", 1).json(str(folder))
        frame = read.selectExpr("timestamp_micros(ts) ts", "n", "word").repartition(2)
        options = {"cluster": str(run), "source": "c", "writer": "etl", "checkpointLocation": str(tmp_path / "ck")}
        return running(frame.writeStream.format("spe").options(**options))

    def pushed() -> list[int]:
        return sorted(row[1] for row in recorded(run, "pushed").values())

    add(0)
    writing = query()
    until(lambda: len(pushed()) >= rows, "pushed row", writing)
    inject(run, "kill", "source:c", "--for", "2s")
    for first in range(rows, 4 * rows, rows):
        add(first)
    until(lambda: len(pushed()) >= 4 * rows, "row that was pushed over a restart of the source", writing)
    writing.stop()
    commits = sorted((tmp_path / "ck" / "commits").glob("[0-9]*"), key=lambda p: int(p.name))
    assert len(commits) >= 4
    for name in (commits[-1].name, f".{commits[-1].name}.crc"):
        commits[-1].with_name(name).unlink()
    writing = query()
    add(4 * rows)
    until(lambda: len(pushed()) >= 5 * rows, "row of the last batch", writing)
    writing.stop()
    assert pushed() == list(range(5 * rows))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"output": "total"}, "no output 'total'.*did you mean 'totals'"),
        ({"client": "sparks"}, "no client 'sparks'"),
        ({"token": "hunter2"}, "Spark shows options on its pages"),
        ({"mode": "all"}, "option mode: expected"),
    ],
)
def test_wrong_option_is_reported(spark: SparkSession, run: Path, options: dict[str, str], said: str) -> None:
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException, match=said):
        stream(spark, run, **options)


def test_rows_acknowledged_by_all_clients_are_deleted(spark: SparkSession, run: Path, tmp_path: Path) -> None:
    """A replica that restarts has to hear it again, and only a query that runs repeats it (A2).  A table takes nobody's
    name."""
    queries = [
        start(stream(spark, run, client=client, begin="oldest"), Sink(), tmp_path / client)
        for client in ("spark", "watcher")
    ]
    read = spark.read.format("spe").options(cluster=str(run), output="totals", client="spark")

    def gone() -> bool:
        said = ""
        try:
            read.load().count()
        except Exception as error:
            said = str(error)
        # the second where it goes while it is read
        assert not said or re.search(r"before: the nodes begin at id|of this name has acknowledged", said)
        return bool(said)

    for query in queries:
        until(gone, "truncation", query)
    for query in queries:  # they would go on to acknowledge what the table is about to read
        query.stop()
    rows = read.option("begin", "oldest").load().collect()
    kept = {p: sorted(r["_id"] for r in rows if r["_partition"] == p) for p in (0, 1)}
    assert all(ids == list(range(ids[0], ids[-1] + 1)) for ids in kept.values())
    assert max(ids[0] for ids in kept.values()) > 1


def test_second_query_of_a_client_is_refused(spark: SparkSession, run: Path, tmp_path: Path) -> None:
    from pyspark.errors import PySparkException

    sink = Sink()
    first = start(stream(spark, run, begin="oldest"), sink, tmp_path / "ck")
    until(lambda: sink.batches, "micro-batch", first)
    second = start(stream(spark, run, begin="oldest"), Sink(), tmp_path / "other")
    with pytest.raises(PySparkException, match="client:spark is in use"):
        second.awaitTermination(PATIENCE_S)
    before = len(sink.batches)
    until(lambda: len(sink.batches) > before + 1, "micro-batch of the first query", first)
    first.stop()


def test_a_checkpoint_of_something_else_is_refused(spark: SparkSession, run: Path, tmp_path: Path) -> None:
    """Also one of a first batch that is not finished, when what its query would begin with anew is gone."""
    from pyspark.errors import PySparkException

    def fails(frame: DataFrame, number: int) -> None:
        raise RuntimeError("the sink is full")

    frame = stream(spark, run, client="watcher", begin="now")
    query = running(frame.writeStream.foreachBatch(fails).option("checkpointLocation", str(tmp_path / "ck")))
    with pytest.raises(PySparkException, match="the sink is full"):
        query.awaitTermination(PATIENCE_S)
    query = start(stream(spark, run, client="watcher", mode="changes"), Sink(), tmp_path / "ck")
    with pytest.raises(PySparkException, match="the checkpoint is of mode 'stable', and 'changes' is to be read"):
        query.awaitTermination(PATIENCE_S)
