"""Late rows go to a sink of their own: each once, with its id in the log, wherever the source is killed (E8)."""

from __future__ import annotations

import errno
import json
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path, PurePosixPath
from random import Random

import numpy as np
import pytest
import trio
import trio.testing

from replicas.connectors import Resumable, RowChunk
from replicas.connectors.sink_registry import Place
from replicas.link.signal import Signal
from replicas.simulation.world.disk import SimDisk, torn
from replicas.source.late_rows import LATE_US, LateRows, late_rows, late_schema
from replicas.source.own_sink import OwnSink, own_channel
from replicas.source.proxy import SourceProxy
from spe.errors import LogError
from spe.plan.plan import Retain, Source, Watermark
from spe.runtime.env import Env
from spe.stream.batch import Batch, Column
from spe.stream.ids import Channel
from spe.stream.names import Kind, StreamId
from tests.simulation.test_cluster import make_plan
from tests.support.source_env import source_env
from tests.support.streams import parse
from tests.unit.replicas.source.test_proxy import EVENTS, source

ROWS = 120
#: Every seventh row is 35 µs behind, of which 10 are allowed.
EVENTS_US = [10 * n - (35 if n % 7 == 3 else 0) for n in range(ROWS)]
PLAN = make_plan(1).plan
FILE = PurePosixPath("sinks", "late", "events.late.0.jsonl")


class Behind(Resumable):
    """Rows of which some are late, three at a time."""

    async def read(self, env: Env, accept: Callable[[RowChunk], Awaitable[None]]) -> None:
        first, at = 0, int(self.cursor or b"0")
        while at < ROWS:
            stop = min(at + 3, ROWS)
            ts = Column.from_list(EVENTS_US[at:stop], EVENTS["ts"].type)
            names = Column.from_list([f"r{n}" for n in range(at, stop)], EVENTS["name"].type)
            await accept(RowChunk(first, stop - at, ts.values, (ts, names), [], None, str(stop).encode()))
            first, at = first + stop - at, stop
            await trio.sleep(0.1)
        await trio.sleep_forever()


def of(**changes: object) -> Source:
    return source(
        {"kind": "stdin"},
        disorder_us=10,
        watermark=Watermark.DATA,
        late={"kind": "jsonl", "path": "late", "mode": "stable"},
        **changes,
    )


def place(storage: SimDisk) -> Place:
    return lambda path: (storage, PurePosixPath("sinks", *path.parts))


def sink_of(env: Env, proxy: SourceProxy, place: Place, safe: list[int] | None = None) -> OwnSink:
    told = [] if safe is None else safe
    return OwnSink(env, PLAN, of(), LateRows(of(), proxy), proxy.identity, place, Path(), told.append)


async def run(storage: SimDisk, seconds: float, safe: list[int] | None = None) -> OwnSink:
    """A source and its late rows for some time; then it is killed."""
    env, signal = source_env(storage), Signal()
    proxy = await SourceProxy.open(env, of())
    late = sink_of(env, proxy, place(storage), [] if safe is None else safe)
    with trio.move_on_after(seconds):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(late.run, signal)
            await proxy.run(lambda elements: signal.wake(), reader=Behind())
    return late


def lines(storage: SimDisk) -> list[dict[str, object]]:
    return [json.loads(line) for line in storage.read(FILE).decode().splitlines()]


#: Ids of rows whose time is later than their own.
EXPECTED = [n + 1 for n in range(ROWS) if n % 7 == 3]


def test_late_rows_are_those_with_a_changed_time() -> None:
    (batch,) = [e for e in parse("S1/5a S2/9b S3/9c") if isinstance(e, Batch)]
    times = Column(np.array([5, 3, 9], np.int64))
    rows = type(batch.rows)(batch.rows.time, batch.rows.t_max, (times, *batch.rows.columns))
    found = late_rows(Batch(Kind.STABLE, 0, 3, None, rows), 0)
    assert found.row_ids().tolist() == [2]
    assert (found.from_id, found.upto_id) == (0, 3), "the sink knows how far it has looked"
    assert found.rows.columns[-1].to_list() == [6]
    assert late_schema(EVENTS).names == (*EVENTS.names, LATE_US)
    assert own_channel(StreamId("events"), "late") == Channel(StreamId("events.late"), 0)


async def test_each_late_row_is_there_with_its_id_and_by_how_much(autojump_clock: trio.testing.MockClock) -> None:
    storage, safe = SimDisk(), list[int]()
    await run(storage, 10, safe)
    found = lines(storage)
    assert [line["_id"] for line in found] == EXPECTED
    assert {line[LATE_US] for line in found} == {15}
    assert [line["name"] for line in found] == [f"r{n - 1}" for n in EXPECTED]
    assert safe == sorted(safe)
    assert safe[-1] == ROWS, "also what holds no late row needs to be kept no more"


@pytest.mark.parametrize("power", [False, True], ids=["killed", "power lost"])
@pytest.mark.parametrize("seed", range(3))
async def test_over_crashes_each_is_there_once(seed: int, power: bool, autojump_clock: trio.testing.MockClock) -> None:
    random, storage = Random(seed), SimDisk()
    for _ in range(8):
        storage.sync_s = random.choice([0.0, 0.03, 0.25])
        safe: list[int] = []
        await run(storage, random.choice([0.05, 0.4, 1.1, 1.3, 2.5]), safe)
        if power:
            storage = storage.power_loss(lambda _, synced, written: torn(random, synced, written))
        else:
            storage = storage.restarted()
        if safe and storage.exists(FILE):
            written = [line for line in storage.read(FILE).decode(errors="replace").split("\n") if line.startswith("{")]
            assert len(written) >= sum(n <= safe[-1] for n in EXPECTED), "what was safe is there"
    await run(storage, 8)
    assert [line["_id"] for line in lines(storage)] == EXPECTED


async def test_a_full_disk_is_waited_for_and_holds_the_log(autojump_clock: trio.testing.MockClock) -> None:
    logs, files, safe = SimDisk(), SimDisk(), list[int]()
    env, signal = source_env(logs), Signal()
    proxy = await SourceProxy.open(env, of())
    files.space_left = 2_000
    late = sink_of(env, proxy, place(files), safe)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(late.run, signal)
        nursery.start_soon(lambda: proxy.run(lambda elements: signal.wake(), reader=Behind()))
        await trio.sleep(8)
        assert "No space left" in late.why
        assert safe[-1] < ROWS
        files.space_left = None
        await trio.sleep(3)
        assert late.why == ""
        assert safe[-1] == ROWS
        nursery.cancel_scope.cancel()
    assert [line["_id"] for line in lines(files)] == EXPECTED


async def test_rows_of_another_log_are_refused_and_the_source_goes_on(autojump_clock: trio.testing.MockClock) -> None:
    storage = SimDisk()
    await run(storage, 3)
    other = SimDisk()
    for path, file in storage.restarted().files.items():
        if path.parts[0] == "sinks":
            other.files[path] = file
    proxy = await SourceProxy.open(source_env(other), of())
    assert proxy.identity
    proxy._writer  # noqa: B018
    env = source_env(other.restarted())
    env.random.seed(7)
    assert isinstance(env.storage, SimDisk)
    for path in [p for p in env.storage.files if p.parts[0] == "sources"]:
        del env.storage.files[path]
    proxy, signal = await SourceProxy.open(env, of()), Signal()
    late = sink_of(env, proxy, place(env.storage))
    with trio.move_on_after(2):
        await late.run(signal)
    assert "holds late rows of another log" in late.why


class Unreadable(LateRows):
    async def after(self, position: int) -> Sequence[Batch]:
        if position >= ROWS // 2:
            raise OSError(errno.EIO, "Input/output error")
        return await super().after(position)


async def test_unreadable_log_stops_sink_but_not_source(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """What the sink does not have is kept."""
    storage, safe = SimDisk(), list[int]()
    env, signal = source_env(storage), Signal()
    proxy = await SourceProxy.open(env, of())
    rows = Unreadable(of(), proxy)
    late = OwnSink(env, PLAN, of(), rows, proxy.identity, place(storage), Path(), safe.append)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(late.run, signal)
        nursery.start_soon(lambda: proxy.run(lambda elements: signal.wake(), reader=Behind()))
        await trio.sleep(10)
        nursery.cancel_scope.cancel()
    assert "Input/output error" in late.why
    assert proxy.fault is None
    assert proxy.last_id == ROWS
    assert safe[-1] < ROWS


async def test_single_process_writes_a_folder(autojump_clock: trio.testing.MockClock) -> None:
    storage = SimDisk()
    proxy = await SourceProxy.open(source_env(storage), of())
    sink_of(source_env(storage), proxy, place(storage))
    with pytest.raises(LogError, match="is written by another process"):
        sink_of(source_env(storage), proxy, place(storage))


async def test_with_retain_the_log_waits_for_the_sink(autojump_clock: trio.testing.MockClock) -> None:
    storage = SimDisk()
    proxy = await SourceProxy.open(source_env(storage), of(retain=Retain(size_bytes=4_000, unproved=True)))
    with trio.move_on_after(10):
        await proxy.run(reader=Behind())
    retention = proxy.retention(lambda _: storage, ())
    retention.follow(PLAN, make_plan(1).directory)
    await retention.look()
    assert proxy.base_id == 0
    assert [h.holder for h in retention.status().holders] == ["the sink of late rows"]
    retention.acknowledged("the sink of late rows", 1, ROWS)
    await retention.look()
    assert proxy.base_id > 0
