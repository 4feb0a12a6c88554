"""Rows that a source cannot take go to a sink of their own: each once, wherever the source is killed (E8)."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow
import pytest
import trio
import trio.testing
from pyarrow import parquet

from replicas.connectors import Live, Malformed
from replicas.connectors.sink_registry import Place
from replicas.link.signal import Signal
from replicas.simulation.world.disk import SimDisk
from replicas.source.history import SourceHistory
from replicas.source.own_sink import OwnSink
from replicas.source.proxy import SourceProxy
from replicas.source.rejected_inputs import RejectedInputs
from replicas.testing.crashes import Crash, Stage, play_all
from spe.connectors import installed_connectors as installed
from spe.log import Position, read_log
from spe.log.rejected_rows import TEXT_MAX
from spe.log.source_log import SourceState, decode_source_state
from spe.plan.plan import Retain, Source
from spe.runtime.env import Env
from spe.stream.times import SECOND
from tests.simulation.test_cluster import make_plan
from tests.support.source_env import source_env
from tests.support.table_server import SERVERS, TABLE, TableServer
from tests.unit.replicas.source.test_cursors import BAD, EXPECTED, Numbers, Server, logged
from tests.unit.replicas.source.test_proxy import EVENTS, FOLDER, OneChunk, chunk_of_names, source

PLAN = make_plan(1).plan
FILE = PurePosixPath("sinks", "aside", "events.rejected.0.jsonl")
SINK = {"kind": "jsonl", "path": "aside", "mode": "stable"}


def of(reader: dict[str, Any] | None = None, **changes: Any) -> Source:
    return source(reader or {"kind": "stdin"}, **{"rejected": SINK, **changes})


def place(storage: SimDisk) -> Place:
    return lambda path: (storage, PurePosixPath("sinks", *path.parts))


def sink_of(env: Env, one: Source, proxy: SourceProxy, place: Place, safe: Callable[[int], None]) -> OwnSink:
    return OwnSink(env, PLAN, one, RejectedInputs(one, proxy), proxy.identity, place, Path(), safe)


async def serve(
    env: Env,
    one: Source,
    proxy: SourceProxy,
    disk: SimDisk,
    reader: Live | None = None,
    safe: Callable[[int], None] = lambda _: None,
) -> None:
    """A source and its rejected rows, until cancelled."""
    signal = Signal()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sink_of(env, one, proxy, place(disk), safe).run, signal)
        await proxy.run(lambda elements: signal.wake(), reader=reader)
        signal.wake()


async def run(storage: SimDisk, one: Source, seconds: float, reader: Live | None = None) -> SourceProxy:
    env = source_env(storage)
    proxy = await SourceProxy.open(env, one)
    with trio.move_on_after(seconds):
        await serve(env, one, proxy, storage, reader)
    return proxy


def lines(storage: SimDisk) -> list[dict[str, Any]]:
    return [json.loads(line) for line in storage.read(FILE).decode().splitlines()] if storage.exists(FILE) else []


def csv_of(folder: Path, *rows: str) -> Source:
    (folder / "e.csv").write_text("ts,name\n" + "".join(f"{row}\n" for row in rows), errors="surrogateescape")
    return of({"kind": "csv", "path": str(folder / "e.csv"), "timestamps": "us"}, replay={"rate": 200})


async def test_each_has_its_place_its_reason_and_its_text(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    one = csv_of(tmp_path, "1,a", "x,b", "2,c,d", f"{2**62},e", "3,\udcff", "4,f")
    storage = SimDisk()
    proxy = await run(storage, one, 5)
    assert proxy.ended
    path = tmp_path / "e.csv"
    found = lines(storage)
    assert [(line["_id"], line["position"], line["reason"], line["text"]) for line in found] == [
        (1, f"{path}, line 3", "ts: expected a number of us since the epoch, got 'x'", "x,b"),
        (2, f"{path}, line 4", "expected 2 cells, got 3", "2,c,d"),
        (
            3,
            f"{path}, row 4",
            "ts: +inf is beyond the times that are taken",
            '{"ts": "+148108-07-06T14:00:27.387904Z", "name": "e"}',
        ),
        (4, f"{path}, line 6", "name: not UTF-8", "3,\\udcff"),
    ]
    assert proxy.status().malformed == 3, "they are counted and kept aside as ever"


async def test_files_without_lines_have_rows(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    path, storage = tmp_path / "e.parquet", SimDisk()
    parquet.write_table(pyarrow.table({"ts": [1, None, 3], "name": ["a", "b", "c"]}), path)
    await run(storage, of({"kind": "parquet", "path": str(path), "timestamps": "us"}, replay={"rate": 200}), 5)
    (line,) = lines(storage)
    assert (line["position"], line["text"]) == (f"{path}, row 2", "{'ts': None, 'name': 'b'}")


async def test_long_text_is_cut_and_malformed_file_stays_small(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    storage = SimDisk()
    await run(storage, csv_of(tmp_path, "1,a", "x," + "y" * 100_000), 5)
    (line,) = lines(storage)
    assert line["text"] == "x," + "y" * (TEXT_MAX - 2)
    (kept,) = storage.read(PurePosixPath("malformed", "events.jsonl")).splitlines()
    assert len(json.loads(kept)["text"]) == 200


class Played:
    """One play of a source with a sink for rejected rows, killed at some awaits."""

    def __init__(
        self, crash: Crash, one: Source, good: list[str], bad: list[str], reader: Callable[[], Live | None]
    ) -> None:
        self.stage = Stage(object(), crash, 1, virtual=True)
        self._one, self._good, self._bad, self._reader = one, good, bad, reader
        self._proxy: SourceProxy | None = None
        self._safe: int | None = None

    async def play(self) -> None:
        await self.stage.play(self._process, self._is_over, trio.lowlevel.checkpoint)

    async def _process(self, env: Env) -> None:
        self._proxy, self._safe = None, None
        self._proxy = proxy = await SourceProxy.open(env, self._one)
        await serve(env, self._one, proxy, self.stage.disk, self._reader(), self._is_safe)

    def _is_safe(self, upto_id: int) -> None:
        self._safe = upto_id

    def _is_over(self) -> bool:
        proxy = self._proxy
        return proxy is not None and proxy.ended and self._safe == proxy.last_id - 1

    def check(self) -> None:
        found = lines(self.stage.disk)
        assert [line["_id"] for line in found] == list(range(1, len(self._bad) + 1))
        assert [line["text"] for line in found] == self._bad
        assert logged(self.stage.disk.restarted()) == self._good


def test_server_rows_are_rejected_once_whenever_source_crashes() -> None:
    """Also of chunks that have no other rows; the server forgets what is acknowledged."""

    def perform(crash: Crash) -> Played:
        server = Server()
        return Played(crash, of(), EXPECTED, [str(n) for n in sorted(BAD)], lambda: Numbers(server))

    assert play_all(perform, serves=False, virtual=True, most=60, seed=1) > 100


@pytest.mark.parametrize("rows_per_chunk", [1, 3])
def test_file_rows_are_rejected_once_whenever_source_crashes(
    rows_per_chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the beginning and the end, alone in a chunk, and in one whose rows come at several times."""
    monkeypatch.setattr("replicas.connectors.formats.csv.CHUNK_ROWS", rows_per_chunk)
    rows = [f"x{n},bad" if n in {0, 1, 6, 8, 12, 13, 14, 15, 19} else f"{n},r{n}" for n in range(20)]
    one = csv_of(tmp_path, *rows)
    good, bad = [r.split(",")[1] for r in rows if "bad" not in r], [r for r in rows if "bad" in r]
    plays = play_all(
        lambda crash: Played(crash, one, good, bad, lambda: None), serves=False, virtual=True, most=40, seed=1
    )
    assert plays > 60


async def test_unrepeatable_rejected_rows_are_logged_alone(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Of a reader that has no position, such as lines over TCP: a record for rejected rows alone.  Lines that are too
    long have no place in their chunk."""
    bad = Numbers(Server(rows=4, bad=frozenset(range(4))))._chunk(0, 0, 4)
    bad.cursor = b""
    bad.malformed.append(Malformed(5, "too long", "5"))
    storage = SimDisk()
    await run(storage, of(), 3, OneChunk(bad))
    assert [line["text"] for line in lines(storage)] == ["0", "1", "2", "3", "5"]
    assert next(decode_source_state(r.body).rejected for r in read_log(storage, FOLDER)) == 5


async def test_a_row_from_the_future_is_there_as_it_was_read(autojump_clock: trio.testing.MockClock) -> None:
    chunk = chunk_of_names(["a", "b", "c"])
    assert chunk.events is not None
    chunk.events[1] = 5_000 * SECOND
    storage = SimDisk()
    await run(storage, of(ahead_us=3_600 * SECOND), 3, OneChunk(chunk))
    (line,) = lines(storage)
    assert (line["position"], line["reason"]) == (
        "row 2 since the start",
        "ts: 1970-01-01T01:23:20 is too far ahead of the clock",
    )
    assert json.loads(line["text"])["name"] == "b"


async def test_numbers_go_on_where_the_sink_was_taken_away_for_a_while(
    autojump_clock: trio.testing.MockClock,
) -> None:
    storage, server = SimDisk(), Server(rows=12)
    await run(storage, of(), 3, Numbers(server, ends=False))
    assert [line["text"] for line in lines(storage)] == ["3", "8", "9", "10", "11"]
    server.rows = 22
    env = source_env(storage := storage.restarted())
    proxy = await SourceProxy.open(env, of(rejected=None))
    with trio.move_on_after(3):
        await proxy.run(reader=Numbers(server, ends=False))
    server.rows, server.bad = 40, BAD | {30}
    await run(storage := storage.restarted(), of(), 3, Numbers(server))
    assert [(line["_id"], line["text"]) for line in lines(storage)][5:] == [(6, "30")]


async def test_a_server_that_is_away_is_waited_for(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In each session it is away at first; then it answers, and the source is killed before it has everything."""
    monkeypatch.setitem(installed._LOADED, (installed.SINKS_GROUP, "table"), TABLE)
    monkeypatch.setitem(SERVERS, "bad", table := TableServer())
    one, server, storage = of(rejected={"kind": "table", "at": "bad", "mode": "stable"}), Server(), SimDisk()
    for answers_s in (0.6, 0.3, 10.0):
        env, signal, safe, table.away = source_env(storage), Signal(), list[int](), True
        proxy = await SourceProxy.open(env, one)
        sink, reader = sink_of(env, one, proxy, place(storage), safe.append), Numbers(server)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sink.run, signal)
            nursery.start_soon(partial(proxy.run, lambda elements, signal=signal: signal.wake(), reader=reader))
            await trio.sleep(0.3)
            assert "Connection refused" in sink.why
            table.away = False
            await trio.sleep(answers_s)
            nursery.cancel_scope.cancel()
        storage = storage.restarted()
    assert (sink.why, safe[-1]) == ("", proxy.last_id - 1)
    assert [row[-1] for _, row in table.rows.values()] == [str(n) for n in sorted(BAD)]


async def test_a_full_disk_is_waited_for(autojump_clock: trio.testing.MockClock) -> None:
    logs, files = SimDisk(), SimDisk()
    env, signal, safe = source_env(logs), Signal(), list[int]()
    one, server = of(), Server(rows=60, bad=frozenset(range(0, 60, 2)))
    proxy = await SourceProxy.open(env, one)
    files.space_left = 1_000
    sink = sink_of(env, one, proxy, place(files), safe.append)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sink.run, signal)
        nursery.start_soon(lambda: proxy.run(lambda elements: signal.wake(), reader=Numbers(server)))
        await trio.sleep(10)
        assert "No space left" in sink.why
        assert safe[-1] < 20, "the log is kept"
        files.space_left = None
        await trio.sleep(3)
        assert sink.why == ""
        assert safe[-1] == proxy.last_id - 1
        nursery.cancel_scope.cancel()
    assert [line["text"] for line in lines(files)] == [str(n) for n in range(0, 60, 2)]


def test_a_segment_that_has_rejected_rows_and_no_tuple_is_needed() -> None:
    """Its last id is that of the segment before it."""
    history = SourceHistory(EVENTS, 0)
    history.add(SourceState(5, consumed=5), Position(1, 1, 16), None)
    assert history.needed_for_rejected(0) == 4, "the next record may have one, and no tuple"
    history.add(SourceState(5, consumed=6, left_out=1, rejected=1), Position(2, 2, 16), None)
    assert history.needed_for_rejected(0) == 4
    history.add(SourceState(9, consumed=10, left_out=1, rejected=1), Position(3, 3, 16), None)
    assert history.needed_for_rejected(0) == 4
    assert history.needed_for_rejected(1) == 8


async def test_with_retain_the_log_waits_for_the_sink(autojump_clock: trio.testing.MockClock) -> None:
    """Also where its oldest records have no tuple; a sink that is new begins with what is there."""
    storage, server = SimDisk(), Server(rows=900, bad=frozenset([*range(300), 890]))
    one = of(retain=Retain(size_bytes=4_000, unproved=True))
    env = source_env(storage)
    proxy = await SourceProxy.open(env, one)
    retention, safe = proxy.retention(lambda _: storage, ()), list[int]()
    retention.follow(PLAN, make_plan(1).directory)
    sink = sink_of(
        env, one, proxy, place(storage), lambda id: retention.acknowledged("the sink of rejected rows", 1, id)
    )
    await proxy.run(reader=Numbers(server))
    await retention.look()
    assert proxy.base_id == 0
    assert len(list(read_log(storage, FOLDER))) > 300
    assert [h.holder for h in retention.status().holders] == ["the sink of rejected rows"]
    with trio.move_on_after(5):
        await sink.run(Signal())
    await retention.look()
    assert [line["text"] for line in lines(storage)] == [*map(str, range(300)), "890"]
    assert proxy.base_id > 0
    proxy.close()
    env = source_env(storage := storage.restarted())
    new, proxy = SimDisk(), await SourceProxy.open(env, one)
    with trio.move_on_after(5):
        await sink_of(env, one, proxy, place(new), safe.append).run(Signal())
    assert [line["text"] for line in lines(new)] in ([], ["890"])
    assert safe[-1] == proxy.last_id - 1
