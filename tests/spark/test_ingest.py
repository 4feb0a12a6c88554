"""Raw files and made workloads become logs that every reader takes for those of a source."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fastavro
import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest
import trio
import yaml

from consistency.proof.ingest import Ingested, ingest
from consistency.proof.log_writer import RECORD_ROWS, write_log
from consistency.proof.session.errors import explained
from consistency.proof.workloads import PAGES, SEGMENTS, WORKLOADS, workload
from replicas.cli.app import execute
from replicas.cli.ingest import open_files
from spe.config import load_plan_data
from spe.errors import SpeError
from spe.log.segmented import SegmentedLog
from spe.log.source_log import read_source_log, source_folder
from spe.plan.plan import Source
from spe.runtime.storage import DiskStorage
from spe.stream.batch import Batch, Boundary
from spe.stream.names import StreamId
from spe.stream.times import END_OF_TIME

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

A = StreamId("a")


def source(path: str, kind: str, **more: Any) -> Source:
    data = {
        "sources": {
            "a": {
                "schema": {"ts": "timestamp", "n": "int64!", "x": "float64", "word": "string"},
                "time": "ts",
                "boundary": "1s",
                "from": {kind: path, **more},
                "replay": {"max": True},
            }
        },
        "query": {"out": {"filter": {"from": "a", "where": "n > 0"}}},
        "outputs": ["out"],
    }
    return load_plan_data(data).sources[A]


def logged(root: Path, one: Source) -> list[tuple[Any, ...]]:
    """(id, time, attributes …) of a log, whose promises are checked on the way."""
    found: list[tuple[Any, ...]] = []
    bound = -END_OF_TIME
    for element in read_source_log(DiskStorage(root), source_folder(A), one.schema):
        if isinstance(element, Batch):
            assert element.rows.time.min() >= bound
            found += [(i, *t) for i, t in zip(element.row_ids().tolist(), element.rows.to_tuples())]
        elif isinstance(element, Boundary):
            bound = element.time
    assert bound == END_OF_TIME
    return found


CSV = """word,ts,n,x,unused
late,2024-01-01 00:00:05,5,0.5,1
first,2024-01-01 00:00:01,1,,1
,2024-01-01 00:00:03,3,NaN,1
bad,2024-01-01 00:00:02,two,1.0,1
none,,2,1.0,1
null,2024-01-01 00:00:02,,1.0,1
"""
FIRST_US = 1_704_067_200_000_000


def test_a_csv_file_becomes_a_log_in_order_of_time(spark: SparkSession, tmp_path: Path) -> None:
    file = tmp_path / "raw.csv"
    file.write_text(CSV)
    one = source(str(file), "csv")
    assert ingest(spark, one, open_files(one), tmp_path) == Ingested(tuples=3, malformed=3)
    rows = logged(tmp_path, one)
    assert [(r[0], r[1] - FIRST_US, r[2], r[4]) for r in rows] == [
        (1, 1_000_000, 1, "first"),
        (2, 3_000_000, 3, None),
        (3, 5_000_000, 5, "late"),
    ]
    assert rows[0][3] is None
    assert np.isnan(rows[1][3])
    with pytest.raises(SpeError, match="already"):
        ingest(spark, one, open_files(one), tmp_path)


#: By format: the options, and a file of three good rows and malformed ones, in which the options matter.
OPTIONS: dict[str, tuple[dict[str, Any], bytes]] = {
    "csv": (
        {"columns": {"ts": 3, "n": 0, "x": 1, "word": 2}, "delimiter": ";", "quote": "'", "header": False,
         "null": ["-", "NULL"], "timestamps": "ms"},
        b"1;-;'it''s;\n2';2000\n2;1.5;NULL;1000\n-;1;a;1000\n 3 ;1e3;\"b;3000\n4;1;a\n5;x;a;1000\n",
    ),
    "jsonl": (
        {"columns": {"ts": "at"}, "timestamps": "s"},
        b'{"at": 2, "n": 2, "x": 1.5}\n{"at": "1970-01-01T00:00:01Z", "n": 1, "x": 0}\n{"at": 1.5, "n": 1}\n{"n": 1}\n',
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet", "arrow", "avro"])
def test_options_mean_the_same_as_for_a_source(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    """Three rows in the order of their times, as the source's own reader gives them."""
    file, options = tmp_path / f"raw.{kind}", {"columns": {"ts": "at"}, "timestamps": "ns", "sort": "n"}
    if kind in ("parquet", "arrow", "avro"):
        columns = {
            "at": [2_000, 1_000, None, 3_999],
            "n": [1, 2, 3, 4],
            "x": [0.5, None, 1.0, 2.0],
            "word": list("abcd"),
        }
        if kind == "parquet":
            pq.write_table(pa.table(columns), file, row_group_size=2)
        else:
            del options["sort"]
        if kind == "arrow":
            with pa.ipc.new_file(file, pa.table(columns).schema) as writer:
                writer.write_table(pa.table(columns), max_chunksize=2)
        if kind == "avro":
            types = {"at": ["null", "long"], "n": "long", "x": ["null", "double"], "word": "string"}
            fields = [{"name": name, "type": type_} for name, type_ in types.items()]
            with file.open("wb") as out:
                fastavro.writer(
                    out,
                    {"type": "record", "name": "r", "fields": fields},
                    pa.table(columns).to_pylist(),
                    sync_interval=1,
                )
    else:
        options, data = OPTIONS[kind]
        file.write_bytes(data)
    one = source(str(file), kind, **options)
    expected = []
    for chunk in open_files(one).chunks(0):
        expected += list(zip(*[c.to_list() for c in chunk.columns]))
    found = ingest(spark, one, open_files(one), tmp_path)
    assert (found.tuples, found.malformed) == (3, (3 if kind == "csv" else 1))
    assert [r[1:] for r in logged(tmp_path, one)] == sorted(expected, key=lambda row: row[0])


def test_malformed_row_stops_ingest_as_it_stops_a_source(spark: SparkSession, tmp_path: Path) -> None:
    file = tmp_path / "raw.csv"
    file.write_text("ts,n\n")
    with pytest.raises(SpeError, match="no column word, x; the header has: ts, n"):
        ingest(spark, source(str(file), "csv"), open_files(source(str(file), "csv")), tmp_path)
    file.write_text(CSV)
    one = replace(source(str(file), "csv"), on_malformed="stop")
    with pytest.raises(SpeError, match="source a: n: expected int64, got 'two': bad,2024"), explained():
        ingest(spark, one, open_files(one), tmp_path)


def test_a_written_log_has_the_same_bytes_however_it_is_divided(spark: SparkSession, tmp_path: Path) -> None:
    one = workload_source()
    frame = workload(spark, "requests", 3 * RECORD_ROWS + 17, seed=7)
    for name, parts in (("one", 1), ("many", 5)):
        assert write_log(frame.repartition(parts), one, tmp_path / name) == 3 * RECORD_ROWS + 17
    files = [sorted(p.name for p in (tmp_path / n / source_folder(A)).glob("*.seg")) for n in ("one", "many")]
    assert files[0] == files[1]
    assert len(files[0]) == 2
    data = [[(tmp_path / n / source_folder(A) / f).read_bytes() for f in files[0]] for n in ("one", "many")]
    assert data[0] == data[1]

    async def opened() -> int:
        log = await SegmentedLog.open(DiskStorage(tmp_path / "one"), source_folder(A))
        log.close()
        return log.synced_sequence

    assert trio.run(opened) == 5  # four of tuples, and the end


def workload_source() -> Source:
    data = {
        "sources": {
            "a": {
                "schema": {"ts": "timestamp!", "page": "int64!", "bytes": "int64!", "status": "int64!"},
                "time": "ts",
                "from": {"jsonl": "none.jsonl"},
                "replay": {"max": True},
            }
        },
        "query": {"out": {"filter": {"from": "a", "where": "page > 0"}}},
        "outputs": ["out"],
    }
    return load_plan_data(data).sources[A]


def test_workloads_are_skewed_and_the_same_from_a_seed(spark: SparkSession) -> None:
    rows = workload(spark, "requests", 20_000, seed=3).orderBy("__time", "page").collect()
    assert len(rows) == 20_000
    pages = Counter(r.page for r in rows)
    assert max(pages) < PAGES
    top = [page for page, _ in pages.most_common(5)]
    assert top[0] == 0
    assert set(top) <= set(range(8))
    assert 1.6 < pages[0] / pages[1] < 2.2  # 2^0.9
    assert rows == workload(spark, "requests", 20_000, seed=3).repartition(3).orderBy("__time", "page").collect()
    assert rows != workload(spark, "requests", 20_000, seed=4).orderBy("__time", "page").collect()


def test_users_are_slow_where_an_accident_is(spark: SparkSession) -> None:
    rows = workload(spark, "locations", 40_000, seed=1).collect()
    assert max(r["__time"] for r in rows) < 2_000_000  # 20,000 a second
    segments = Counter(r.segment for r in rows)
    assert max(segments) < SEGMENTS
    assert segments[0] > 3 * segments[100]
    slow = {r.segment for r in rows if r.speed <= 10}
    fast = {r.segment for r in rows if r.speed >= 50}
    assert slow
    assert fast
    assert not slow & fast


def test_an_unknown_workload_is_named(spark: SparkSession) -> None:
    with pytest.raises(SpeError, match=r"no workload 'request' \(did you mean 'requests'"):
        workload(spark, "request", 1, seed=1)


@pytest.fixture
def of_tests(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command takes the session of the tests, and leaves it running."""
    monkeypatch.setattr("consistency.proof.session.session.session", lambda *args, **more: spark)
    monkeypatch.setattr(spark, "stop", lambda: None)


def made_config(path: Path, workload_: str) -> Path:
    """A configuration whose source ``a`` has the schema of a workload."""
    schema = {one.name: f"{one.type}!" for one in WORKLOADS[workload_]}
    data = {
        "sources": {
            "a": {"schema": schema, "time": "ts", "from": {"jsonl": "none.jsonl"}, "replay": {"max": True}},
            "b": {"from": {"generator": {"name": "orders", "rate": 1, "count": 1}}},
        },
        "query": {"out": {"filter": {"from": "a", "where": "ts is not null"}}},
        "outputs": ["out"],
    }
    path.write_text(yaml.safe_dump(data, sort_keys=False))
    return path


@pytest.mark.usefixtures("of_tests")
@pytest.mark.parametrize("name", ["requests", "locations"])
def test_the_command_makes_a_workload(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``spe ingest CONFIG OUT --make NAME``: a directory that is read as that of a run, whose log holds the rows."""
    config = made_config(tmp_path / "config.yaml", name)
    out = tmp_path / "out"
    command = ["ingest", str(config), str(out), "--source", "a", "--make", name, "--rows", "500", "--seed", "9"]
    assert execute(command) == 0
    assert capsys.readouterr().out == "a: 500 tuples\n"
    plan = load_plan_data(yaml.safe_load((out / "config.yaml").read_text()))
    rows = logged(out, plan.sources[A])
    assert [r[0] for r in rows] == list(range(1, 501))
    times = [r[1] for r in rows]
    assert times == sorted(times)
    assert json.loads((out / "cluster.json").read_text())["fingerprint"] == plan.fingerprint
    assert execute(command) == 2  # what is there stays
    assert "is there already" in capsys.readouterr().err


@pytest.mark.usefixtures("of_tests")
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--make", "requests"], "--make fills one source"),
        (["--make", "request", "--source", "a"], "did you mean 'requests'"),
        (["--make", "locations", "--source", "a"], "the workload locations is (ts timestamp"),
        (["--source", "c"], "no source 'c'"),
        (["--source", "a"], "none.jsonl: there is no such file"),
        (["--make", "requests", "--source", "a", "--conf", "memory"], "expected NAME=VALUE"),
    ],
)
def test_ingest_errors_say_what_was_expected(
    options: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = made_config(tmp_path / "config.yaml", "requests")
    assert execute(["ingest", str(config), str(tmp_path / "out"), *options]) == 2
    assert said in capsys.readouterr().err
