"""Live input: the promises of a source from its rows and its silences (S7)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import trio
import trio.testing

from replicas.connectors import Live, RowChunk
from replicas.simulation.world.disk import SimDisk
from replicas.source.proxy import SourceProxy
from spe.log.source_log import read_source_log
from spe.plan.plan import Source, Watermark
from spe.runtime.env import Env
from spe.stream.batch import Batch, Boundary, Column, Element
from spe.stream.times import END_OF_TIME, SECOND
from tests.support.source_env import ListTrace, TrioClock, source_env
from tests.unit.replicas.source.test_proxy import EVENTS, FOLDER, STREAM, assert_a_true_stream, rows_of, source

#: What the clock shows when a test begins; event times of a producer are seconds from here.
NOW_US = 1_700_000_000 * SECOND
LAST_YEAR = -365 * 86_400

#: When rows come, seconds, and their event times, seconds from NOW_US.
Rows = Sequence[tuple[float, list[float]]]


class Producer(Live):
    """Sends rows when they are due, or as soon as they are read; a new reader continues where the last one was."""

    def __init__(self, rows: Rows, *, ends: bool) -> None:
        self._rows = list(rows)
        self._ends = ends
        self._sent = 0

    async def read(self, env: Env, accept: Callable[[RowChunk], Awaitable[None]]) -> None:
        while self._rows:
            at, events = self._rows[0]
            await trio.sleep_until(max(at, trio.current_time()))
            ts = Column.from_list([NOW_US + round(e * SECOND) for e in events], EVENTS["ts"].type)
            names = Column.from_list([f"r{self._sent + i}" for i in range(len(events))], EVENTS["name"].type)
            del self._rows[0]
            await accept(RowChunk(self._sent, len(events), ts.values, (ts, names), []))
            self._sent += len(events)
        if not self._ends:
            await trio.sleep_forever()


@dataclass
class Run:
    """The result of a run: elements, and when each boundary came, in seconds (the latter from NOW_US)."""

    proxy: SourceProxy
    trace: ListTrace
    elements: list[Element] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    frontiers: list[tuple[float, float]] = field(default_factory=list)

    def publish(self, elements: list[Element]) -> None:
        self.elements += elements
        for one in elements:
            if isinstance(one, Boundary) and one.time < END_OF_TIME:
                self.frontiers.append((round(trio.current_time(), 3), (one.time - NOW_US) / SECOND))

    def frontier_at(self, at: float) -> float:
        return max(f for when, f in self.frontiers if when <= at + 0.001)

    @property
    def times(self) -> list[float]:
        return [(time - NOW_US) / SECOND for _, time, *_ in rows_of(self.elements)]

    @property
    def late(self) -> int:
        return self.proxy.status().late


def live(**changes: Any) -> Source:
    """Promises by data, idle after one second, unless given otherwise."""
    usual = {"watermark": Watermark.DATA, "idle_us": SECOND, "boundary_us": SECOND // 10}
    return source({"kind": "stdin"}, **{**usual, **changes})


async def played(
    monkeypatch: pytest.MonkeyPatch,
    of: Source,
    rows: Rows,
    *,
    seconds: float | None = None,
    storage: SimDisk | None = None,
    env: Env | None = None,
) -> Run:
    """Runs a source for this long, or until its input has ended."""
    trace = ListTrace()
    env = env or source_env(storage, epoch_us=NOW_US, trace=trace)
    producer = Producer(rows, ends=seconds is None)
    monkeypatch.setattr("replicas.source.proxy.open_reader", lambda _source, _start: producer)
    run = Run(await SourceProxy.open(env, of), trace)
    run.frontiers.append((trio.current_time(), (run.proxy.frontier - NOW_US) / SECOND))
    with trio.move_on_after(seconds if seconds is not None else 1e6):
        await run.proxy.run(run.publish, run.told.append)
    run.proxy.close()
    assert_a_true_stream(run.elements, start_id=rows_of(run.elements)[0][0] - 1 if run.times else run.proxy.last_id)
    return run


def every(step: float, count: int, *, behind: float = 0.0, start: float = 0.0) -> list[tuple[float, list[float]]]:
    """Rows at this interval, in order, with event times this far behind the clock."""
    return [(start + n * step, [start + n * step - behind]) for n in range(count)]


@pytest.mark.parametrize("behind", [5.0, 3600.0, -5.0, -3000.0])
async def test_an_ordered_producer_has_no_late_row_far_from_the_clock(
    behind: float, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    rows = every(0.1, 100, behind=behind)
    run = await played(monkeypatch, live(), rows, seconds=9.95)
    assert run.late == 0
    assert run.times == pytest.approx([event for _, (event,) in rows])
    assert run.frontier_at(9.95) == pytest.approx(9.9 - behind)


async def test_late_producer_by_clock_is_reported_in_seconds(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    run = await played(
        monkeypatch, live(watermark=Watermark.CLOCK), every(0.1, 99, behind=5.0, start=0.05), seconds=9.95
    )
    assert run.late == 99
    (said,) = run.told
    assert (
        said
        == run.proxy.note
        == f"source {STREAM}: 5 of the last 5 rows came late; disorder 4.95s would have been enough"
    )
    assert run.trace.named("rows_mostly_late") == [{"stream": STREAM, "late": 5, "rows": 5, "disorder_us": 4_950_000}]


async def test_the_reported_disorder_is_sufficient(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    """Two producers in one source, one of them behind."""
    rows = sorted(every(0.5, 20) + every(0.1, 100, behind=3.7))
    run = await played(monkeypatch, live(), rows)
    assert run.late > 90
    assert run.told[0].endswith("would have been enough")
    enough_us = run.trace.named("rows_mostly_late")[0]["disorder_us"]
    assert enough_us == pytest.approx(3.7 * SECOND, abs=SECOND // 2)
    again = await played(monkeypatch, live(disorder_us=run.proxy.status().late_by_us), rows)
    assert (again.late, again.told) == (0, [])


async def test_old_rows_keep_their_times_and_live_rows_follow(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    history = [(0.0, [LAST_YEAR + 60.0 * n for n in range(500)])]
    run = await played(monkeypatch, live(), history + every(0.1, 20, start=0.5))
    assert run.late == 0
    assert run.times[:500] == history[0][1]
    assert run.times[500:] == pytest.approx([0.5 + 0.1 * n for n in range(20)])


@pytest.mark.parametrize(("to_now", "late"), [(False, 8), (True, 10)])
async def test_after_a_pause_rows_are_late_by_the_pause_at_most(
    to_now: bool, late: int, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    """Rows of each second; for ten seconds nothing comes.  A second is a silence, so nine are promised."""
    history = [(0.0, [LAST_YEAR + n for n in range(10)]), (10.05, [LAST_YEAR + 10 + n for n in range(10)])]
    run = await played(monkeypatch, live(idle_to_now=to_now), history)
    assert run.late == late
    assert run.times[-1] == (LAST_YEAR + 19 if not to_now else 10.0)
    never = await played(monkeypatch, live(idle_us=None), [(10.0 + at, events) for at, events in history])
    assert never.late == 0


async def test_promises_in_a_silence_follow_the_clock_and_are_logged(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    storage = SimDisk()
    of = live(disorder_us=SECOND // 2)
    run = await played(monkeypatch, of, [(0.0, [LAST_YEAR])], seconds=6.05, storage=storage)
    assert run.frontier_at(0.0) == run.frontier_at(1.0) == LAST_YEAR - 0.5
    assert [run.frontier_at(at) - LAST_YEAR for at in (2.0, 3.0, 6.0)] == pytest.approx([0.5, 1.5, 4.5])
    logged = [e for e in read_source_log(storage, FOLDER, EVENTS) if isinstance(e, Boundary)]
    assert [e.time for e in logged] == [e.time for e in run.elements if isinstance(e, Boundary)]


@pytest.mark.parametrize("step_s", [-3600, 0, 3600])
@pytest.mark.parametrize("down_s", [0.0, 100.0])
async def test_a_restart_continues_from_the_last_lease(
    step_s: int, down_s: float, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    """Neither downtime nor a step of the clock counts as silence, because rows may be waiting."""
    storage = SimDisk()
    await played(monkeypatch, live(), [(0.0, [LAST_YEAR])], seconds=6.05, storage=storage)
    await trio.sleep(down_s)
    begun = trio.current_time()
    env = source_env(storage.restarted(), epoch_us=NOW_US + step_s * SECOND)
    # The first row is below what was promised; a silence of less than a second is none.
    rows = [(begun + 0.5, [LAST_YEAR + 1.0]), (begun + 1.4, [LAST_YEAR + 5.0])]
    run = await played(monkeypatch, live(), rows, seconds=4.45, env=env)
    assert run.times == [LAST_YEAR + 5.0, LAST_YEAR + 5.0]
    assert run.late == 1
    assert run.frontier_at(begun + 2.4) <= LAST_YEAR + 5.0
    assert run.frontier_at(begun + 4.4) == pytest.approx(LAST_YEAR + 7.0)


@pytest.mark.parametrize("step_s", [-3600, 3600])
@pytest.mark.parametrize("by", [Watermark.DATA, Watermark.CLOCK])
async def test_clock_step_under_running_source_changes_nothing(
    by: Watermark, step_s: int, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    env = source_env(epoch_us=NOW_US)
    assert isinstance(env.clock, TrioClock)

    async def step() -> None:
        await trio.sleep(2.0)
        env.clock.epoch_us += step_s * SECOND

    rows = [*every(0.1, 11), *every(0.1, 30, start=4.0)]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(step)
        run = await played(monkeypatch, live(watermark=by, disorder_us=SECOND), rows, seconds=8.95, env=env)
    assert run.late == 0
    assert run.frontier_at(3.95) == pytest.approx(1.9 if by is Watermark.DATA else 2.9)
    assert run.frontier_at(8.95) == pytest.approx(6.9 if by is Watermark.DATA else 7.9)


async def test_rows_that_came_during_a_stop_are_not_late(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    """SIGSTOP: when the source continues, all deadlines have passed, and the rows are still unread."""

    async def stop() -> None:
        await trio.sleep(3.02)
        autojump_clock.jump(60.0)

    waiting = [(63.3, [0.1 * n for n in range(30, 634)])]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stop)
        run = await played(monkeypatch, live(), every(0.1, 30) + waiting)
    assert run.late == 0


async def test_a_stopped_and_silent_source_catches_up(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    async def stop() -> None:
        await trio.sleep(3.02)
        autojump_clock.jump(60.0)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(stop)
        run = await played(monkeypatch, live(), [(0.0, [0.0])], seconds=65.95)
    assert run.frontier_at(63.9) == pytest.approx(2.0)
    assert run.frontier_at(65.95) == pytest.approx(64.9, abs=0.11)


@pytest.mark.parametrize("how", ["full", "hangs"])
async def test_rows_that_wait_for_the_disk_are_no_silence(
    how: str, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    monkeypatch.setattr("replicas.source.writer._PENDING_BYTES_MAX", 100)
    storage = SimDisk()

    async def trouble() -> None:
        await trio.sleep(1.05)
        storage.space_left = 20 if how == "full" else None
        storage.stall(how == "hangs")
        await trio.sleep(30.0)
        storage.space_left = None
        storage.stall(False)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trouble)
        run = await played(monkeypatch, live(), every(0.1, 60), storage=storage)
    assert run.late == 0
    assert run.times[-1] == pytest.approx(5.9)


async def test_source_explains_missing_promise_before_first_row(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    run = await played(monkeypatch, live(), [(20.0, [LAST_YEAR])], seconds=20.5)
    assert [at for at, _ in run.frontiers[1:]] == [20.0]
    assert [t.split(",")[0] for t in run.told] == [f"source {STREAM}: no row yet"]
    assert run.proxy.note == ""


async def test_the_present_is_promised_behind_the_first_row(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    """Not before: the first rows may be those of a table, of any time, and its server slow."""
    history = [(5.0, [LAST_YEAR + n for n in range(1000)])]
    run = await played(monkeypatch, live(idle_to_now=True), history, seconds=8.05)
    assert run.late == 0
    assert [at for at, _ in run.frontiers[1:3]] == [5.0, 6.0]
    assert run.frontier_at(8.0) == pytest.approx(8.0)


async def test_refused_rows_end_no_silence(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    rows = [(0.0, [0.0]), *[(0.2 * n, [1e6]) for n in range(1, 20)]]
    run = await played(monkeypatch, live(ahead_us=SECOND), rows, seconds=3.95)
    assert run.proxy.status().refused_ahead == 19
    assert run.frontier_at(3.95) == pytest.approx(2.9)


async def test_log_and_consumers_have_the_same_stream(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    """The proof and later replicas read the log."""
    storage = SimDisk()
    rows = [*every(0.1, 10, behind=5.0), *every(0.1, 10, behind=2.0, start=4.0), (9.0, [1.0])]
    run = await played(monkeypatch, live(), rows, storage=storage)
    logged = list(read_source_log(storage, FOLDER, EVENTS))
    assert rows_of(logged) == rows_of(run.elements)
    bounds = [e.time for e in run.elements if isinstance(e, Boundary)]
    assert {e.time for e in logged if isinstance(e, Boundary)} >= set(bounds)
    assert sum(len(e) for e in logged if isinstance(e, Batch)) == 21
