"""Sinks against recordings: right ones are equal in every format and mode; each change of what they hold is named."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import trio

from consistency.sinks.judge import SinkFound, judge_sinks
from replicas.client.recorder import Recorder
from replicas.connectors.server_sink import ServerSink
from replicas.connectors.sink_registry import open_sink
from replicas.source.late_rows import LATE_US
from spe.config import load_data
from spe.connectors.declaration import CORRECTIONS, CURRENT, STABLE
from spe.log.log_start import KeptLog, write_kept
from spe.log.provenance import PROVENANCE, Provenance, encode_provenance
from spe.log.recording import client_folder
from spe.log.rejected_rows import RejectedInput, rejected_batch
from spe.log.source_log import SourceState, encode_source_record
from spe.plan.deploy import with_default_client
from spe.runtime.production import ThreadCompute
from spe.runtime.storage import DiskStorage, in_folder
from spe.stream.batch import Batch, Boundary, Element, RecDone, Rows, Undo
from spe.stream.change import Change
from spe.stream.ids import Channel
from spe.stream.names import Kind, NodeState, StreamId
from spe.stream.schema import Schema
from spe.stream.times import END_OF_TIME
from tests.support.postgres_server import environment, running_server
from tests.support.runs import make_run, write_source_records
from tests.support.source_env import source_env

SCHEMA = Schema.of(ts="timestamp", n="int64", price="float64", name="string", ok="bool")
OUT = Channel(StreamId("out"), 0)
A = StreamId("a")
HOUR = 3_600_000_000
NOT_RECORDED = "not as recorded: "


def batch(kind: Kind, first: int, numbers: Sequence[int]) -> Batch:
    rows = [(n * HOUR + 1, n, n / 3 if n % 4 else float("nan"), f"näme {n}", n % 2 == 0) for n in numbers]
    rows = [(*row[:3], None, row[4]) if row[1] % 5 == 0 else row for row in rows]
    times = [n * HOUR for n in numbers]
    return Batch(kind, first - 1, first - 1 + len(rows), None, Rows.from_tuples(SCHEMA, times, rows))


STORY: list[Element] = [
    batch(Kind.STABLE, 1, [1, 2, 3]),
    batch(Kind.TENTATIVE, 4, [4, 6]),
    Undo(3),
    batch(Kind.STABLE, 4, [4, 5, 6]),
    RecDone(NodeState.STABLE),
    Boundary(Kind.STABLE, END_OF_TIME, 6),
]


def config(*sinks: dict[str, Any], **source: Any) -> dict[str, Any]:
    types = {one.name: str(one.type) for one in SCHEMA}
    a = {"schema": types, "time": "ts", "from": {"jsonl": "in.jsonl"}, "replay": {"max": True}, **source}
    return {
        "sources": {"a": a},
        "query": {"out": {"filter": {"from": "a", "where": "n > 0"}}},
        "clients": {"board": {"reads": ["out"], "sinks": list(sinks)}},
    }


async def fill(spec: dict[str, Any], channel: Channel, schema: Schema, story: Sequence[Element]) -> None:
    """The sink itself writes what its client or source got."""
    sink = open_sink(spec, {channel: schema}, in_folder)
    if isinstance(sink, ServerSink):
        await sink.open(source_env(), {channel: "q"}, "client:board")
    for element in story:
        sink.write(Change(channel, element, 0))
    await sink.commit(ThreadCompute())
    if isinstance(sink, ServerSink):
        await sink.disconnect()
    sink.close()


class Judged:
    """A run with one sink."""

    def __init__(self, path: Path, sink: dict[str, Any], **source: Any) -> None:
        self.run, self.config = path / "run", config(sink, **source)
        make_run(self.run, self.config, {A: []}, {"board": [Change(OUT, e, 0) for e in STORY]})
        self.plan, self.directory = load_data(self.config, folder=self.run)
        self.directory = with_default_client(self.plan, self.directory)
        self.spec = dict(self.directory.clients["board"].sinks[0])

    def found(self, *, complete: bool = True) -> SinkFound:
        (one,) = judge_sinks(self.plan, self.directory, self.run, complete=complete)
        return one


def write(judged: Judged, story: Sequence[Element] = STORY) -> Judged:
    spec = dict(judged.spec)
    if spec["kind"] in ("jsonl", "parquet"):
        spec["path"] = str(judged.run / "output" / spec["path"])
    trio.run(fill, spec, OUT, SCHEMA, story)
    return judged


@pytest.mark.parametrize("mode", [STABLE, CORRECTIONS])
@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_files_are_equal_to_their_recording(tmp_path: Path, kind: str, mode: str) -> None:
    found = write(Judged(tmp_path, {kind: "results", "mode": mode})).found()
    assert found == SinkFound(
        sink=f"{kind} results of client board", rows=6, equal=True, text="6 rows, equal to its recording"
    )


@pytest.mark.parametrize("mode", [STABLE, CORRECTIONS, CURRENT])
def test_a_delta_table_is_equal_to_its_recording(tmp_path: Path, mode: str) -> None:
    pytest.importorskip("deltalake")
    found = write(Judged(tmp_path, {"delta": str(tmp_path / "table"), "mode": mode})).found()
    assert (found.rows, found.equal, found.text) == (6, True, "6 rows, equal to its recording")


@pytest.mark.servers
def test_a_postgres_table_is_compared_row_by_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    psycopg = pytest.importorskip("psycopg")
    with running_server() as server, environment(monkeypatch, server.environment):
        for mode in (STABLE, CORRECTIONS, CURRENT):
            judged = write(Judged(tmp_path / mode, {"postgres": f"results_{mode}", "mode": mode}))
            assert (judged.found().rows, judged.found().equal) == (6, True)
            with psycopg.connect() as connection:
                connection.execute(f"update results_{mode} set n = 50 where _id = 5")
            assert judged.found().text == f"6 rows, {NOT_RECORDED}out/0: 1 different; first id 5 has n 50 instead of 5"
    assert judged.found().equal is None
    assert judged.found().text.startswith("not compared: ")


def lines(change: Callable[[list[Any]], list[Any]]) -> Callable[[Path], None]:
    def rewrite(folder: Path) -> None:
        file = folder / "out.0.jsonl"
        found = change([json.loads(line) for line in file.read_text().splitlines()])
        file.write_text("".join(json.dumps(one) + "\n" for one in found))

    return rewrite


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda x: [*x[:1], x[1] | {"n": 9}, *x[2:]], "1 different; first id 2 has n 9 instead of 2"),
        (lambda x: [*x[:4], x[4] | {"name": ""}, *x[5:]], "1 different; first id 5 has name '' instead of None"),
        (lambda x: [*x[:2], *x[3:]], "1 missing; first id 3 is missing"),
        (lambda x: x[:-1], "1 missing; first id 6 is missing"),
        (lambda x: [*x, x[0] | {"_id": 7}], "1 extra; first id 7 is not in the recording"),
        (lambda x: [*x, x[0]], "1 repeated, 1 reordered; first id 1 is there more than once"),
        (lambda x: [x[1], x[0], *x[2:]], "1 reordered; first id 1 came after a larger one"),
        (lambda x: [], "6 missing; first id 1 is missing"),
    ],
)
def test_a_changed_line_is_named(tmp_path: Path, change: Callable[[list[Any]], list[Any]], said: str) -> None:
    judged = write(Judged(tmp_path, {"jsonl": "results"}))
    lines(change)(judged.run / "output" / "results")
    found = judged.found()
    assert found.equal is False
    assert found.text.partition(NOT_RECORDED)[2] == f"out/0: {said}"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda x: [e for e in x if e["_kind"] != "undo"], "2 tentative left"),
        (lambda x: [*x, {"_kind": "undo", "_id": 4}], "out/0: 2 missing; first id 5 is missing"),
        (lambda x: [x[0] | {"n": "1"}, *x[1:]], "cannot be read: ValueError: n: expected int64, got str"),
        (lambda x: [{"_kind": "insert", "_id": 1, "_time": x[0]["_time"]}], "cannot be read: KeyError: 'ts'"),
    ],
)
def test_changed_corrections_are_named(tmp_path: Path, change: Callable[[list[Any]], list[Any]], said: str) -> None:
    judged = write(Judged(tmp_path, {"jsonl": "results", "mode": CORRECTIONS}))
    lines(change)(judged.run / "output" / "results")
    found = judged.found()
    assert found.equal is False
    assert found.text.endswith(said)


def test_a_lost_part_of_parquet_is_missing(tmp_path: Path) -> None:
    judged = write(Judged(tmp_path, {"parquet": "results"}))
    (part,) = (judged.run / "output" / "results" / "out").glob("*.parquet")
    rows = pq.read_table(part)
    pq.write_table(pa.concat_tables([rows.slice(0, 2), rows.slice(3)]), part)
    assert judged.found().text.endswith("out/0: 1 missing; first id 3 is missing")
    part.unlink()
    assert judged.found().text.endswith("out/0: 6 missing; first id 1 is missing")


def test_a_run_broken_off_is_compared_so_far(tmp_path: Path) -> None:
    judged = write(Judged(tmp_path, {"jsonl": "results"}), STORY[:1])
    assert judged.found(complete=False).text == "3 rows, equal to its recording, as far as both go"
    assert judged.found().text.endswith("3 missing; first id 4 is missing")


def test_a_sink_is_not_equal_to_nothing(tmp_path: Path) -> None:
    """A client that its sources refuse records nothing, whatever its sink has of an earlier run."""
    judged = write(Judged(tmp_path, {"jsonl": "results"}))
    shutil.rmtree(judged.run / client_folder("board"))
    found = judged.found(complete=False)
    assert (found.equal, found.text) == (None, "not compared: nothing is there yet that its recording has, too")


@pytest.mark.parametrize(
    ("sink", "why"),
    [
        ({"kafka": {"topic": "t", "servers": "h:1"}}, "what kafka has got is not read again"),
        ({"delta": "/nonexistent/table"}, ""),
    ],
)
def test_a_sink_that_is_not_read_says_so(tmp_path: Path, sink: dict[str, Any], why: str) -> None:
    found = Judged(tmp_path, sink).found()
    assert found.equal is None
    assert found.text.startswith(f"not compared: {why}")


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_a_missing_folder_is_a_finding(tmp_path: Path, kind: str) -> None:
    """Where its recording has rows that it should hold."""
    judged = Judged(tmp_path, {kind: "results"})
    folder = judged.run / "output" / "results"
    assert judged.found().equal is False
    assert judged.found().text == (
        f"0 rows, not as recorded: there is no {folder}; out/0: 6 missing; first id 1 is missing"
    )
    assert judged.found(complete=False).equal is None
    shutil.rmtree(judged.run / client_folder("board"))
    assert judged.found().equal is True


def from_run(judged: Judged, origin: str) -> None:
    """The recording is of stable tuples with this origin."""
    known = encode_provenance({"out/0": Provenance("q", origin)})
    (judged.run / client_folder("board") / PROVENANCE).write_bytes(known)


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_files_of_another_run_are_not_compared(tmp_path: Path, kind: str) -> None:
    """1. a run ends  2. another one fills its sink anew  3. that says nothing about the first run"""
    judged = write(Judged(tmp_path, {kind: "results"}), [batch(Kind.STABLE, 1, [7, 8])])
    label = judged.run / "output" / "results" / PROVENANCE
    for origin, equal in (("", False), ("a" * 16, False), ("b" * 16, None)):
        label.write_bytes(encode_provenance({"out/0": Provenance("q", origin)}))
        from_run(judged, "a" * 16)
        assert judged.found().equal is equal
    why = f"(origin {'b' * 16}, that of out/0 here is {'a' * 16})"
    assert judged.found().text == f"not compared: written by another run {why}"


async def refill(spec: dict[str, Any], origin: str) -> None:
    """Forgets the rows of an earlier run; another run writes two rows, if it has an origin."""
    sink = open_sink(spec, {OUT: SCHEMA}, in_folder)
    assert isinstance(sink, ServerSink)
    await sink.forget(source_env())
    if origin:
        await sink.open(source_env(), {OUT: "q"}, "client:board")
        await sink.keep({OUT: origin})
        sink.write(Change(OUT, batch(Kind.STABLE, 1, [7, 8]), 0))
        await sink.commit(ThreadCompute())
    await sink.disconnect()
    sink.close()


def expect_refilled(judged: Judged) -> None:
    from_run(write(judged), "a" * 16)
    assert judged.found().equal is True, "it does not say where its rows come from"
    trio.run(refill, judged.spec, "")
    assert judged.found().text == "not compared: it was forgotten since"
    trio.run(refill, judged.spec, "b" * 16)
    assert judged.found().text.startswith("not compared: written by another run (origin bbbb")
    from_run(judged, "b" * 16)
    assert judged.found().equal is False


def test_a_delta_table_of_another_run_is_not_compared(tmp_path: Path) -> None:
    pytest.importorskip("deltalake")
    expect_refilled(Judged(tmp_path, {"delta": str(tmp_path / "table")}))


@pytest.mark.servers
def test_a_postgres_table_of_another_run_is_not_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("psycopg")
    with running_server() as server, environment(monkeypatch, server.environment):
        expect_refilled(Judged(tmp_path, {"postgres": "refilled"}))


def test_late_and_rejected_rows_are_those_of_the_log(tmp_path: Path) -> None:
    """Row 2 came an hour late; one row was no row at all."""
    given = config(late={"jsonl": "late"}, rejected={"jsonl": "rejected"})
    run = tmp_path / "run"
    plan = make_run(run, given, {A: []})
    directory = with_default_client(*load_data(given, folder=run))
    shutil.rmtree(run / "sources")
    two = batch(Kind.STABLE, 1, [1, 2])
    two = Batch(two.kind, 0, 2, None, Rows(two.rows.time + HOUR * (two.row_ids() > 1), two.rows.time, two.rows.columns))
    bad = rejected_batch([RejectedInput(2, 7, "in.jsonl:3", "no JSON", "{")], 0)
    state = SourceState(last_id=2, consumed=3, left_out=1, rejected=1)
    write_source_records(run, A, [encode_source_record(state, two, SCHEMA, bad)])
    columns = tuple(c.slice(1, 2) for c in two.rows.columns)
    late_schema = Schema.of(ts="timestamp", n="int64", price="float64", name="string", ok="bool", **{LATE_US: "int64!"})
    values = [c.to_list()[0] for c in columns]
    late = Batch(Kind.STABLE, 0, 2, two.row_ids()[1:], Rows.from_tuples(late_schema, [3 * HOUR], [(*values, HOUR - 1)]))
    for what, rows, schema in (("late", late, late_schema), ("rejected", bad, None)):
        channel = Channel(StreamId(f"a.{what}"), 0)
        spec = {"kind": "jsonl", "path": str(run / "output" / what), "mode": STABLE}
        trio.run(fill, spec, channel, schema or Schema.of(position="string!", reason="string!", text="string!"), [rows])
    found = list(judge_sinks(plan, directory, run, complete=True))
    assert [(one.rows, one.equal) for one in found] == [(1, True), (1, True)]
    (run / "output" / "late" / "a.late.0.jsonl").write_text("")
    assert [one.equal for one in judge_sinks(plan, directory, run, complete=True)] == [False, True]


def test_a_recording_cut_by_retain_is_compared_from_there(tmp_path: Path) -> None:
    judged = write(Judged(tmp_path, {"jsonl": "results"}))
    place = client_folder("board") / "out.0"

    def record(changes: Sequence[Element]) -> None:
        shutil.rmtree(judged.run / client_folder("board"))
        recorder = Recorder(DiskStorage(judged.run), client_folder("board"), {OUT: SCHEMA})
        for element in changes:
            recorder.write(Change(OUT, element, 0))
        recorder.close()

    record(STORY[3:])
    assert judged.found().text == "3 rows, equal to its recording"
    record([])
    kept = KeptLog(first=9, last_id=6, until_us=0, segments=1, bytes=100)
    trio.run(write_kept, DiskStorage(judged.run), place, kept)
    assert judged.found() == SinkFound("jsonl results of client board", 0, None, judged.found().text)
    assert "`retain` has deleted" in judged.found().text
