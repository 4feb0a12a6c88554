"""The driver's side of a live output, call by call as Spark makes them; no session, and no cluster."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from replicas.client.buffer import ChangeBuffer
from replicas.client.excerpt import Excerpt
from replicas.spark.live import LiveOutput
from replicas.spark.offsets import Offset
from replicas.spark.options import read_options
from replicas.spark.pieces import APART, Carried, Fetched, Piece
from replicas.spark.readers import ChangesReader, LiveReader, Positions, StableReader
from spe.errors import NotReachable, SpeError
from spe.plan.directory import Directory, Version
from spe.stream.batch import Batch, Rows
from spe.stream.change import Change
from spe.stream.names import Kind

CONFIG = """
cluster: shop
sources:
  a: {from: {generator: {name: orders}}, address: "127.0.0.1:7001"}
query:
  totals: {aggregate: {from: a, window: 1s, group_by: key, compute: {n: count(*)}}}
fragments: {f: {operators: [totals], key: key, partitions: 2, replicas: 2}}
nodes: {n1: {address: "127.0.0.1:7002"}, n2: {address: "127.0.0.1:7003"}}
clients: {spark: {reads: [totals], external: true}}
"""


class Nodes:
    """Stands in for the connection to the nodes."""

    def __init__(self, output: LiveOutput) -> None:
        self._output = output
        self.incarnation = 5
        self.ids = {0: 0, 1: 0}
        self.known = {0: "log", 1: "log"}
        #: Where a query begins that begins now.
        self.begins = {0: 0, 1: 0}
        self.acknowledged: list[dict[int, int]] = []
        #: What was acknowledged when somebody waited for that to arrive.
        self.finished: list[dict[int, int]] = []

    def first(self) -> dict[int, int]:
        return dict(self.begins)

    def latest(self) -> dict[int, int]:
        return dict(self.ids)

    def states(self) -> dict[int, str]:
        return {0: "STABLE", 1: "UP_FAILURE"}

    def origins(self, at: Offset) -> dict[int, str]:
        return dict(self.known)

    def acknowledge(self, at: Offset) -> None:
        self.acknowledged.append(dict(at.ids))

    def finish(self) -> None:
        self.finished.append(self.acknowledged[-1])

    def check(self) -> None:
        """All is well."""

    def stop(self) -> None:
        """There is no connection."""

    def directory(self) -> Directory:
        """Another one than the configuration's."""
        return replace(self._output.directory, version=Version(3, 4))


class Session:
    """Stands in for a client: a buffer that the test fills."""

    name = "now"

    def __init__(self, output: LiveOutput, start: Mapping[int, int], number: int) -> None:
        self.buffer = ChangeBuffer(output.channels, start, number, 1_000_000, 0)

    def ask(self, function: Any) -> Any:
        return function(self.buffer)

    def drop(self, upto: int) -> None:
        self.buffer.drop(upto)


@pytest.fixture
def output(tmp_path: Path) -> LiveOutput:
    (tmp_path / "shop.yaml").write_text(CONFIG)
    return LiveOutput.of(
        read_options({"cluster": str(tmp_path / "shop.yaml"), "output": "totals", "client": "spark", "rows": "10"})
    )


@pytest.fixture
def changed(output: LiveOutput) -> LiveOutput:
    options = {"cluster": str(output.what.cluster), "output": "totals", "client": "spark", "mode": "changes"}
    return LiveOutput.of(read_options(options))


def through(data: Any) -> Any:
    """As Spark keeps it."""
    return json.loads(json.dumps(data))


def excerpts(pieces: Any) -> list[tuple[int, int, int, str]]:
    found = []
    for piece in pieces:
        assert piece.directory.version == Version(3, 4)
        (part,) = piece.parts
        assert isinstance(part, Excerpt)
        found.append((part.partition, part.from_id, part.upto_id, part.origin))
    return found


def test_batches_are_bounded_and_acknowledged_when_finished(output: LiveOutput) -> None:
    reader, nodes = StableReader(output), Nodes(output)
    reader._connected = nodes  # type: ignore[assignment]
    assert reader.reportLatestOffset() == {
        "ids": {"0": 0, "1": 0}, "backlog": 0, "states": {"0": "STABLE", "1": "UP_FAILURE"}
    }  # fmt: skip
    start = through(reader.initialOffset())
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(10)
    assert reader.latestOffset(start, limit) == start
    nodes.ids = {0: 30, 1: 3}
    end = through(reader.latestOffset(start, limit))
    assert end["ids"] == {"0": 7, "1": 3}
    assert (reader.reportLatestOffset() or {})["backlog"] == 23
    assert excerpts(reader.partitions(start, end)) == [(0, 0, 7, "log"), (1, 0, 3, "log")]
    assert nodes.acknowledged[1:] == []  # but where it began
    reader.commit(end)
    assert nodes.acknowledged[1:] == [{0: 7, 1: 3}]
    assert excerpts(reader.partitions(end, through(reader.latestOffset(end, ReadAllAvailable())))) == [
        (0, 7, 30, "log")
    ]


def test_a_batch_is_acknowledged_when_nothing_follows_it(output: LiveOutput) -> None:
    """Nodes whose buffers it fills make nothing more before, so Spark would never commit it."""
    reader, nodes = StableReader(output), Nodes(output)
    reader._connected = nodes  # type: ignore[assignment]
    nodes.ids = {0: 4, 1: 3}
    start = through(reader.initialOffset())
    end = through(reader.latestOffset(start, ReadAllAvailable()))
    reader.partitions(start, end)
    assert nodes.acknowledged == []
    assert through(reader.latestOffset(end, ReadAllAvailable())) == end
    assert nodes.acknowledged == [{0: 4, 1: 3}]


def test_final_portion_of_changes_is_acknowledged(changed: LiveOutput) -> None:
    reader, nodes = ChangesReader(changed), Nodes(changed)
    reader._connected = nodes  # type: ignore[assignment]
    start = through(reader.initialOffset())
    session = Session(changed, {0: 0, 1: 0}, 0)
    reader._session = session  # type: ignore[assignment]
    rows = Rows.from_tuples(changed.table.schema, [1], [(7, 0, 1, 2)])
    session.buffer.add(Change(changed.channels[1], Batch(Kind.STABLE, 0, 1, None, rows), 8))
    end = through(reader.latestOffset(start, reader.getDefaultReadLimit()))
    assert nodes.acknowledged == []
    assert through(reader.latestOffset(end, reader.getDefaultReadLimit())) == end
    assert nodes.acknowledged == [{0: 0, 1: 1}]
    assert session.buffer.changes(0, 3) == []


def test_partition_with_unknown_logs_waits(output: LiveOutput) -> None:
    reader, nodes = StableReader(output), Nodes(output)
    reader._connected = nodes  # type: ignore[assignment]
    nodes.ids, nodes.known = {0: 4, 1: 4}, {1: "log"}
    start = reader.initialOffset()
    end = through(reader.latestOffset(start, ReadAllAvailable()))
    assert (end["ids"], end["origins"]) == ({"0": 0, "1": 4}, {"0": "", "1": "log"})


def test_incomplete_output_is_refused_if_it_must_be_complete(
    output: LiveOutput, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = Nodes(output)
    nodes.ids, nodes.known = {0: 4, 1: 0}, {}
    monkeypatch.setattr("replicas.spark.readers.Positions", lambda *_, **__: nodes)
    with pytest.raises(NotReachable, match=r"no replica of totals/0 says now"):
        LiveReader(output).partitions()
    reader = StableReader(output)
    reader.prepareForTriggerAvailableNow()
    with pytest.raises(NotReachable, match=r"no replica of totals/0 says now"):
        reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    nodes.known = {0: "log"}  # nothing came of the other one yet
    assert excerpts(LiveReader(output).partitions()) == [(0, 0, 4, "log")]


def test_available_now_ends_where_it_was_when_it_began(output: LiveOutput) -> None:
    reader, nodes = StableReader(output), Nodes(output)
    reader._connected = nodes  # type: ignore[assignment]
    nodes.ids = {0: 15, 1: 15}
    at, limit = through(reader.initialOffset()), reader.getDefaultReadLimit()
    reader.prepareForTriggerAvailableNow()
    batches = 0
    while (end := through(reader.latestOffset(at, limit))) != at:
        at, batches = end, batches + 1
        nodes.ids = {0: 15 + batches, 1: 99}
    assert (at["ids"], batches) == ({"0": 15, "1": 15}, 3)
    assert nodes.finished == [{0: 15, 1: 15}]  # Spark ends the process before the next heartbeat


def test_next_session_acknowledges_as_later_despite_clock(output: LiveOutput, monkeypatch: pytest.MonkeyPatch) -> None:
    after: list[int] = []

    def connected(of: LiveOutput, later_than: int) -> Nodes:
        after.append(later_than)
        return Nodes(of)

    monkeypatch.setattr("replicas.spark.readers.Positions", connected)
    first = StableReader(output)
    start = first.initialOffset()
    first._positions().ids = {0: 1, 1: 1}  # type: ignore[attr-defined]
    end = through(first.latestOffset(start, ReadAllAvailable()))
    StableReader(output).latestOffset(end, ReadAllAvailable())
    StableReader(output).commit(end)
    StableReader(output).partitions(start, end)  # what was planned by an earlier session, and not finished
    assert after == [0, 5, 5, 5]


class Heartbeats:
    """Stands in for heartbeats that never make us the one who speaks for the client."""

    name, incarnation, used = "client:spark", 1, "client:spark is in use: another process reads"

    def __init__(self, *_: object, **__: object) -> None:
        pass

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        task_status.started()
        await trio.sleep_forever()

    async def heard_of_all(self) -> None:
        await trio.sleep_forever()

    def in_use(self) -> str:
        return self.used

    def said(self) -> dict[str, str]:
        return {"n1 at here": "serves none of it"}


@pytest.mark.parametrize(
    ("used", "said"),
    [
        (Heartbeats.used, r"client:spark is in use: .* for 0\.05 s \(option patience\)"),
        ("", r"some partition of totals was served by nobody within 0\.05 s .*n1 at here: serves none of it"),
    ],
)
def test_busy_client_is_distinguished_from_unserved_output(
    output: LiveOutput, monkeypatch: pytest.MonkeyPatch, used: str, said: str
) -> None:
    monkeypatch.setattr("replicas.spark.readers.OutputPositions", Heartbeats)
    monkeypatch.setattr(Heartbeats, "used", used)
    with pytest.raises(SpeError, match=said):
        Positions(replace(output, what=replace(output.what, patience=0.05)))


def test_data_for_tasks_has_no_connection_and_no_token(output: LiveOutput, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPE_TOKEN", "hunter2")
    reader = StableReader(output)
    reader._connected = Nodes(output)  # type: ignore[assignment]
    data = pickle.dumps(reader)
    assert b"hunter2" not in data
    assert pickle.loads(data)._connected is None
    assert pickle.loads(data)._output.plan.fingerprint == output.plan.fingerprint


def test_first_batch_keeps_its_start_when_spark_asks_again(output: LiveOutput) -> None:
    """1. a query begins now, at 10; 2. more comes before Spark asks again, in this session, and after a restart"""
    reader, nodes = StableReader(output), Nodes(output)
    reader._connected = nodes  # type: ignore[assignment]
    nodes.begins, nodes.ids = {0: 10, 1: 7}, {0: 15, 1: 7}
    end = through(reader.latestOffset(through(reader.initialOffset()), ReadAllAvailable()))
    for now in ({0: 12, 1: 9}, {0: 100, 1: 70}):
        nodes.begins = now
        assert excerpts(reader.partitions(through(reader.initialOffset()), end)) == [(0, 10, 15, "log")]
    nodes.ids = {0: 20, 1: 8}
    second = through(reader.latestOffset(end, ReadAllAvailable()))
    assert excerpts(reader.partitions(end, second)) == [(0, 15, 20, "log"), (1, 7, 8, "log")]


def test_the_first_portion_of_changes_begins_where_it_began(changed: LiveOutput) -> None:
    reader, nodes = ChangesReader(changed), Nodes(changed)
    reader._connected = nodes  # type: ignore[assignment]
    nodes.begins = {0: 10, 1: 7}
    end = {**through(reader.initialOffset()), "ids": {"0": 15, "1": 7}, "session": "then", "change": 4}
    nodes.begins = {0: 100, 1: 70}
    pieces = reader.partitions(through(reader.initialOffset()), end)
    parts = [part for piece in pieces for part in piece.parts]  # type: ignore[attr-defined]
    assert [(p.what.partition, p.what.from_id, p.what.upto_id) for p in parts] == [(0, 10, 15), (1, 7, 7)]


def test_unfinished_first_batch_follows_its_checkpoint(output: LiveOutput, changed: LiveOutput) -> None:
    """Spark asks a reader that begins anew where it would begin, though the checkpoint has an end of the batch."""
    nodes = Nodes(output)
    nodes.begins, nodes.ids = {0: 10, 1: 7}, {0: 15, 1: 9}
    reader = StableReader(output)
    reader._connected = nodes  # type: ignore[assignment]
    end = through(reader.latestOffset(through(reader.initialOffset()), ReadAllAvailable()))

    def gone(at: Offset) -> dict[int, str]:
        raise SpeError(f"the nodes begin behind {at.ids}")

    nodes.begins, nodes.origins = {0: 0, 1: 0}, gone  # type: ignore[method-assign]
    assert excerpts(reader.partitions(through(reader.initialOffset()), end)) == [(0, 10, 15, "log"), (1, 7, 9, "log")]
    with pytest.raises(SpeError, match="the nodes begin behind"):
        reader.latestOffset(through(reader.initialOffset()), ReadAllAvailable())
    other = ChangesReader(changed)
    other._connected = nodes  # type: ignore[assignment]
    with pytest.raises(SpeError, match="the checkpoint is of mode 'stable', and 'changes' is to be read"):
        other.partitions(through(other.initialOffset()), end)


def test_a_batch_that_would_begin_behind_its_end_is_refused(output: LiveOutput) -> None:
    reader, nodes = StableReader(output), Nodes(output)
    reader._connected = nodes  # type: ignore[assignment]
    nodes.begins = {0: 100, 1: 7}
    start = through(reader.initialOffset())
    end = {**start, "ids": {"0": 15, "1": 9}, "begins": {}}
    with pytest.raises(SpeError, match=r"totals/0 would begin behind id 100 and end with id 15"):
        reader.partitions(start, end)


def test_portion_of_changes_travels_with_tasks_until_finished(changed: LiveOutput) -> None:
    reader, nodes = ChangesReader(changed), Nodes(changed)
    reader._connected = nodes  # type: ignore[assignment]
    start = through(reader.initialOffset())
    session = Session(changed, {0: 0, 1: 0}, 0)
    reader._session = session  # type: ignore[assignment]
    rows = Rows.from_tuples(changed.table.schema, [1], [(7, 0, 1, 2)])
    session.buffer.add(Change(changed.channels[1], Batch(Kind.STABLE, 0, 1, None, rows), 8))
    end = through(reader.latestOffset(start, reader.getDefaultReadLimit()))
    assert (end["ids"], end["session"], end["change"]) == ({"0": 0, "1": 1}, "now", 3)
    pieces: list[Piece] = list(reader.partitions(start, end))  # type: ignore[arg-type]
    assert [(p.partition, [part.sequence for part in p.parts if isinstance(part, Carried)]) for p in pieces] == [
        (0, [APART]),
        (1, [2 * APART, 3 * APART]),
    ]
    reader.commit(end)
    assert nodes.acknowledged == [{0: 0, 1: 1}]
    assert session.buffer.changes(0, 3) == []


def test_portion_of_earlier_session_is_undo_and_stable_rows(changed: LiveOutput) -> None:
    reader = ChangesReader(changed)
    reader._connected = Nodes(changed)  # type: ignore[assignment]
    start = through(Offset("totals", "changes", changed.nowhere().query, {0: 4, 1: 4}, {}, 5, "then", 9).to_json())
    end = {**start, "ids": {"0": 6, "1": 4}, "change": 12, "origins": {"0": "log", "1": "log"}}
    parts = [part for piece in reader.partitions(start, end) for part in piece.parts]  # type: ignore[attr-defined]
    assert all(isinstance(part, Fetched) and part.sequence == 10 * APART for part in parts)
    assert [(p.what.partition, p.what.from_id, p.what.upto_id, p.what.origin) for p in parts] == [
        (0, 4, 6, "log"),
        (1, 4, 4, "log"),
    ]


def test_changes_have_no_available_now(changed: LiveOutput) -> None:
    with pytest.raises(SpeError, match="mode changes has no end"):
        ChangesReader(changed).prepareForTriggerAvailableNow()


def test_missing_addresses_are_reported(tmp_path: Path) -> None:
    (tmp_path / "shop.yaml").write_text(CONFIG.replace('{address: "127.0.0.1:7002"}', "{}"))
    with pytest.raises(SpeError, match="gives no address for n1"):
        LiveOutput.of(read_options({"cluster": str(tmp_path / "shop.yaml"), "output": "totals", "client": "spark"}))
