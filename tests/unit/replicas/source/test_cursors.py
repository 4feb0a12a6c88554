"""Readers with a position of their own go on exactly where the source's log ends (rule S9)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from random import Random

import numpy as np
import pytest
import trio
import trio.testing

from replicas.connectors import Live, Malformed, Resumable, RowChunk
from replicas.simulation.world.disk import SimDisk, torn
from replicas.source.proxy import SourceProxy
from spe.log import read_log
from spe.log.source_log import CURSOR_BYTES_MAX, check_record, decode_source_batch, decode_source_state
from spe.plan.plan import Source, Watermark
from spe.runtime.env import Env
from spe.stream.batch import Column, Element
from spe.stream.strings import StringPool
from spe.stream.times import SECOND
from tests.support.source_env import source_env
from tests.unit.replicas.source.test_proxy import EVENTS, FOLDER, rows_of, source

Accept = Callable[[RowChunk], Awaitable[None]]

ROWS = 40
#: Rows that cannot be understood.
BAD = frozenset((3, 8, 9, 10, 11, 20))


class Server:
    """Numbered rows, which it keeps until they are acknowledged."""

    def __init__(self, rows: int = ROWS, bad: frozenset[int] = BAD) -> None:
        self.rows = rows
        self.bad = bad
        self.acknowledged = 0


class Numbers(Resumable):
    """Reads a server, two rows at a time, or four."""

    def __init__(self, server: Server, *, ends: bool = True) -> None:
        self._server = server
        self._ends = ends
        self.durable_up_to: list[int] = []
        self.began_at: int | None = None

    def durable(self, cursor: bytes) -> None:
        self.durable_up_to.append(int(cursor))
        self._server.acknowledged = int(cursor)

    async def read(self, env: Env, accept: Accept) -> None:
        at, first = int(self.cursor or b"0"), 0
        self.began_at = at
        assert at >= self._server.acknowledged, "what has been acknowledged is gone"
        while at < self._server.rows:
            stop = min(at + (4 if at % 3 else 2), self._server.rows)
            await accept(self._chunk(first, at, stop))
            first, at = first + stop - at, stop
            await trio.sleep(0.1)
        if not self._ends:
            await trio.sleep_forever()

    def _chunk(self, first: int, at: int, stop: int) -> RowChunk:
        good = [n for n in range(at, stop) if n not in self._server.bad]
        malformed = [Malformed(n, "no number", str(n)) for n in range(at, stop) if n in self._server.bad]
        ts = Column.from_list([n * 10 for n in good], EVENTS["ts"].type)
        names = Column.from_list([f"r{n}" for n in good], EVENTS["name"].type)
        places = np.array([n - at for n in good], np.int64) if malformed else None
        return RowChunk(first, stop - at, ts.values, (ts, names), malformed, places, str(stop).encode())


EXPECTED = [f"r{n}" for n in range(ROWS) if n not in BAD]


def live(**changes: object) -> Source:
    return source({"kind": "stdin"}, **changes)


async def run(storage: SimDisk, reader: Live, of: Source | None = None) -> tuple[SourceProxy, list[Element]]:
    proxy = await SourceProxy.open(source_env(storage), of or live())
    published: list[Element] = []
    await proxy.run(published.extend, reader=reader)
    return proxy, published


def logged(storage: SimDisk) -> list[str]:
    """Names in the log; each record continues the one before it and accounts for its rows."""
    names, last, pool = [], 0, StringPool()
    for record in read_log(storage, FOLDER):
        state, batch = decode_source_state(record.body), decode_source_batch(record.body, EVENTS, pool)
        check_record(last, state, batch)
        last = state.last_id
        if batch is not None:
            names += batch.rows.columns[1].to_list()
    return names


@pytest.mark.parametrize("power", [False, True], ids=["killed", "power lost"])
@pytest.mark.parametrize("seed", range(10))
async def test_killed_reader_resumes_exactly_after_its_log(
    seed: int, power: bool, autojump_clock: trio.testing.MockClock
) -> None:
    random, storage, server = Random(seed), SimDisk(), Server()
    while True:
        storage.sync_s = random.choice([0.0, 0.03, 0.25])
        proxy = None
        with trio.move_on_after(random.uniform(0.0, 0.6)):
            proxy, _ = await run(storage, Numbers(server))
        if proxy is not None and proxy.ended:
            break
        storage = storage.power_loss(lambda _, synced, written: torn(random, synced, written)) if power else storage
        storage = storage.restarted()
    assert logged(storage) == EXPECTED


async def test_rows_that_were_all_left_out_are_not_read_again(autojump_clock: trio.testing.MockClock) -> None:
    server, storage = Server(rows=12), SimDisk()
    await run(storage, Numbers(server))
    state = [decode_source_state(record.body) for record in read_log(storage, FOLDER)][-1]
    assert (state.cursor, state.consumed, state.left_out, state.last_id) == (b"12", 12, 5, 7)


async def test_a_cursor_is_durable_only_when_its_rows_are_synced(autojump_clock: trio.testing.MockClock) -> None:
    storage = SimDisk()
    reader = Numbers(server := Server(), ends=False)
    proxy = await SourceProxy.open(source_env(storage), live())
    storage.stall(True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(proxy.run, reader=reader))
        await trio.sleep(0.25)
        assert proxy.consumed == 8
        assert reader.durable_up_to == []
        storage.stall(False)
        await trio.sleep(0.01)
        assert reader.durable_up_to == [2, 8]  # two syncs: one was under way
        nursery.cancel_scope.cancel()
    again = Numbers(server, ends=False)
    with trio.move_on_after(0.05):
        await run(storage.restarted(), again)
    assert again.began_at == 8
    assert again.durable_up_to == [8, 12]  # what was there is said again, for the kill may have come before


class One(Resumable):
    """Hands over one chunk."""

    def __init__(self, chunk: RowChunk) -> None:
        self._chunk = chunk

    async def read(self, env: Env, accept: Accept) -> None:
        await accept(self._chunk)


class OneOfALine(Live):
    def __init__(self, chunk: RowChunk) -> None:
        self._chunk = chunk

    async def read(self, env: Env, accept: Accept) -> None:
        await accept(self._chunk)


def chunk(cursor: bytes) -> RowChunk:
    names = ["x" * 3_000 + str(n) for n in range(40)]
    ts = Column.from_list(list(range(40)), EVENTS["ts"].type)
    return RowChunk(0, 40, ts.values, (ts, Column.from_list(names, EVENTS["name"].type)), [], None, cursor)


async def test_a_chunk_with_a_cursor_is_one_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replicas.source.live_source.RECORD_ROWS_BYTES", 10_000)
    storage = SimDisk()
    await run(storage, One(chunk(b"c")))
    records = [decode_source_state(r.body) for r in read_log(storage, FOLDER)]
    assert {(s.last_id, s.cursor) for s in records} == {(40, b"c")}


@pytest.mark.parametrize(
    ("reader", "said"),
    [
        (One(chunk(b"")), "One gave a chunk without a cursor; expected one behind each chunk"),
        (OneOfALine(chunk(b"c")), "OneOfALine gave a chunk with a cursor; expected none"),
        (One(chunk(bytes(CURSOR_BYTES_MAX + 1))), "a cursor of 65537 bytes; expected at most 65536"),
    ],
)
async def test_a_chunk_that_breaks_the_rule_is_refused(reader: Live, said: str) -> None:
    storage = SimDisk()
    proxy, published = await run(storage, reader)
    assert said in str(proxy.fault)
    assert rows_of(published) == []


async def test_chunk_with_malformed_row_is_refused_whole_if_it_stops(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """So that all of it comes again when the configuration skips such rows, or the server has better ones."""
    server, storage = Server(), SimDisk()
    for _ in range(2):
        proxy, _ = await run(storage, Numbers(server), live(on_malformed="stop"))
        assert "no number" in str(proxy.fault)
        storage = storage.restarted()
        assert logged(storage) == ["r0", "r1"]
    await run(storage, Numbers(server))
    assert logged(storage) == EXPECTED


class Forgetful(One):
    """Goes on though a chunk was refused."""

    async def read(self, env: Env, accept: Accept) -> None:
        for cursor in (b"1", b"", b"3"):
            self._chunk = RowChunk(0, 0, None, self._chunk.slice(0, 0), [], None, cursor)
            await accept(self._chunk)


async def test_nothing_is_taken_behind_a_chunk_that_was_refused() -> None:
    storage = SimDisk()
    await run(storage, Forgetful(chunk(b"")))
    assert {decode_source_state(r.body).cursor for r in read_log(storage, FOLDER)} == {b"1"}


class Backward(One):
    """Counts fewer rows after a chunk than before it."""

    async def read(self, env: Env, accept: Accept) -> None:
        await accept(self._chunk)
        await accept(RowChunk(10, 0, None, self._chunk.slice(0, 0), [], None, b"d"))


async def test_a_reader_whose_count_of_rows_falls_is_refused() -> None:
    storage = SimDisk()
    proxy, _ = await run(storage, Backward(chunk(b"c")))
    assert "0 rows of -30 of the reader" in str(proxy.fault)
    states = [decode_source_state(r.body) for r in read_log(storage, FOLDER)]
    assert {(s.consumed, s.cursor) for s in states} == {(40, b"c")}


class Away(Numbers):
    """Its server does not answer for a minute, between two rows that are a second apart."""

    async def read(self, env: Env, accept: Accept) -> None:
        await accept(self._at(env.clock.wall_us(), b"1"))
        self.away = "numbers at 127.0.0.1:1 does not answer: connection refused; trying again"
        await trio.sleep(60)
        self.away = ""
        await accept(self._at(env.clock.wall_us() - 59 * SECOND, b"2"))
        await trio.sleep(0.5)

    def _at(self, event_us: int, cursor: bytes) -> RowChunk:
        ts = Column.from_list([event_us], EVENTS["ts"].type)
        name = Column.from_list(["r"], EVENTS["name"].type)
        return RowChunk(int(cursor) - 1, 1, ts.values, (ts, name), [], None, cursor)


class FirstReading(Away):
    """Reads rows that were there before, with a minute between two of them."""

    async def read(self, env: Env, accept: Accept) -> None:
        self.first_reading = True
        await accept(self._at(env.clock.wall_us(), b"1"))
        await trio.sleep(60)
        await accept(self._at(env.clock.wall_us() - 59 * SECOND, b"2"))
        self.first_reading = False
        await trio.sleep(2)


@pytest.mark.parametrize("to_now", [False, True])
async def test_time_of_the_first_reading_is_no_silence(to_now: bool, autojump_clock: trio.testing.MockClock) -> None:
    of = live(watermark=Watermark.DATA, idle_us=SECOND, idle_to_now=to_now, boundary_us=SECOND // 10)
    proxy = await SourceProxy.open(source_env(epoch_us=1_700_000_000 * SECOND), of)
    await proxy.run(None, reader=FirstReading(Server()))
    assert (proxy.last_id, proxy.status().late) == (2, 0)


async def test_time_without_the_server_is_no_silence(autojump_clock: trio.testing.MockClock) -> None:
    storage, told, notes, away = SimDisk(), list[str](), list[str](), list[str]()
    of = live(watermark=Watermark.DATA, idle_us=SECOND, boundary_us=SECOND // 10)
    proxy = await SourceProxy.open(source_env(storage, epoch_us=1_700_000_000 * SECOND), of)

    async def look() -> None:
        for _ in range(3):
            await trio.sleep(25)
            notes.append(proxy.status().note)
            away.append(proxy.away)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(look)
        await proxy.run(None, told.append, reader=Away(Server()))
    assert proxy.status().late == 0
    assert proxy.last_id == 2
    (said,) = told
    assert said == "source events: numbers at 127.0.0.1:1 does not answer: connection refused; trying again"
    assert notes == [said, said, ""]
    assert [f"source events: {why}" if why else "" for why in away] == notes
