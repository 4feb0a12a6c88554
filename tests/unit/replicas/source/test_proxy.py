"""A source proxy logs and syncs before it sends; the stream is the same at any pace, and exact after a restart."""

from __future__ import annotations

import errno
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import trio
import trio.testing

from replicas.connectors import Live, RowChunk
from replicas.simulation.world.disk import SimDisk
from replicas.source.history import SourceHistory
from replicas.source.proxy import SourceProxy
from replicas.source.reference_stream import REFERENCE_START_US, reference_elements
from spe.errors import LogCorrupt, LogError, SpeError
from spe.log import read_log
from spe.log import segmented as log_module
from spe.log.format import Position
from spe.log.source_log import SourceState, decode_source_state, read_source_log, source_folder
from spe.plan.generators import GENERATORS
from spe.plan.plan import Source, Watermark
from spe.runtime.env import Env
from spe.stream import text_size
from spe.stream.batch import Batch, Boundary, Column, Element, Rows
from spe.stream.names import Kind, StreamId
from spe.stream.schema import Schema
from spe.stream.times import BEFORE_TIME, END_OF_TIME, SECOND
from tests.support.source_env import ListTrace, source_env

STREAM = StreamId("events")
FOLDER = source_folder(STREAM)
EVENTS = Schema.of(ts="timestamp!", name="string")


def source(reader: Mapping[str, Any], schema: Schema = EVENTS, **changes: Any) -> Source:
    made = Source(
        stream=STREAM,
        schema=schema,
        boundary_us=10,
        disorder_us=0,
        ahead_us=None,
        time="ts",
        reader=reader,
        replay={"max": True},
        on_malformed="skip",
    )
    return replace(made, **changes)


def csv_source(folder: Path, *events: object, **changes: Any) -> Source:
    """A source that replays a file with these event times, microseconds."""
    path = folder / "events.csv"
    path.write_text("ts,name\n" + "".join(f"{e},n{i}\n" for i, e in enumerate(events, 1)))
    return source({"kind": "csv", "path": str(path), "timestamps": "us"}, **changes)


def show(elements: list[Element]) -> str:
    """``1/10a``: tuple id / time and name; ``B20(3)``: a boundary and the last id before it."""
    out = []
    for element in elements:
        if isinstance(element, Batch):
            assert element.kind is Kind.STABLE
            names = element.rows.columns[-1].to_list()
            rows = zip(element.row_ids().tolist(), element.rows.time.tolist(), names)
            out += [f"{i}/{time}{name or ''}" for i, time, name in rows]
        elif isinstance(element, Boundary):
            time = "END" if element.time == END_OF_TIME else str(element.time)
            out.append(f"B{time}({element.upto_id})")
    return " ".join(out)


def rows_of(elements: list[Element]) -> list[tuple[Any, ...]]:
    """The stable stream without its boundaries and cuts: id, time, attributes."""
    return [
        (i, time, *row)
        for e in elements
        if isinstance(e, Batch)
        for i, time, row in zip(e.row_ids().tolist(), e.rows.time.tolist(), e.rows.to_tuples())
    ]


async def run_to_end(env: Env, of: Source, **options: Any) -> tuple[SourceProxy, list[Element]]:
    """Runs a proxy until its input ends; what it published."""
    proxy = await SourceProxy.open(env, of, **options)
    published: list[Element] = []
    await proxy.run(published.extend)
    return proxy, published


def elements_from(proxy: SourceProxy, after_id: int) -> Iterator[Element]:
    """Everything published so far after a tuple."""
    after_us = BEFORE_TIME
    while elements := proxy.read_from(after_id, after_us):
        yield from elements
        for element in elements:
            if isinstance(element, Batch):
                after_id = element.upto_id
            elif isinstance(element, Boundary):
                after_us = element.time


def assert_a_true_stream(elements: list[Element], start_id: int = 0) -> None:
    """Ids without gap, boundaries that grow, and no tuple behind one."""
    last_id, bound = start_id, BEFORE_TIME
    for element in elements:
        if isinstance(element, Batch):
            assert element.from_id == last_id
            assert element.rows.time.min() >= bound
            last_id = element.upto_id
        elif isinstance(element, Boundary):
            assert element.time > bound
            assert element.upto_id == last_id
            bound = element.time


class Scripted(Live):
    """A live reader that plays a list of (seconds to wait, event times or None, number of rows)."""

    def __init__(self, steps: list[tuple[float, list[int] | None, int]]) -> None:
        self._steps = steps

    async def read(self, env: Env, accept: Callable[[RowChunk], Awaitable[None]]) -> None:
        first = 0
        for wait, events, n in self._steps:
            await trio.sleep(wait)
            names = Column.from_list([f"r{first + i}" for i in range(n)], EVENTS["name"].type)
            ts = Column.from_list(events or [0] * n, EVENTS["ts"].type)
            await accept(RowChunk(first, n, None if events is None else ts.values, (ts, names), []))
            first += n


@pytest.fixture
def live(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Source]:
    def make(*steps: tuple[float, list[int] | None, int], **changes: Any) -> Source:
        monkeypatch.setattr("replicas.source.proxy.open_reader", lambda _source, _start: Scripted(list(steps)))
        return replace(source({"kind": "stdin"}), **changes)

    return make


class OneChunk(Live):
    """Hands over all rows at once."""

    def __init__(self, chunk: RowChunk) -> None:
        self._chunk = chunk

    async def read(self, env: Env, accept: Callable[[RowChunk], Awaitable[None]]) -> None:
        await accept(self._chunk)


def chunk_of_names(names: list[str]) -> RowChunk:
    ts = Column.from_list(list(range(len(names))), EVENTS["ts"].type)
    return RowChunk(0, len(names), ts.values, (ts, Column.from_list(names, EVENTS["name"].type)), [])


# -- what is published ------------------------------------------------------------------------------------------


async def test_a_file_becomes_a_stable_stream_with_an_end(tmp_path: Path) -> None:
    """Events 10, 20, 12, 17, 30 with disorder 4.  Whether B20 is sent before the end depends on the disk."""
    of = csv_source(tmp_path, 10, 20, 12, 17, 30, disorder_us=4)
    proxy, published = await run_to_end(source_env(), of)
    assert show(published).replace(" B20(5)", "") == "1/10n1 2/20n2 3/16n3 4/17n4 5/30n5 BEND(5)"
    assert (proxy.last_id, proxy.frontier, proxy.ended, proxy.fault) == (5, END_OF_TIME, True, None)
    status = proxy.status()
    assert (status.malformed, status.refused_ahead, status.late, status.late_by_us) == (0, 0, 1, 8)
    assert show(list(reference_elements(of))) == "1/10n1 2/20n2 3/16n3 4/17n4 5/30n5 B20(5) BEND(5)"


async def test_nothing_is_published_before_it_is_synced(tmp_path: Path) -> None:
    storage = SimDisk()
    proxy = await SourceProxy.open(source_env(storage), csv_source(tmp_path, 1, 2, 3))
    storage.sync_gate = trio.Event()
    published: list[Element] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(proxy.run, published.extend)
        await trio.testing.wait_all_tasks_blocked()
        assert published == []
        assert (proxy.last_id, proxy.frontier) == (0, BEFORE_TIME)
        assert proxy.read_from(0) == []
        storage.sync_gate.set()
    assert show(published) == "1/1n1 2/2n2 3/3n3 BEND(3)"


@pytest.mark.parametrize("replay", [{"max": True}, {"speed": 1.0}, {"speed": 40.0}, {"rate": 300.0}, {}])
async def test_the_stream_equals_the_reference_at_any_pace(
    replay: Mapping[str, Any], autojump_clock: trio.testing.MockClock
) -> None:
    reader = {"kind": "generator", "generator": "readings", "start": 0, "rate": 200, "count": 900, "disorder": "50ms"}
    of = source(
        reader,
        GENERATORS["readings"].schema,
        boundary_us=20_000,
        disorder_us=30_000,
        replay=replay,
    )
    env = source_env()
    _, published = await run_to_end(env, of)
    assert_a_true_stream(published)
    assert rows_of(published) == rows_of(list(reference_elements(of)))
    logged = list(read_source_log(env.storage, FOLDER, of.schema))
    assert_a_true_stream(logged)
    assert rows_of(logged) == rows_of(published)


async def test_a_replay_at_its_own_pace_takes_as_long_as_its_events(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """Tuples come when they are due; during the gap boundaries continue at their interval."""
    of = csv_source(
        tmp_path, 0, 10 * SECOND, 10 * SECOND, replay={"speed": 2.0}, boundary_us=SECOND, disorder_us=SECOND
    )
    arrivals: list[tuple[float, str]] = []
    proxy = await SourceProxy.open(source_env(), of)
    start = trio.current_time()
    await proxy.run(lambda e: arrivals.append((round(trio.current_time() - start, 2), show(e))))
    tuples = [(at, text) for at, text in arrivals if "/" in text]
    assert [at for at, _ in tuples] == [0.0, 5.0]
    boundaries = [(at, text) for at, text in arrivals if "/" not in text and "END" not in text]
    assert boundaries == [(0.5 * k, f"B{(k - 1) * SECOND}(1)") for k in range(1, 10)]


async def test_a_gap_is_leased_once(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """The next event time is known, so one record carries the tuple and the promise over the whole gap."""
    storage = SimDisk()
    of = csv_source(tmp_path, 0, 60 * SECOND, replay={"speed": 1.0}, boundary_us=100_000)
    _, published = await run_to_end(source_env(storage), of)
    assert sum(isinstance(e, Boundary) for e in published) > 590
    assert len(list(read_source_log(storage, FOLDER, EVENTS))) <= 6
    assert_a_true_stream(published)


async def test_a_fixed_rate_ignores_the_event_times(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    of = csv_source(tmp_path, 0, 1, 3_600 * SECOND, replay={"rate": 2.0})
    start = trio.current_time()
    await run_to_end(source_env(), of)
    assert trio.current_time() - start == pytest.approx(1.0, abs=0.02)


async def test_an_origin_keeps_sources_in_step(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """The first tuple waits for its time on the common origin; boundaries tell that nothing comes before."""
    of = csv_source(tmp_path, 5 * SECOND, replay={"speed": 1.0, "origin_us": 0}, boundary_us=SECOND)
    start = trio.current_time()
    _, published = await run_to_end(source_env(), of)
    assert trio.current_time() - start == pytest.approx(5.0, abs=0.02)
    assert show(published[:-2]).startswith("B0(0) B1000000(0) B2000000(0)")


async def test_a_replay_reports_a_first_tuple_far_in_the_future(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    of = csv_source(tmp_path, 3_600 * SECOND, replay={"speed": 3.0, "origin_us": 0}, boundary_us=600 * SECOND)
    proxy, told = await SourceProxy.open(source_env(), of), list[str]()
    await proxy.run(on_note=told.append)
    assert told == [proxy.note]
    assert proxy.note == (
        f"{of.stream}: first tuple 1970-01-01T01:00:00 is due in 20m (origin 1970-01-01T00:00:00, speed 3)"
    )


async def test_a_generator_without_start_follows_the_wall_clock(
    autojump_clock: trio.testing.MockClock,
) -> None:
    reader = {"kind": "generator", "generator": "sequence", "rate": 10, "duration": "2s"}
    env = source_env(epoch_us=1_000 * SECOND)
    of = source(reader, GENERATORS["sequence"].schema, replay={"speed": 1.0})
    proxy = await SourceProxy.open(env, of)
    delays: list[int] = []

    def publish(elements: list[Element]) -> None:
        delays.extend(env.clock.wall_us() - row[1] for row in rows_of(elements))

    await proxy.run(publish)
    assert len(delays) == 20
    assert min(delays) >= 0
    assert max(delays) <= 10_000


# -- live input -------------------------------------------------------------------------------------------------


async def test_a_silent_live_source_promises_by_the_clock(
    live: Callable[..., Source], autojump_clock: trio.testing.MockClock
) -> None:
    """Each promise is logged before it is sent, so a restart stays above it."""
    storage = SimDisk()
    of = live((0.35, None, 1), (0.29, None, 1), boundary_us=100_000, disorder_us=50_000)
    _, published = await run_to_end(source_env(storage, epoch_us=SECOND), of)
    assert_a_true_stream(published)
    times = [e.time - SECOND for e in published if isinstance(e, Boundary)]
    assert times[-1] == END_OF_TIME - SECOND
    assert times[:-1] == [-100_000, 0, 100_000, 200_000, 300_000, 400_000, 500_000]
    logged = list(read_source_log(storage, FOLDER, EVENTS))
    assert [e.time - SECOND for e in logged if isinstance(e, Boundary)] == times


async def test_a_lease_is_logged_before_it_is_promised() -> None:
    """S2: otherwise, after a crash, a tuple below the promise would be taken by some replicas only."""
    storage = SimDisk()
    proxy = await SourceProxy.open(source_env(storage), replace(source({"kind": "stdin"}), boundary_us=10))
    published: list[Element] = []
    writer = proxy._writer
    writer.publish = published.extend
    writer.lease(100)
    writer.advance()
    assert published == []
    writer.close()
    await writer.commit()
    writer.advance()
    assert [e.time for e in published if isinstance(e, Boundary)] == [100]
    assert [e.time for e in read_source_log(storage, FOLDER, EVENTS) if isinstance(e, Boundary)] == [100]


async def test_arrivals_without_event_time_are_stamped_by_the_clock(
    live: Callable[..., Source], autojump_clock: trio.testing.MockClock
) -> None:
    of = live((0.25, None, 2), (0.25, None, 1), time=None, boundary_us=SECOND)
    _, published = await run_to_end(source_env(epoch_us=SECOND), of)
    assert [time for _, time, *_ in rows_of(published)] == [1_250_000, 1_250_000, 1_500_000]


async def test_times_too_far_ahead_of_clock_are_refused_and_counted(
    live: Callable[..., Source], autojump_clock: trio.testing.MockClock
) -> None:
    of = live((0.0, [5, 2 * SECOND + 1, 7], 3), ahead_us=2 * SECOND)
    trace = ListTrace()
    proxy, published = await run_to_end(source_env(trace=trace), of)
    assert [row[-1] for row in rows_of(published)] == ["r0", "r2"]
    assert proxy.status().refused_ahead == 1
    reason = "ts: 1970-01-01T00:00:02.000001 is too far ahead of the clock"
    assert trace.named("rows_refused") == [{"stream": STREAM, "count": 1, "line": 2, "reason": reason}]


# -- restart ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("crash_at", [0.3, 0.7, 1.31])
async def test_a_restart_continues_where_the_log_ends(crash_at: float, autojump_clock: trio.testing.MockClock) -> None:
    """Killed during the replay: both runs together make the stream of a run without failures."""
    reader = {"kind": "generator", "generator": "orders", "start": 0, "rate": 100, "count": 200, "disorder": "40ms"}
    of = source(reader, GENERATORS["orders"].schema, boundary_us=20_000, disorder_us=30_000, replay={"speed": 1.0})
    storage = SimDisk()
    proxy = await SourceProxy.open(source_env(storage), of)
    first_life: list[Element] = []
    with trio.move_on_after(crash_at):
        await proxy.run(first_life.extend)
    storage = storage.power_loss(lambda _path, synced, _written: synced)

    proxy = await SourceProxy.open(source_env(storage), of)
    assert proxy.last_id >= len(rows_of(first_life)) > 0
    lost = rows_of(list(elements_from(proxy, len(rows_of(first_life)))))
    second_life: list[Element] = []
    await proxy.run(second_life.extend)
    assert rows_of(first_life) + lost + rows_of(second_life) == rows_of(list(reference_elements(of)))
    assert_a_true_stream(list(elements_from(proxy, 0)))


async def test_rows_due_during_an_outage_are_sent_at_once(
    autojump_clock: trio.testing.MockClock,
) -> None:
    reader = {"kind": "generator", "generator": "sequence", "rate": 100, "duration": "4s"}
    of = source(reader, GENERATORS["sequence"].schema, replay={"speed": 1.0}, boundary_us=10_000)
    storage = SimDisk()
    env = source_env(storage)
    start = trio.current_time()
    proxy = await SourceProxy.open(env, of)
    with trio.move_on_after(1.0):
        await proxy.run()
    await trio.sleep(2.0)
    proxy, _ = await run_to_end(source_env(storage.restarted()), of)
    times = [time for _, time, *_ in rows_of(list(elements_from(proxy, 0)))]
    assert times == [times[0] + i * 10_000 for i in range(400)]
    assert trio.current_time() - start == pytest.approx(4.0, abs=0.02)


async def test_a_wall_clock_that_was_set_back_does_not_stop_a_replay(
    autojump_clock: trio.testing.MockClock,
) -> None:
    reader = {"kind": "generator", "generator": "sequence", "rate": 100, "duration": "2s"}
    of = source(reader, GENERATORS["sequence"].schema, replay={"speed": 1.0}, boundary_us=10_000)
    storage = SimDisk()
    start = trio.current_time()
    proxy = await SourceProxy.open(source_env(storage, epoch_us=7_200 * SECOND), of)
    with trio.move_on_after(1.0):
        await proxy.run()
    proxy, _ = await run_to_end(source_env(storage.restarted(), epoch_us=3_600 * SECOND), of)
    assert proxy.last_id == 200
    assert trio.current_time() - start < 2.1


async def test_a_restart_stays_above_earlier_promises(
    live: Callable[..., Source], autojump_clock: trio.testing.MockClock
) -> None:
    """Through a real log: leased up to 1.9 s, then an event at 0.5 s."""
    storage = SimDisk()
    proxy = await SourceProxy.open(source_env(storage), live((10.0, None, 0), boundary_us=100_000))
    with trio.move_on_after(1.95):
        await proxy.run()
    promised = proxy.frontier
    assert promised == 1_900_000

    of = live((0.0, [500_000], 1), boundary_us=100_000)
    proxy = await SourceProxy.open(source_env(storage.restarted(), epoch_us=-5 * SECOND), of)
    assert proxy.frontier == promised
    published: list[Element] = []
    await proxy.run(published.extend)
    assert rows_of(published)[0][:2] == (1, promised)


async def test_a_promise_holds_after_a_restart_with_more_disorder(
    live: Callable[..., Source], autojump_clock: trio.testing.MockClock
) -> None:
    storage = SimDisk()
    first = live((0.0, [500], 1), (10.0, None, 0), boundary_us=100, watermark=Watermark.DATA)
    proxy = await SourceProxy.open(source_env(storage), first)
    with trio.move_on_after(1.0):
        await proxy.run()
    assert proxy.frontier == 500

    second = live((0.0, [50], 1), boundary_us=100, disorder_us=400, watermark=Watermark.DATA)
    _, published = await run_to_end(source_env(storage.restarted()), second)
    assert rows_of(published)[0][:2] == (2, 500)


async def test_a_restart_in_a_leased_gap_does_not_publish_the_future(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    storage = SimDisk()
    of = csv_source(tmp_path, 0, 100 * SECOND, replay={"speed": 1.0}, boundary_us=SECOND)
    proxy = await SourceProxy.open(source_env(storage), of)
    with trio.move_on_after(3.5):
        await proxy.run()
    proxy = await SourceProxy.open(source_env(storage := storage.restarted()), of)
    assert proxy.frontier == 0
    with trio.move_on_after(2.0):
        await proxy.run()
    assert proxy.frontier == 5 * SECOND


async def test_an_ended_source_stays_ended(tmp_path: Path) -> None:
    storage = SimDisk()
    of = csv_source(tmp_path, 1, 2)
    await run_to_end(source_env(storage), of)
    proxy, published = await run_to_end(source_env(storage.restarted()), of)
    assert published == []
    assert proxy.ended
    assert show(proxy.read_from(0)) == "1/1n1 2/2n2 BEND(2)"


async def test_a_log_of_another_schema_is_refused(tmp_path: Path) -> None:
    storage = SimDisk()
    await run_to_end(source_env(storage), csv_source(tmp_path, 1))
    other = csv_source(tmp_path, 1, schema=Schema.of(ts="timestamp!", name="int64"))
    with pytest.raises(SpeError, match="sources/events: the log holds"):
        await SourceProxy.open(source_env(storage.restarted()), other)


# -- reading back -----------------------------------------------------------------------------------------------


async def filled(tail_bytes: int, monkeypatch: pytest.MonkeyPatch) -> tuple[SourceProxy, list[tuple[Any, ...]]]:
    """A proxy with 2,000 tuples in many small records; the caller chooses how much is in memory."""
    monkeypatch.setattr("replicas.source.history._INDEX_BYTES", 4_000)
    monkeypatch.setattr("replicas.source.history._READ_BYTES", 3_000)
    reader = {"kind": "generator", "generator": "pages", "start": 0, "rate": 17, "count": 2_000, "disorder": "1s"}
    of = source(reader, GENERATORS["pages"].schema, boundary_us=100_000, disorder_us=400_000)
    proxy, published = await run_to_end(source_env(), of, tail_bytes=tail_bytes)
    assert len(published) > 100
    return proxy, rows_of(published)


@pytest.mark.parametrize("tail_bytes", [0, 5_000, 1 << 30])
async def test_any_id_can_be_read_from_memory_or_log(tail_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    proxy, rows = await filled(tail_bytes, monkeypatch)
    for after_id in (0, 1, 16, 17, 18, 999, 1_000, 1_983, 1_999):
        elements = list(elements_from(proxy, after_id))
        assert_a_true_stream(elements, start_id=after_id)
        assert rows_of(elements) == rows[after_id:]
        end = elements[-1]
        assert isinstance(end, Boundary)
        assert (end.time, end.upto_id) == (END_OF_TIME, 2_000)
    assert proxy.read_from(2_000, END_OF_TIME) == []
    assert show(proxy.read_from(2_000, 0)) == "BEND(2000)"


@pytest.mark.parametrize("tail_bytes", [0, 1 << 30])
async def test_a_read_is_bounded(tail_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    proxy, rows = await filled(tail_bytes, monkeypatch)
    elements: list[Element] = []
    after_id, after_us = 0, BEFORE_TIME
    while step := proxy.read_from(after_id, after_us, limit_bytes=1_500):
        assert len(rows_of(step)) <= 102
        elements += step
        boundary = step[-1]
        assert isinstance(boundary, Boundary)
        after_id, after_us = boundary.upto_id, boundary.time
    assert_a_true_stream(elements)
    assert rows_of(elements) == rows


async def test_a_boundary_read_back_is_not_ahead_of_published_ones(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """The log already has a lease over the whole gap; a consumer that joins now must not see it."""
    of = csv_source(tmp_path, 0, 100 * SECOND, replay={"speed": 1.0}, boundary_us=SECOND)
    storage = SimDisk()
    proxy = await SourceProxy.open(source_env(storage), of)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(proxy.run)
        await trio.sleep(3.5)
        assert proxy.frontier == 3 * SECOND
        assert show(proxy.read_from(0)) == f"1/0n1 B{3 * SECOND}(1)"
        nursery.cancel_scope.cancel()
    leased = [e.time for e in read_source_log(storage, FOLDER, EVENTS) if isinstance(e, Boundary)]
    assert leased[-1] == 100 * SECOND


async def test_a_damaged_schema_file_is_named() -> None:
    storage = SimDisk()
    reader = {"kind": "generator", "generator": "sequence", "start": 0, "count": 5}
    await run_to_end(source_env(storage), source(reader, GENERATORS["sequence"].schema))
    storage = storage.restarted()
    await storage.write_atomic(FOLDER / "schema.json", b"{")
    with pytest.raises(SpeError, match=r"schema\.json: expected the schema of the log as JSON"):
        await SourceProxy.open(source_env(storage), source(reader, GENERATORS["sequence"].schema))


async def test_damage_under_a_running_proxy_is_never_served() -> None:
    storage = SimDisk()
    reader = {"kind": "generator", "generator": "sequence", "start": 0, "count": 50}
    proxy, _ = await run_to_end(source_env(storage), source(reader, GENERATORS["sequence"].schema), tail_bytes=0)
    (path,) = (p for p in storage.files if p.suffix == ".seg")
    storage.files[path].written[500] ^= 1
    with pytest.raises(LogCorrupt, match="at offset"):
        proxy.read_from(0)


# -- faults -----------------------------------------------------------------------------------------------------


async def test_malformed_rows_are_counted_reported_and_stored(tmp_path: Path) -> None:
    storage, trace = SimDisk(), ListTrace()
    proxy, published = await run_to_end(source_env(storage, trace=trace), csv_source(tmp_path, 1, "x", 3, "y"))
    assert show(published) == "1/1n1 2/3n3 BEND(2)"
    assert proxy.status().malformed == 2
    kept = storage.read(PurePosixPath("malformed/events.jsonl")).decode().splitlines()
    reason = "ts: expected a number of us since the epoch, got 'x'"
    assert json.loads(kept[0]) == {"line": 3, "reason": reason, "text": "x,n2"}
    assert len(kept) == 2
    assert trace.named("rows_malformed") == [{"stream": STREAM, "count": 2, "line": 3, "reason": reason}]


async def test_row_with_too_much_text_is_malformed_and_names_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_size, "ROW_TEXT_BYTES", 4)
    (tmp_path / "e.jsonl").write_text("".join(f'{{"ts": {n}, "name": "{"é" * n}"}}\n' for n in (1, 3, 2)))
    of = source({"kind": "jsonl", "path": str(tmp_path / "e.jsonl"), "timestamps": "us"})
    trace = ListTrace()
    proxy, published = await run_to_end(source_env(trace=trace), of)
    assert show(published) == "1/1é 2/2éé BEND(2)"
    assert proxy.status().malformed == 1
    (event,) = trace.named("rows_malformed")
    assert event["reason"] == "6 bytes of text in one row; at most 4 can be sent"
    assert event["line"] == 2
    assert rows_of(list(reference_elements(of))) == rows_of(published)


@pytest.mark.parametrize("is_live", [False, True])
async def test_long_rows_are_divided_into_several_records(
    tmp_path: Path, live: Callable[..., Source], monkeypatch: pytest.MonkeyPatch, is_live: bool
) -> None:
    """One chunk of a reader may exceed the largest record of the log."""
    for module in ("proxy", "live_source"):
        monkeypatch.setattr(f"replicas.source.{module}.RECORD_ROWS_BYTES", 10_000)
    monkeypatch.setattr(log_module, "RECORD_BYTES_MAX", 20_000)
    names = ["x" * 3_000 + str(n) for n in range(40)]
    if is_live:
        chunk = chunk_of_names(names)
        monkeypatch.setattr("replicas.source.proxy.open_reader", lambda _source, _start: OneChunk(chunk))
        of = source({"kind": "stdin"})
    else:
        (tmp_path / "e.csv").write_text("ts,name\n" + "".join(f"{n},{name}\n" for n, name in enumerate(names)))
        of = source({"kind": "csv", "path": str(tmp_path / "e.csv"), "timestamps": "us"})
    storage = SimDisk()
    proxy, published = await run_to_end(source_env(storage), of)
    assert proxy.fault is None
    assert [row[-1] for row in rows_of(published)] == names
    records = [decode_source_state(r.body) for r in read_log(storage, FOLDER)]
    assert len(records) > 10
    assert all(state.consumed == state.last_id for state in records[:-1])


async def test_each_record_accounts_for_rejected_rows(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """Malformed and refused rows, also around a restart; those after the last tuple are in no record."""
    of = csv_source(tmp_path, 1, "x", 2, 2**62, 3, "y", "z", 4, "w", replay={"rate": 10})
    storage = SimDisk()
    with trio.move_on_after(0.15):
        await run_to_end(source_env(storage), of)
    assert [decode_source_state(r.body).last_id for r in read_log(storage, FOLDER)][-1] == 2
    storage = storage.restarted()
    await run_to_end(source_env(storage), of)
    records = [decode_source_state(r.body) for r in read_log(storage, FOLDER)]
    assert [s.consumed - (s.left_out or 0) - s.last_id for s in records] == [0] * len(records)
    assert (records[-1].last_id, records[-1].left_out) == (4, 5)


async def test_a_live_source_counts_its_rows_over_all_starts(
    live: Callable[..., Source], autojump_clock: trio.testing.MockClock
) -> None:
    storage = SimDisk()
    await run_to_end_of_rows(source_env(storage), live((0.0, [10, 20], 2), (10.0, None, 0)))
    await run_to_end_of_rows(source_env(storage := storage.restarted()), live((0.0, [30, 40, 50], 3), (10.0, None, 0)))
    states = [decode_source_state(r.body) for r in read_log(storage, FOLDER)]
    assert (states[-1].last_id, states[-1].consumed, states[-1].left_out) == (5, 5, 0)


async def run_to_end_of_rows(env: Env, of: Source) -> None:
    """Runs a proxy and kills it before its input ends."""
    proxy = await SourceProxy.open(env, of)
    with trio.move_on_after(5):
        await proxy.run()


async def test_a_malformed_row_stops_the_source_on_request(tmp_path: Path) -> None:
    of = csv_source(tmp_path, 1, "x", 2, "y", on_malformed="stop")
    proxy, published = await run_to_end(source_env(), of)
    assert "line 3: ts: expected" in str(proxy.fault)
    assert not proxy.ended
    assert proxy.status().malformed == 1
    elements = reference_elements(of)
    first = next(elements)
    assert isinstance(first, Batch)
    assert len(first) == 1
    assert rows_of(published) == rows_of([first])  # rows before it are sent
    with pytest.raises(SpeError, match="line 3: ts: expected"):
        list(elements)


async def test_a_malformed_row_does_not_hold_back_the_chunk_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("replicas.connectors.formats.csv.CHUNK_ROWS", 2)
    of = csv_source(tmp_path, 1, 2, 3, "x", 5, on_malformed="stop")
    proxy, published = await run_to_end(source_env(), of)
    assert "line 5: ts: expected" in str(proxy.fault)
    assert len(rows_of(published)) == 3


async def test_a_missing_file_is_reported_as_the_fault(tmp_path: Path) -> None:
    of = source({"kind": "csv", "path": str(tmp_path / "nowhere.csv")})
    proxy, _ = await run_to_end(source_env(), of)
    assert "nowhere.csv: cannot be read" in str(proxy.fault)


async def test_a_full_disk_stops_the_intake_until_there_is_room(
    autojump_clock: trio.testing.MockClock, capsys: pytest.CaptureFixture[str]
) -> None:
    """1. the disk is full for 90 s: only synced rows are published; 2. with room all rows come, each id once"""
    reader = {"kind": "generator", "generator": "sequence", "start": 0, "rate": 1000, "count": 5_000}
    of = source(reader, GENERATORS["sequence"].schema, replay={"speed": 1.0}, boundary_us=10_000)
    storage, trace = SimDisk(), ListTrace()
    proxy = await SourceProxy.open(source_env(storage, trace=trace), of)
    storage.space_left = 40_000
    published: list[Element] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(proxy.run, published.extend)
        await trio.sleep(95)
        assert 0 < proxy.last_id < 5_000
        assert rows_of(list(elements_from(proxy, 0))) == rows_of(published)
        lost = storage.power_loss(lambda _path, synced, _written: synced)
        kept = [e for e in read_source_log(lost, FOLDER, of.schema) if isinstance(e, Batch)]
        assert rows_of(kept) == rows_of(published)  # everything published is durable
        storage.space_left = None
    assert proxy.fault is None
    assert proxy.ended
    assert_a_true_stream(published)
    assert rows_of(published) == rows_of(list(reference_elements(of)))
    assert rows_of(list(elements_from(proxy, 0))) == rows_of(published)
    told = capsys.readouterr().err.splitlines()
    assert [line.split(": ")[0] for line in told] == ["source events"] * 3
    assert [line.endswith("waiting for room") for line in told] == [True, True, False]
    assert len(trace.named("disk_full")) == len(trace.named("disk_has_room")) == 1


@pytest.mark.parametrize("space", range(0, 400, 7))
async def test_writes_cut_short_by_a_full_disk_are_repeated(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, space: int
) -> None:
    """A record, the header of a segment or a mark."""
    storage = SimDisk()
    proxy = await SourceProxy.open(source_env(storage), csv_source(tmp_path, 1, 20, 40))
    storage.space_left = space
    published: list[Element] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(proxy.run, published.extend)
        await trio.sleep(3)
        storage.space_left = None
    assert proxy.fault is None
    assert [row[-1] for row in rows_of(published)] == ["n1", "n2", "n3"]
    again, _ = await run_to_end(source_env(storage.restarted()), csv_source(tmp_path, 1, 20, 40))
    assert rows_of(list(elements_from(again, 0))) == rows_of(published)


async def test_a_failed_sync_publishes_nothing_more(tmp_path: Path) -> None:
    storage = SimDisk()
    proxy = await SourceProxy.open(source_env(storage), csv_source(tmp_path, 1, 2))
    storage.sync_fails = True
    published: list[Element] = []
    await proxy.run(published.extend)
    assert isinstance(proxy.fault, LogError)
    assert published == []
    assert proxy.read_from(0) == []


async def test_a_full_disk_stops_a_live_source_until_there_is_room(
    live: Callable[..., Source], autojump_clock: trio.testing.MockClock
) -> None:
    storage = SimDisk()
    of = live((0.0, [1], 1), (0.0, [2], 1), watermark=Watermark.DATA)
    proxy = await SourceProxy.open(source_env(storage), of)
    storage.space_left = 20
    published: list[Element] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(proxy.run, published.extend)
        await trio.sleep(10)
        assert published == []
        storage.space_left = None
    assert proxy.fault is None
    assert show(published) == "1/1r0 B0(1) 2/2r1 BEND(2)"


async def test_error_of_live_reader_is_fault_and_log_is_served(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    class Breaks(Scripted):
        async def read(self, env: Env, accept: Callable[[RowChunk], Awaitable[None]]) -> None:
            await super().read(env, accept)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._hang_up)

        async def _hang_up(self) -> None:
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("replicas.source.proxy.open_reader", lambda _source, _start: Breaks([(0.0, [1, 2], 2)]))
    proxy, published = await run_to_end(source_env(SimDisk()), source({"kind": "stdin"}))
    assert "Input/output error" in str(proxy.fault)
    assert isinstance(proxy.fault, SpeError)
    assert len(rows_of(published)) == proxy.last_id == 2


async def test_the_reader_waits_for_a_stalled_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replicas.source.writer._PENDING_BYTES_MAX", 10_000)
    storage = SimDisk()
    reader = {"kind": "generator", "generator": "sequence", "start": 0, "rate": 10, "count": 5_000}
    proxy = await SourceProxy.open(source_env(storage), source(reader, GENERATORS["sequence"].schema))
    storage.sync_gate = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(proxy.run)
        await trio.testing.wait_all_tasks_blocked()
        assert sum(len(file.written) for file in storage.files.values()) < 30_000
        storage.sync_gate.set()
    assert proxy.last_id == 5_000


async def test_strings_of_all_batches_are_in_one_dictionary() -> None:
    """Each chunk of a reader has its own, made in another thread; consumers must not get a new one per batch."""
    reader = {"kind": "generator", "generator": "pages", "start": 0, "rate": 100, "count": 500}
    _, published = await run_to_end(source_env(), source(reader, GENERATORS["pages"].schema))
    found = [c.dictionary for e in published if isinstance(e, Batch) for c in e.rows.columns[1:]]
    assert len(found) >= 10
    assert all(d is found[0] for d in found)


async def test_a_slow_disk_makes_larger_groups(tmp_path: Path) -> None:
    """During a sync the next group collects: few syncs, not one per record."""
    storage = SimDisk()
    reader = {"kind": "generator", "generator": "sequence", "start": 0, "rate": 10, "count": 1_000}
    proxy = await SourceProxy.open(source_env(storage), source(reader, GENERATORS["sequence"].schema))
    storage.sync_gate = trio.Event()
    asked = storage.syncs
    async with trio.open_nursery() as nursery:
        nursery.start_soon(proxy.run)
        await trio.testing.wait_all_tasks_blocked()
        storage.sync_gate.set()
    assert proxy.last_id == 1_000
    assert storage.syncs - asked <= 4


async def test_the_reference_of_a_live_source_is_its_log(live: Callable[..., Source]) -> None:
    with pytest.raises(SpeError, match="in its log only"):
        list(reference_elements(source({"kind": "stdin"})))


def test_reference_of_generator_without_start_has_fixed_start() -> None:
    of = source({"kind": "generator", "generator": "orders", "count": 3}, GENERATORS["orders"].schema)
    first = next(iter(reference_elements(of)))
    assert isinstance(first, Batch)
    assert int(first.rows.time[0]) == REFERENCE_START_US


async def test_speed_without_event_times_is_refused_but_rate_is_not(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    of = csv_source(tmp_path, 0, 0, 0, time=None, replay={"speed": 1.0})
    proxy, _ = await run_to_end(source_env(), of)
    assert "replay.speed needs event times" in str(proxy.fault)

    of = replace(of, replay={"rate": 10.0}, boundary_us=10_000)
    env = source_env(epoch_us=SECOND)
    base = env.clock.wall_us()
    _, published = await run_to_end(env, of)
    assert_a_true_stream(published)
    assert [time - base for _, time, *_ in rows_of(published)] == [0, 100_000, 200_000]
    assert sum(isinstance(e, Boundary) for e in published) > 15


def test_small_batches_count_with_their_objects() -> None:
    """At a few hundred rows per second a batch has a row or two; the tail must not hold gigabytes of them."""
    schema = Schema.of(n="int64!")
    history = SourceHistory(schema, tail_bytes=1_000_000)
    for at in range(5_000):
        rows = Rows.from_tuples(schema, [at], [(at,)])
        state = SourceState(at + 1, at, BEFORE_TIME, at, at + 1, 0, 0)
        history.add(state, Position(1, 0, 64 * at), Batch(Kind.STABLE, at, at + 1, None, rows))
    assert len(history._batches) < 1_000_000 / 500
