"""Runs on another file system: what is fetched of them, and the errors for missing or damaged files."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyarrow.parquet import read_table
from pyspark.sql import types as T

from consistency.proof.recorded.evidence import evidence
from consistency.proof.recorded.run import Run
from consistency.proof.storage.folder import is_remote, local_path
from consistency.proof.storage.hadoop import HadoopFolder
from consistency.proof.storage.remote import keeper, opened
from consistency.proof.storage.tables import MadeByTasks
from replicas.cli.report import report
from spe.errors import SpeError
from spe.log.announced_settings import RecordedAnnouncement
from spe.log.issued_directories import DATABASE_VERSION, ISSUED, MOVES
from spe.log.issued_directories import PATH as DATABASE
from spe.log.provenance import PROVENANCE, encode_provenance
from spe.stream.batch import Batch, Boundary, Element, Rows
from spe.stream.change import Change
from spe.stream.ids import Channel
from spe.stream.names import Kind, StreamId
from spe.stream.schema import Schema
from spe.stream.times import END_OF_TIME
from spe.wire.messages.feeds import Announcement
from tests.support.runs import make_run, mounted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

A = StreamId("a")
SCHEMA = Schema.of(ts="timestamp", n="int64")
CONFIG: dict[str, Any] = {
    "bucket": "10us",
    "sources": {"a": {"schema": {one.name: str(one.type) for one in SCHEMA}, "time": "ts",
                      "from": {"jsonl": "none.jsonl"}, "replay": {"max": True}}},
    "query": {"out": {"filter": {"from": "a", "where": "n >= 0"}}},
    "outputs": ["out"],
}  # fmt: skip

SAID = Announcement("n1", "out", 1, 2_000_000, 2_000_000, 2_000_000, 0.9, "process", "process", "checkpoint", 0)
MOVE = {"number": 1, "partition": ["out", 0], "source": "n1", "target": "n2", "reason": "x", "began_us": {},
        "predicted_us": None, "why": ""}  # fmt: skip


def batch(kind: Kind, first: int, count: int) -> Batch:
    tuples = [(n * 10, n) for n in range(first, first + count)]
    return Batch(kind, first - 1, first + count - 1, None, Rows.from_tuples(SCHEMA, [t[0] for t in tuples], tuples))


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A folder with a run of several segments."""
    sent: list[Element] = [batch(Kind.STABLE, n, 2) for n in range(1, 200, 2)]
    end = Boundary(Kind.STABLE, END_OF_TIME, 200)
    received = {"client": [Change(Channel(StreamId("out"), 0), end, 1000)]}
    make_run(
        tmp_path / "runs" / "mine", CONFIG, {A: [*sent, end]}, received, segment_bytes=2000,
        announced=[RecordedAnnouncement(2_500_000, SAID)],
    )  # fmt: skip
    return tmp_path / "runs"


@pytest.fixture
def of_tests(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("consistency.proof.session.session.session", lambda *args, **more: spark)
    monkeypatch.setattr(spark, "stop", lambda: None)


@pytest.mark.usefixtures("of_tests")
def test_missing_and_damaged_files_are_named_by_their_uri(spark: SparkSession, runs: Path) -> None:
    uri = mounted(spark, runs, "spoiled")
    with pytest.raises(SpeError, match=rf"^{uri}/yours: there is no such directory"):
        report([f"{uri}/yours"], master=None, conf={}, out=None)
    with pytest.raises(SpeError, match="No FileSystem for scheme"):
        report(["nosuch://host/runs/mine"], master=None, conf={}, out=None)
    segment = sorted((runs / "mine" / "sources" / "a").glob("*.seg"))[0]
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 1
    segment.write_bytes(data)
    with pytest.raises(SpeError, match=rf"{segment.name} at offset \d+: the checksum does not match"):
        report([f"{uri}/mine"], master=None, conf={}, out=None)
    assert not list((runs / "mine").glob("report/report.*"))


def test_only_the_last_segment_of_each_source_is_fetched(spark: SparkSession, runs: Path) -> None:
    with opened(spark, mounted(spark, runs, "fetched") + "/mine") as run:
        assert len(list((runs / "mine" / "sources" / "a").glob("*.seg"))) > 2
        here, there = (sorted((p / "sources" / "a").glob("*.seg")) for p in (run.path, runs / "mine"))
        assert [(p.name, p.stat().st_size) for p in here] == [(p.name, p.stat().st_size) for p in there]
        assert [a.read_bytes() == b.read_bytes() for a, b in zip(here, there)] == [False] * (len(here) - 1) + [True]
        folder = HadoopFolder(spark, run.origin)
        assert {name for name, _ in folder.files()} > {PurePosixPath("cluster.json"), PurePosixPath("config.yaml")}


def test_remote_promises_and_changes_are_fetched(spark: SparkSession, runs: Path) -> None:
    """From a directory whose name has a space, too."""
    path = (runs / "mine").rename(runs / "my run")
    here = Run.open(path)
    (path / DATABASE).parent.mkdir()
    with closing(sqlite3.connect(path / DATABASE)) as database:
        database.executescript(f"{ISSUED}{MOVES}PRAGMA user_version = {DATABASE_VERSION};")
        database.execute("INSERT INTO issued VALUES (?, 1, 2, 3, 'x')", (here.plan.fingerprint,))
        database.execute("INSERT INTO moves VALUES (?, 1, ?)", (here.plan.fingerprint, json.dumps(MOVE)))
        database.commit()
    (path / "clients" / "client" / PROVENANCE).write_bytes(encode_provenance({}))
    with opened(spark, mounted(spark, runs, "promised") + "/my run") as run:
        assert run.announced("client") == here.announced("client") == [RecordedAnnouncement(2_500_000, SAID)]
        assert run.issued() == here.issued() != []
        assert run.moves() == here.moves() != []
        assert evidence(run, spark).files == evidence(here).files


def test_a_file_uri_is_a_path(spark: SparkSession, runs: Path) -> None:
    assert local_path("file:///a%20b/c") == local_path("file:/a%20b/c") == Path("/a b/c")
    assert [is_remote(p) for p in ("/a", "a/b", "file:///a", "hdfs://h/a", "s3a://b/a")] == [False] * 3 + [True] * 2
    with opened(spark, (runs / "mine").as_uri()) as run:
        assert (run.path, run.origin) == (runs / "mine", "")
    with pytest.raises(SpeError, match="no such directory"), opened(spark, (runs / "none").as_uri()):
        pass


def test_table_has_times_of_any_year_for_every_reader(spark: SparkSession, tmp_path: Path) -> None:
    """By default Spark writes 96 bits, which others take for nanoseconds; those end in 2262."""
    late_us = int(datetime(9_999, 1, 1, tzinfo=UTC).timestamp()) * 1_000_000
    kept = keeper(spark, str(tmp_path))("times", spark.sql(f"SELECT timestamp_micros({late_us}) AS at"))
    assert [row[0] for row in kept.selectExpr("unix_micros(at)").collect()] == [late_us]
    (at,) = read_table(tmp_path / "times.parquet")["at"].cast("int64").to_pylist()
    assert at == late_us


def test_data_made_by_tasks_is_written_and_read_back(spark: SparkSession, tmp_path: Path) -> None:
    def double(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.RecordBatch.from_pydict({"twice": [2 * n for n in batch.column(0).to_pylist()]})

    keep = keeper(spark, (tmp_path / "a b[1]").as_uri())
    made = T.StructType([T.StructField("twice", T.LongType())])
    for frame in (spark.range(9, numPartitions=3), spark.range(4, numPartitions=2)):  # over what was there
        found = keep("some", MadeByTasks(frame, double, made))
        assert sorted(row["twice"] for row in found.collect()) == [2 * n for n in range(frame.count())]
    assert keep("none", MadeByTasks(spark.range(0), double, made)).count() == 0
    assert keep("rows", spark.range(3)).count() == 3
    (tmp_path / "file").touch()
    with pytest.raises(SpeError, match=r"file/some\.parquet cannot be made: Not a directory"):
        keeper(spark, str(tmp_path / "file"))("some", MadeByTasks(spark.range(1), double, made))
    assert read_table(tmp_path / "a b[1]" / "some.parquet").num_rows == 4
