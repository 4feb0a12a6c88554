"""``format("spe")``: logs and recordings as tables, whole and as streams."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from consistency.proof.recorded.recording import changes, source_log
from consistency.proof.recorded.records import WantedRecords
from consistency.proof.recorded.run import Run
from spe.stream.batch import Batch, Boundary, Element, RecDone, Rows, Undo
from spe.stream.change import Change
from spe.stream.ids import Channel
from spe.stream.names import Kind, NodeState, StreamId
from spe.stream.schema import Schema
from spe.stream.times import END_OF_TIME
from tests.support.runs import make_run

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

A, OUT = StreamId("a"), StreamId("out")
SCHEMA = Schema.of(ts="timestamp", n="int64", f="float64", b="bool", word="string")
CONFIG = {
    "bucket": "10us",
    "sources": {"a": {"schema": {a.name: str(a.type) for a in SCHEMA}, "time": "ts", "from": {"jsonl": "none.jsonl"},
                      "replay": {"max": True}}},
    "query": {"out": {"filter": {"from": "a", "where": "n >= 0"}}},
    "outputs": ["out"],
}  # fmt: skip


def tuples(first: int, count: int) -> list[tuple[Any, ...]]:
    return [
        (n * 10, n, None if n % 3 == 0 else n / 2, n % 2 == 0, None if n % 5 == 0 else f"wörd {n % 7}")
        for n in range(first, first + count)
    ]


def batch(kind: Kind, first: int, count: int) -> Batch:
    rows = Rows.from_tuples(SCHEMA, [n * 10 for n in range(first, first + count)], tuples(first, count))
    return Batch(kind, first - 1, first + count - 1, None, rows)


def logged(count: int) -> Iterator[Element]:
    """Two tuples and a boundary at a time."""
    for n in range(1, count, 2):
        yield batch(Kind.STABLE, n, 2)
        yield Boundary(Kind.STABLE, (n + 2) * 10, n + 1)
    yield Boundary(Kind.STABLE, END_OF_TIME, count)


RECEIVED: list[Element] = [
    batch(Kind.STABLE, 1, 2),
    Boundary(Kind.STABLE, 30, 2),
    batch(Kind.TENTATIVE, 3, 1),
    Boundary(Kind.TENTATIVE, 40, 0),
    Undo(2),
    batch(Kind.STABLE, 3, 2),
    RecDone(NodeState.STABLE),
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    path = tmp_path_factory.mktemp("runs") / "run"
    received = {"client": [Change(Channel(OUT, 0), e, 1000 + i) for i, e in enumerate(RECEIVED)]}
    make_run(path, CONFIG, {A: list(logged(200))}, received, segment_bytes=2000)
    return Run.open(path)


def test_a_source_log_is_all_its_tuples(spark: SparkSession, run: Run) -> None:
    assert len(run.source_segments(A)) > 2
    found = source_log(spark, run, A).orderBy("_id").toArrow()
    expected = tuples(1, 200)
    assert found["_id"].to_pylist() == list(range(1, 201))
    assert found["_time_us"].to_pylist() == [t[0] for t in expected]
    assert list(zip(*[found[c].to_pylist() for c in ("n", "f", "b", "word")])) == [t[1:] for t in expected]
    assert [ts.timestamp() * 1e6 for ts in found["ts"].to_pylist()] == pytest.approx([t[0] for t in expected])


def test_a_recording_is_every_element_in_order(spark: SparkSession, run: Run) -> None:
    rows = changes(spark, run, "client", OUT).orderBy("partition", "sequence", "row").collect()
    assert [(r.sequence, r.row, r.arrived_us - 1000, r.kind, r.id, r.time_us) for r in rows] == [
        (1, 0, 0, "stable", 1, 10),
        (1, 1, 0, "stable", 2, 20),
        (2, 0, 1, "stable_boundary", 2, 30),
        (3, 0, 2, "tentative", 3, 30),
        (4, 0, 3, "tentative_boundary", 0, 40),
        (5, 0, 4, "undo", 2, None),
        (6, 0, 5, "stable", 3, 30),
        (6, 1, 5, "stable", 4, 40),
        (7, 0, 6, "rec_done", None, None),
    ]
    assert [None if r.tuple is None else r.tuple.n for r in rows] == [1, 2, None, 3, None, None, 3, 4, None]


def test_only_segments_of_wanted_records_are_read(spark: SparkSession, tmp_path: Path) -> None:
    received = [Change(Channel(OUT, 0), batch(Kind.STABLE, n, 1), n) for n in range(1, 7)]
    make_run(tmp_path / "run", CONFIG, {A: list(logged(2))}, {"client": received}, segment_bytes=200)
    run = Run.open(tmp_path / "run")
    files = sorted(run.recording_path("client", Channel(OUT, 0)).glob("*.seg"))
    firsts = [int(f.name.split("-")[0]) for f in files]
    assert len(files) > 2
    assert len(files) < len(received)  # there is one with several records
    contents = {f: f.read_bytes() for f in files}
    for number in range(1, 7):
        there = files[bisect(firsts, number) - 1]
        for file, content in contents.items():
            file.write_bytes(content if file == there else b"damaged")
        rows = changes(spark, run, "client", OUT, wanted=WantedRecords({0: frozenset({number})})).collect()
        assert [(r.sequence, r.id) for r in rows] == [(number, number)]
    assert changes(spark, run, "client", OUT, wanted=WantedRecords({})).collect() == []


def test_a_users_job_reads_the_stable_stream(spark: SparkSession, run: Run) -> None:
    found = spark.read.format("spe").option("output", "out").load(str(run.path))
    assert [tuple(r) for r in found.orderBy("_id").select("_partition", "_id", "_time_us", "n").collect()] == [
        (0, n, n * 10, n) for n in range(1, 5)
    ]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "one of the options source and output"),
        ({"source": "b"}, "no source 'b'"),
        ({"output": "out", "client": "x"}, "no client 'x'"),
        ({"output": "out", "mode": "all"}, "no mode 'all'"),
    ],
)
def test_a_users_mistake_is_reported(spark: SparkSession, run: Run, options: dict[str, str], said: str) -> None:
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException, match=said):
        spark.read.format("spe").options(**options).load(str(run.path)).count()


def test_damage_is_named_with_its_place(spark: SparkSession, tmp_path: Path) -> None:
    from pyspark.errors import PySparkException

    make_run(tmp_path / "run", CONFIG, {A: list(logged(40))})
    run = Run.open(tmp_path / "run")
    file = run.source_path(A) / run.source_segments(A)[0].name
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    with pytest.raises(PySparkException, match=r"seg at offset \d+: the checksum does not match; records up to"):
        source_log(spark, run, A).count()


def test_a_stream_continues_where_it_stopped(spark: SparkSession, tmp_path: Path) -> None:
    elements = list(logged(200))
    seen: list[int] = []
    batches: list[int] = []

    def each(frame: DataFrame, _: int) -> None:
        found = sorted(r.n for r in frame.select("n").collect())
        seen.extend(found)
        batches.append(len(found))

    def read(path: Path) -> None:
        stream = spark.readStream.format("spe").option("source", "a").option("rows", "50").load(str(path))
        writer = stream.writeStream.foreachBatch(each).option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(60)

    part, whole = tmp_path / "part", tmp_path / "whole"
    make_run(part, CONFIG, {A: elements[:100]}, segment_bytes=2000)
    make_run(whole, CONFIG, {A: elements}, segment_bytes=2000)
    here = tmp_path / "run"
    here.symlink_to(part)
    read(here)
    assert seen == list(range(1, 101))
    assert max(batches) == 50
    here.unlink()
    here.symlink_to(whole)
    read(here)
    assert seen == list(range(1, 201))


def test_changes_can_be_followed(spark: SparkSession, run: Run, tmp_path: Path) -> None:
    kinds: list[str] = []

    def each(frame: DataFrame, _: int) -> None:
        kinds.extend(r["_kind"] for r in frame.orderBy("_sequence", "_row").collect())

    stream = spark.readStream.format("spe").option("output", "out").option("mode", "changes").load(str(run.path))
    writer = stream.writeStream.foreachBatch(each).option("checkpointLocation", str(tmp_path))
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(60)
    assert kinds[:3] == ["stable", "stable", "stable_boundary"]
    assert len(kinds) == 9
