"""Runs in S3: archived, proved, verified and compared there; and what is said where that cannot be."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException

import spe
from consistency.proof.recorded.evidence import evidence
from consistency.proof.recorded.recording import changes, source_log
from consistency.proof.recorded.run import Run
from consistency.proof.report.model import Report
from consistency.proof.storage.objects import ObjectFolder, ObjectPlace
from consistency.proof.storage.remote import keeper, opened
from consistency.proof.storage.tables import MadeByTasks, freed_at_the_end
from replicas.cli.app import execute
from spe.errors import SpeError
from spe.stream.batch import Batch, Boundary, Element, Rows
from spe.stream.change import Change
from spe.stream.ids import Channel
from spe.stream.names import Kind, StreamId
from spe.stream.schema import Schema
from spe.stream.times import END_OF_TIME
from tests.support.runs import make_run
from tests.support.s3_server import BUCKET, S3WithKeys, s3_with_keys

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "object-storage.md"
SECOND = 1_000_000
OUT = StreamId("out")
SCHEMA = Schema.of(ts="timestamp", n="int64", s="string")
CONFIG: dict[str, Any] = {
    "sources": {"a": {"schema": {one.name: str(one.type) for one in SCHEMA}, "time": "ts",
                      "from": {"jsonl": "none.jsonl"}, "replay": {"max": True}}},
    "query": {"out": {"filter": {"from": "a", "where": "n >= 0"}}},
    "outputs": ["out"],
    "clients": {"board": {"reads": ["out"]}},
}  # fmt: skip
EVENTS = [
    {"t": 0, "event": "begin", "begun_us": 0},
    {"t": 2 * SECOND, "event": "fault_began", "kind": "kill", "target": "n1", "errors": []},
    {"t": 9 * SECOND, "event": "process_ended", "process": "n1", "status": 0},
]
URI = f"s3://{BUCKET}/runs/mine"


@pytest.fixture(scope="module")
def store() -> Iterator[S3WithKeys]:
    with s3_with_keys() as found, pytest.MonkeyPatch.context() as patched:
        for name, value in found.environment.items():
            patched.setenv(name, value)
        yield found


@pytest.fixture
def _spark_has_it(spark: SparkSession, store: S3WithKeys) -> Iterator[None]:
    """The session began before the server, so its Python processes do not inherit our environment."""
    spark.sparkContext.environment.update(store.environment)
    yield
    for name in store.environment:
        del spark.sparkContext.environment[name]


def a_run(path: Path) -> Path:
    """One whose log and recording have several segments each."""
    sent: list[Element] = []
    for first in range(1, 200, 2):
        tuples = [(n * 10, n, f"{n} wörd") for n in (first, first + 1)]
        rows = Rows.from_tuples(SCHEMA, [t[0] for t in tuples], tuples)
        sent.append(Batch(Kind.STABLE, first - 1, first + 1, None, rows))
    sent.append(Boundary(Kind.STABLE, END_OF_TIME, 200))
    channel = Channel(OUT, 0)
    received = {"board": [Change(channel, e, 1000) for e in sent]}
    make_run(path, CONFIG, {StreamId("a"): sent}, received, EVENTS, segment_bytes=5000)
    (path / "logs").mkdir()
    (path / "logs" / "n1.log").write_text("not needed for a proof\n")
    return path


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return a_run(tmp_path_factory.mktemp("here") / "runs" / "mine")


def folder(uri: str = URI) -> ObjectFolder:
    return ObjectFolder(None, ObjectPlace.of(uri))


def names(uri: str = URI) -> set[str]:
    return {str(name) for name, _ in folder(uri).files()}


def breaks_off(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield next(batches)
    raise ValueError("broken off")


@pytest.mark.usefixtures("_spark_has_it")
def test_executors_read_the_same_there_as_on_this_machine(run_dir: Path, spark: SparkSession) -> None:
    uri = f"s3://{BUCKET}/runs/same"
    assert execute(["archive", str(run_dir), uri]) == 0
    here = Run.open(run_dir)
    with opened(spark, uri) as there:
        for read in (lambda run: changes(spark, run, "board", OUT), lambda run: source_log(spark, run, StreamId("a"))):
            assert sorted(read(there).collect(), key=str) == sorted(read(here).collect(), key=str)
        assert evidence(there, spark).files == evidence(here).files
        assert there.summary == here.summary
        with freed_at_the_end():
            keep = keeper(spark, f"{uri}/tables")
            kept = keep("some", spark.range(3).selectExpr("id", "struct(id, timestamp_micros(id) t) s"))
            assert keep("none", kept.where("id > 5")).count() == 0
            assert keep("made", MadeByTasks(kept, lambda batches: batches, kept.schema)).count() == 3
            assert kept.count() == 3
            with pytest.raises(PySparkException, match="broken off"):
                keep("broken", MadeByTasks(kept.coalesce(1), breaks_off, kept.schema))
            assert not [name for name in names(uri) if "broken" in name]
    system = folder().place.system
    assert pq.read_table(f"{BUCKET}/runs/same/tables/some.parquet", filesystem=system).num_rows == 3
    assert pq.read_table(f"{BUCKET}/runs/same/tables/made.parquet", filesystem=system).num_rows == 3
    assert pq.read_table(f"{BUCKET}/runs/same/tables/none.parquet", filesystem=system).num_rows == 0


@pytest.mark.long
@pytest.mark.usefixtures("commands_use_it", "_spark_has_it")
def test_archived_run_is_proved_verified_and_compared_in_place(
    run_dir: Path,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    spark: SparkSession,
) -> None:
    """By the commands of the page."""
    monkeypatch.chdir(run_dir.parents[1])
    (commands,) = re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    archives, proves, verifies, compares = (shlex.split(line)[1:] for line in commands.splitlines())
    assert execute(archives) == 0
    assert "archived" in capsys.readouterr().out
    logged = {f"sources/a/{p.name}" for p in (run_dir / "sources" / "a").glob("*.seg")}
    assert len(logged) > 2
    assert names() > logged | {"cluster.json", "config.yaml", "events.jsonl"}
    assert not any(name.startswith("logs") for name in names())

    assert execute(proves) == execute(["report", str(run_dir)]) == 0
    assert "CONSISTENT" in capsys.readouterr().out
    (tmp_path / "report").mkdir()
    folder().fetch(PurePosixPath("report/report.json"), tmp_path)
    there, here = (Report.model_validate_json((p / "report" / "report.json").read_text()) for p in (tmp_path, run_dir))
    assert [source.compared for source in there.sources] == ["not compared: the run is on another file system"]
    apart: Any = {"folder": True, "timings_s": True, "sources": {"__all__": {"compared"}}}
    assert there.model_dump(exclude=apart) == here.model_dump(exclude=apart)
    assert there.folder == URI
    assert "report/report.html" in names()
    for table, least in (("truth/out", 200), ("board/out/elements", 1)):
        parts = [n for n in names() if n.startswith(f"report/tables/{table}.parquet/")]
        rows = [pq.read_table(f"{BUCKET}/runs/mine/{n}", filesystem=folder().place.system).num_rows for n in parts]
        assert sum(rows) >= least, table

    assert execute(verifies) == 0
    assert "VERIFIED" in capsys.readouterr().out
    assert not [n for n in names(f"s3://{BUCKET}/runs") if n.startswith("mine.verification")]
    assert execute(compares) == 0
    assert "CONSISTENT  out: 200 rows equal" in capsys.readouterr().out

    kept = spark.sparkContext._jsc.getPersistentRDDs().size()  # type: ignore[attr-defined]
    text = spe.prove(spark, URI).model_dump_json()
    assert spark.sparkContext._jsc.getPersistentRDDs().size() == kept  # type: ignore[attr-defined]
    assert not any(os.environ[name] in text for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"))

    segment = sorted(logged)[1]
    data = bytearray((run_dir / segment).read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / "damaged").write_bytes(data)
    folder().put(tmp_path / "damaged", PurePosixPath(segment))
    assert execute(["report", "--verify", f"{URI}/report/report.json"]) == 1
    assert f"{segment} differs" in capsys.readouterr().out
    assert execute(["report", URI]) == 2
    said = capsys.readouterr()
    assert "the checksum does not match" in said.err
    assert "at org.apache" not in said.out + said.err


@pytest.mark.usefixtures("store")
def test_only_finished_run_is_archived_to_unused_place(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = f"s3a://{BUCKET}/runs/other"
    going_on = shutil.copytree(run_dir, tmp_path / "going_on")
    facts = (going_on / "cluster.json").read_text()
    (going_on / "cluster.json").write_text(facts.replace("{", f'{{"pid": {os.getpid()}, ', 1))
    assert execute(["archive", str(going_on), uri]) == 2
    assert "the run goes on" in capsys.readouterr().err
    puts, put = [], ObjectFolder.put

    def breaks(self: ObjectFolder, file: Path, name: PurePosixPath) -> None:
        puts.append(name)
        if len(puts) > 3:
            raise SpeError("the network is gone")
        put(self, file, name)

    with monkeypatch.context() as patched:
        patched.setattr(ObjectFolder, "put", breaks)
        assert execute(["archive", str(run_dir), uri]) == 2
    assert names(uri)
    assert "cluster.json" not in names(uri)
    assert execute(["archive", str(run_dir), uri]) == 0
    assert execute(["archive", str(run_dir), uri]) == 2
    assert f"{uri} has a run already" in capsys.readouterr().err


def test_a_directory_gets_the_same_files(run_dir: Path, tmp_path: Path) -> None:
    assert execute(["archive", str(run_dir), (tmp_path / "there").as_uri()]) == 0
    assert (tmp_path / "there" / "cluster.json").read_bytes() == (run_dir / "cluster.json").read_bytes()
    assert execute(["archive", str(run_dir), str(tmp_path / "there")]) == 2


@pytest.mark.parametrize(
    ("uri", "environment", "said"),
    [
        ("s3://nowhere/runs/mine", {}, "s3://nowhere/runs/mine: there is no such bucket"),
        (f"s3://{BUCKET}/runs/none", {}, f"s3://{BUCKET}/runs/none: there is no such directory"),
        (URI, {"AWS_SECRET_ACCESS_KEY": "wrong"}, f"{URI}: access was denied: expected credentials"),
        (URI, {"AWS_ACCESS_KEY_ID": "nobody"}, f"{URI}: access was denied: expected credentials"),
        (URI, {"AWS_ENDPOINT_URL": "nonsense"}, "expected a URL such as https://host:9000, got 'nonsense'"),
        ("s3://key:secret@bucket/x", {}, "s3://bucket/x was given with credentials"),
        ("s3://bucket/x?access_key=a", {}, "s3://bucket/x was given with credentials or options"),
        ("s3://bucket", {}, "expected s3://BUCKET/KEY, a directory in a bucket"),
    ],
)
@pytest.mark.usefixtures("store", "commands_use_it")
def test_unreadable_run_is_reported(
    uri: str, environment: dict[str, str], said: str, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert execute(["report", uri]) == 2
    found = capsys.readouterr()
    assert said in found.err
    assert "secret@" not in found.err + found.out
    assert "at org.apache" not in found.err + found.out


@pytest.mark.long
@pytest.mark.usefixtures("store", "commands_use_it")
def test_absent_or_silent_service_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{gone.getsockname()[1]}")
    assert execute(["report", URI]) == 2
    assert f"{URI}: the service is not reached (Could not connect to server)" in capsys.readouterr().err
    with socket.create_server(("127.0.0.1", 0)) as mute:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{mute.getsockname()[1]}")
        assert execute(["report", URI]) == 2
    assert f"{URI}: the service is not reached (Operation too slow" in capsys.readouterr().err


@pytest.mark.usefixtures("commands_use_it", "store")
def test_a_table_there_is_refused_by_name(run_dir: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("ts,n,s\n")
    folder(f"s3://{BUCKET}/tables").put(tmp_path / "t.csv", PurePosixPath("t.csv"))
    assert execute(["compare", str(run_dir), f"s3://{BUCKET}/tables"]) == 2
    assert "this Spark has no file system s3://, so it reads runs there, and no tables" in capsys.readouterr().err
