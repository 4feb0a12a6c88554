"""The kit for connectors passes those that keep their promises, and says what is wrong with those that do not."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, ClassVar

import pytest
import trio

from replicas.connectors.reader import Resumable, RowChunk
from replicas.connectors.server_sink import ChannelEntry, ServerSink
from replicas.simulation.world.disk import SimDisk
from replicas.testing import PromiseBroken, check_reader, check_receiver, check_sink
from replicas.testing.result_story import SCHEMA
from spe.connectors import installed_connectors as installed
from spe.connectors.declaration import CORRECTIONS, MODES, Guarantees, Reader, SinkDeclaration
from spe.errors import ConfigError
from spe.runtime.env import Env
from spe.stream.batch import Column
from spe.stream.ids import Channel
from spe.stream.names import Kind
from spe.stream.schema import Schema

Accept = Callable[[RowChunk], Awaitable[None]]

#: Plays of each kind for a connector with a mistake: enough to find each one here.
SOME = 40
STATES = Guarantees("a", "b", "c", {})
ROWS = [(n * 1_000_000, n) for n in range(12)]


class Counter:
    """Numbers that it forgets when they are acknowledged."""

    def __init__(self) -> None:
        self.first = 0

    async def after(self, number: int) -> int:
        """How many there are."""
        await trio.sleep(0.01)
        assert number >= self.first, f"{number} was acknowledged, and is gone"
        return min(number + 2, len(ROWS))


class CounterReader(Resumable):
    server: ClassVar[Counter]

    def __init__(self, schema: Schema, time: str | None, reader: Mapping[str, Any]) -> None:
        self._mistake = reader["mistake"]
        self._schema = schema

    def durable(self, cursor: bytes) -> None:
        self.server.first = max(self.server.first, int(cursor))

    async def read(self, env: Env, accept: Accept) -> None:
        at, first = int(self.cursor or b"0"), 0
        while True:
            stop = await self.server.after(at)
            if stop == at:
                await trio.sleep(0.1)
                continue
            rows = ROWS[at:stop]
            if self._mistake == "swapped" and at == 4:
                rows.reverse()
            columns = [Column.from_list([row[i] for row in rows], a.type) for i, a in enumerate(self._schema)]
            cursor = {"behind": max(at, 1), "ahead": min(stop + 1, len(ROWS))}.get(self._mistake, stop)
            chunk = RowChunk(first, stop - at, columns[0].values, tuple(columns), [], None, str(cursor).encode())
            if self._mistake == "early":
                self.server.first = stop
            await accept(chunk)
            at, first = stop, first + stop - at


class CounterDeclaration(Reader):
    live = True


class Table:
    """Rows and a state; what is written happens at once, if at all."""

    def __init__(self) -> None:
        self.state = b""
        self.kept: dict[tuple[int, int], dict[str, Any]] = {}
        self.changes: list[dict[str, Any]] = []

    def rows(self) -> list[dict[str, Any]]:
        return self.changes or list(self.kept.values())


class TableWriter(ServerSink):
    server: ClassVar[Table]

    def __init__(self, schemas: Mapping[Channel, Schema], mode: str, options: Mapping[str, Any]) -> None:
        super().__init__(schemas, mode)
        self._mistake = options["mistake"]

    async def load(self, env: Env) -> bytes:
        await trio.sleep(0.01)
        return self.server.state

    async def store(self, before: bytes, after: bytes, entries: Sequence[ChannelEntry]) -> bool:
        server = self.server
        await trio.sleep(0.005)
        if self._mistake == "another transaction":
            server.state, before = after, b""
            await trio.sleep(0.005)
        elif server.state != before:
            return False
        if self._mistake == "late":
            trio.lowlevel.spawn_system_task(self._later, before, after, list(entries))
            await trio.sleep(0.05)
            return True
        self._apply(entries)
        server.state = after
        await trio.sleep(0.005)
        return True

    async def _later(self, before: bytes, after: bytes, entries: list[ChannelEntry]) -> None:
        """The server gets to it after we have died."""
        await trio.sleep(0.04)
        self._apply(entries)
        self.server.state = after

    def _apply(self, entries: Sequence[ChannelEntry]) -> None:
        server = self.server
        for entry in entries:
            partition = entry.channel.partition
            if entry.kind == "undo" and self._mistake != "no undo":
                server.kept = {k: v for k, v in server.kept.items() if k[0] != partition or k[1] <= entry.id}
            if self.mode == CORRECTIONS and entry.batch is None:
                server.changes.append({"_kind": entry.kind, "_partition": partition, "_id": entry.id})
            if entry.batch is None:
                continue
            for id_, values in zip(entry.batch.row_ids().tolist(), entry.batch.rows.to_tuples()):
                row = {"_kind": "insert", "_partition": partition, "_id": id_, **dict(zip(SCHEMA.names, values))}
                row["_tentative"] = entry.batch.kind is Kind.TENTATIVE
                if self._mistake == "other values":
                    row["amount"] = None
                if self.mode == CORRECTIONS:
                    server.changes.append(row)
                else:
                    server.kept[partition, id_] = row


class Files:
    """Reads the JSON lines on the disk of the process."""

    storage: SimDisk

    def __init__(self) -> None:
        self.storage = SimDisk()

    def rows(self) -> list[dict[str, Any]]:
        found = []
        for partition in (0, 1):
            path = PurePosixPath("out", f"results.{partition}.jsonl")
            text = self.storage.read(path).decode() if self.storage.exists(path) else ""
            # The last line may be torn.
            found += [json.loads(line) | {"_partition": partition} for line in text.split("\n")[:-1]]
        return found


@pytest.fixture(autouse=True)
def declared(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    module = "tests.unit.replicas.testing.test_connectors"
    reader = CounterDeclaration("counter", dict, "", "", (), STATES, f"{module}:CounterReader")
    monkeypatch.setattr(CounterDeclaration, "reader", lambda self, value, data: dict(value))
    sink = SinkDeclaration("table", dict, "", "", dict.fromkeys(MODES, ""), STATES, f"{module}:TableWriter")
    monkeypatch.setattr(
        SinkDeclaration, "sink", lambda self, value: value if isinstance(value, dict) else {"path": value}
    )
    monkeypatch.setitem(installed._LOADED, (installed.READERS_GROUP, "counter"), reader)
    monkeypatch.setitem(installed._LOADED, (installed.SINKS_GROUP, "table"), sink)
    return


def check_counter(mistake: str = "", most: int | None = None) -> int:
    def server() -> Counter:
        CounterReader.server = Counter()
        return CounterReader.server

    entry = {"schema": {"ts": "timestamp!", "n": "int64!"}, "time": "ts", "from": {"counter": {"mistake": mistake}}}
    return check_reader(entry, ROWS, server, most=most)


def check_table(mode: str, mistake: str = "", most: int | None = None) -> int:
    def server() -> Table:
        TableWriter.server = Table()
        return TableWriter.server

    return check_sink({"table": {"mistake": mistake}, "mode": mode}, server, most=most)


def test_a_reader_that_keeps_its_promises_passes() -> None:
    assert check_counter(most=SOME) > 2 * SOME


@pytest.mark.parametrize(
    ("mistake", "said"),
    [
        ("behind", r"^(the process is killed|its machine loses power) at step \d.* is in the log too often; "),
        ("ahead", r"^(the process is killed|its machine loses power) at step \d.* is missing in the log; "),
        ("early", r"^(the process is killed|its machine loses power) at step \d.* was acknowledged, and is gone"),
        ("swapped", "^without a crash: .* is not in its place in the log"),
    ],
)
def test_a_reader_with_a_mistake_does_not_pass(mistake: str, said: str) -> None:
    with pytest.raises(PromiseBroken, match=said):
        check_counter(mistake, SOME)


@pytest.mark.parametrize("mode", MODES)
def test_a_sink_that_keeps_its_promises_passes(mode: str) -> None:
    assert check_table(mode, most=SOME) > 2 * SOME


@pytest.mark.parametrize(
    ("mode", "mistake", "said"),
    [
        ("current", "no undo", r"two live rows of one result|a tentative row before a final one"),
        ("stable", "other values", r"without a crash: results/\d: row \d+ is \("),
        ("current", "another transaction", r"is missing|it ends: .* another process writes"),
        (
            "corrections",
            "another transaction",
            r"is missing|is tentative|is there twice|another process|before a final",
        ),
        ("corrections", "late", r"it ends: .* another process writes|is there twice"),
    ],
)
def test_a_sink_with_a_mistake_does_not_pass(mode: str, mistake: str, said: str) -> None:
    with pytest.raises(PromiseBroken, match=said):
        check_table(mode, mistake, SOME)


@pytest.mark.parametrize("mode", ["stable", "corrections"])
def test_sinks_of_files_keep_their_promises(mode: str) -> None:
    assert check_sink({"jsonl": "out", "mode": mode}, Files, most=SOME) > 2 * SOME


def test_replay_has_no_sender() -> None:
    with pytest.raises(ConfigError, match="nobody sends rows to csv: expected a live reader, or check_reader"):
        check_receiver({"schema": {"ts": "timestamp!"}, "time": "ts", "from": {"csv": "a.csv"}}, [], Counter)
