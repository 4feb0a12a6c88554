"""Pushed batches: each is taken once, whole and in order, wherever source, writer or power fail.

What can fail between two steps is every operation on the disk: each test of crashes plays the same batches once for
each of them, with a kill or a loss of power at that operation, before or after it takes effect.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import replace
from pathlib import PurePosixPath
from random import Random
from typing import Any

import pytest
import trio
import trio.testing

from replicas.simulation.world.disk import SimDisk, torn
from replicas.source.proxy import SourceProxy
from replicas.source.push import PENDING_BYTES, PushIntake
from spe.errors import LogCorrupt
from spe.log.pushed_batches import PART_BYTES, PART_OVERHEAD, PushLedger, encode_part, push_folder
from spe.log.source_log import read_source_log
from spe.plan.plan import Source, Watermark
from spe.runtime.env import Env
from spe.stream.batch import Batch, Boundary, Rows
from spe.stream.names import StreamId
from spe.stream.schema import Schema
from spe.stream.times import END_OF_TIME
from spe.wire.fields import SNAPSHOT_PART_BYTES
from spe.wire.messages.pushes import CommitPushed, DropParts, PartStaged, PushEnded, StagePart
from tests.support.source_env import AtOnceCompute, ListTrace, TrioClock, source_env

SCHEMA = Schema.of(ts="timestamp", n="int64", word="string")
STREAM, FOLDER = StreamId("pushed"), PurePosixPath("sources/pushed")
WRITER, QUERY = "writer:etl", "query-1"
NOW_US = 1_700_000_000_000_000


def source() -> Source:
    return Source(
        stream=STREAM,
        schema=SCHEMA,
        boundary_us=100_000,
        disorder_us=0,
        ahead_us=None,
        time="ts",
        reader={"kind": "push", "writers": ("etl", "other")},
        replay={},
        on_malformed="skip",
        watermark=Watermark.DATA,
        idle_us=None,
    )


def rows_of(numbers: list[int]) -> Rows:
    """Rows whose event times grow with their numbers."""
    values = [(NOW_US + 1000 * n, n, None if n % 5 == 0 else f"w{n % 3}") for n in numbers]
    return Rows.from_tuples(SCHEMA, [v[0] for v in values], values)


def part_of(numbers: list[int]) -> bytes:
    return encode_part([rows_of(numbers)], SCHEMA)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch is several records of the log, so that it can be in it in part."""
    monkeypatch.setattr("replicas.source.push.CHUNK_ROWS", 2)
    monkeypatch.setattr("replicas.source.pushed_rows.CHUNK_ROWS", 2)


class Crash(Exception):
    """The process ends here."""


class CrashingDisk(SimDisk):
    """A disk on which the process dies at operation ``at``, before or after it takes effect."""

    def __init__(self, at: int = -1, *, after: bool = False) -> None:
        super().__init__()
        self.at, self.after, self.count = at, after, 0
        self.dead = False

    def step(self) -> Iterator[None]:
        self.count += 1
        self.dead = self.dead or (self.count == self.at and not self.after)
        if self.dead:
            raise Crash
        yield
        self.dead = self.dead or (self.count == self.at and self.after)
        if self.dead:
            raise Crash

    def open(self, path: PurePosixPath) -> Any:
        for _ in self.step():
            file = super().open(path)
        append, sync, disk = file.append, file.sync, self

        def appending(*parts: bytes | memoryview) -> None:
            for _ in disk.step():
                append(*parts)

        async def syncing() -> None:
            for _ in disk.step():
                await sync()

        file.append, file.sync = appending, syncing  # type: ignore[method-assign]
        return file

    async def write_atomic(self, path: PurePosixPath, data: bytes | bytearray | memoryview) -> None:
        for _ in self.step():
            await super().write_atomic(path, data)

    def remove(self, path: PurePosixPath) -> None:
        for _ in self.step():
            super().remove(path)

    @classmethod
    def of(cls, disk: SimDisk, at: int = -1, *, after: bool = False) -> CrashingDisk:
        made = cls(at, after=after)
        made.files = disk.files
        return made


class Writer:
    """A query of micro-batches: it runs a batch again, with other parts, until it is committed; then writers end."""

    def __init__(self, batches: list[list[list[int]]], ends: tuple[str, ...] = ()) -> None:
        self._batches = batches
        self.ends = ends
        self.done = 0

    async def run(self, intake: PushIntake, disk: CrashingDisk) -> None:
        while self.done < len(self._batches):
            names = []
            for at, numbers in enumerate(self._batches[self.done]):
                name = f"{self.done:08x}{at:08x}{secrets.token_hex(8)}"
                assert await stage(intake, name, part_of(numbers), self.done) == ""
                names.append(name)
            answer = await intake.commit(WRITER, CommitPushed(QUERY, self.done, names, ""))
            if disk.dead:
                raise Crash  # a process that is dead does not answer
            assert answer.error == ""
            self.done += 1
        while self.ends:
            ended = await intake.end(self.ends[0])
            if disk.dead:
                raise Crash
            assert (ended.rows, ended.error) == (len(EXPECTED), "")
            self.ends = self.ends[1:]


async def stage(
    intake: PushIntake, name: str, data: bytes, batch: int, *, writer: str = WRITER, query: str = QUERY
) -> str:
    attempt = object()
    pieces = [data[at : at + SNAPSHOT_PART_BYTES] for at in range(0, len(data), SNAPSHOT_PART_BYTES)] or [b""]
    for index, piece in enumerate(pieces):
        message = StagePart(query, batch, name, index, index == len(pieces) - 1, piece)
        answer = await intake.stage(attempt, writer, message)
    assert answer is not None
    return answer.error


def logged(disk: SimDisk) -> list[int]:
    """The numbers that the log has, in order."""
    batches = (e for e in read_source_log(disk, FOLDER, SCHEMA) if isinstance(e, Batch))
    return [row[1] for batch in batches for row in batch.rows.to_tuples()]


def ended(disk: SimDisk) -> bool:
    """Has the log the end of the stream, as its last element, once?"""
    ends = [isinstance(e, Boundary) and e.time == END_OF_TIME for e in read_source_log(disk, FOLDER, SCHEMA)]
    assert not any(ends[:-1])
    return bool(ends) and ends[-1]


class Process:
    """A source process, from its start on, in a nursery."""

    def __init__(self, env: Env, proxy: SourceProxy, intake: PushIntake) -> None:
        self.env, self.proxy, self.intake = env, proxy, intake

    @classmethod
    async def start(cls, disk: SimDisk, of: Source | None = None) -> Process:
        of = source() if of is None else of
        env = replace(source_env(disk), clock=TrioClock(NOW_US), compute=AtOnceCompute(), trace=ListTrace())
        proxy = await SourceProxy.open(env, of, FOLDER)
        intake = PushIntake(of.schema, of.time, of.reader)
        await intake.open(env, FOLDER, proxy.consumed, proxy.settled, ended=proxy.ended)
        return cls(env, proxy, intake)

    async def run(self) -> None:
        await self.proxy.run(reader=self.intake)


def without_power(disk: SimDisk, draw: Random) -> SimDisk:
    return disk.power_loss(lambda _, synced, written: torn(draw, synced, written))


BATCHES = [[[3, 1, 2], [5, 4]], [[]], [[6]], [[9, 8], [7], []], [[10, 11, 12, 13]]]
EXPECTED = list(range(1, 14))


async def play(disk: CrashingDisk, writer: Writer) -> bool:
    """Until all batches are committed and logged, or the process dies; True: it did not."""
    died = False
    try:
        async with trio.open_nursery() as nursery:
            process = await Process.start(disk)
            nursery.start_soon(process.run)
            await trio.testing.wait_all_tasks_blocked()
            await writer.run(process.intake, disk)
            await process.proxy.settled(len(EXPECTED))
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
    except* Crash:
        died = True
    if died:
        return False
    assert process.proxy.fault is None
    process.proxy.close()
    return True


async def test_batches_are_ordered_and_sorted_and_empty_ones_count(autojump_clock: Any) -> None:
    disk, writer = CrashingDisk(), Writer(BATCHES)
    assert await play(disk, writer)
    assert logged(disk) == EXPECTED
    assert not disk.list(push_folder(FOLDER) / "parts")
    assert disk.count > 25


@pytest.mark.parametrize("power", [False, True])
@pytest.mark.parametrize("after", [False, True])
async def test_a_source_that_dies_anywhere_has_each_row_once(autojump_clock: Any, after: bool, power: bool) -> None:
    """At every operation of the disk, once before and once after it; with the power, what was not synced is lost."""
    whole = CrashingDisk()
    assert await play(whole, Writer(BATCHES))
    for at in range(1, whole.count + 1):
        disk, writer, draw = CrashingDisk(at, after=after), Writer(BATCHES), Random(at)
        died = not await play(disk, writer)
        assert died or after or disk.count < at  # records that were synced together
        left = without_power(disk, draw) if power else disk.restarted()
        again = CrashingDisk.of(left)
        assert await play(again, writer), f"died at operation {at}"
        assert logged(again) == EXPECTED, f"died at operation {at}"


async def test_a_source_that_dies_again_and_again_has_each_row_once(autojump_clock: Any) -> None:
    for seed in range(30):
        draw, writer = Random(seed), Writer(BATCHES)
        disk = CrashingDisk(draw.randint(1, 20))
        while not await play(disk, writer):
            left = disk.restarted() if draw.random() < 0.5 else without_power(disk, draw)
            disk = CrashingDisk.of(left, draw.randint(1, 40), after=draw.random() < 0.5)
        assert logged(disk) == EXPECTED


@pytest.mark.parametrize("power", [False, True])
async def test_stream_ends_once_after_all_rows_wherever_source_dies(autojump_clock: Any, power: bool) -> None:
    ends = ("writer:other", WRITER)
    whole = CrashingDisk()
    assert await play(whole, Writer(BATCHES, ends))
    assert (logged(whole), ended(whole)) == (EXPECTED, True)
    for at in range(1, whole.count + 1):
        disk, writer, draw = CrashingDisk(at), Writer(BATCHES, ends), Random(at)
        await play(disk, writer)
        again = CrashingDisk.of(without_power(disk, draw) if power else disk.restarted())
        assert await play(again, writer), f"died at operation {at}"
        assert (logged(again), ended(again)) == (EXPECTED, True), f"died at operation {at}"
        writer.ends = ends
        assert await play(CrashingDisk.of(again.restarted()), writer)  # who asks again is answered as before


async def test_nothing_is_taken_behind_the_end(autojump_clock: Any) -> None:
    """1. one of two writers ends, then the other; 2. the source starts again; 3. it gets a third writer."""
    disk = SimDisk()
    process = await Process.start(disk)
    assert "has not begun" in (await process.intake.end(WRITER)).error
    async with trio.open_nursery() as nursery:
        nursery.start_soon(process.run)
        await trio.testing.wait_all_tasks_blocked()
        intake = process.intake
        assert "must not push here" in (await intake.end("writer:x")).error
        assert await stage(intake, "0" * 32, part_of([1, 2]), 0) == ""
        assert (await intake.commit(WRITER, CommitPushed(QUERY, 0, ["0" * 32], ""))).error == ""
        assert await stage(intake, "1" * 32, part_of([3]), 1) == ""  # is not committed in time
        for _ in range(2):
            assert await intake.end(WRITER) == PushEnded(2, ("writer:other",), "")
        assert (await intake.commit(WRITER, CommitPushed(QUERY, 0, ["0" * 32], ""))).error == ""  # the answer was lost
        behind = (
            f"writer:etl has ended its stream behind batch 0 of query {QUERY}: batch 1 of query {QUERY} is not taken"
        )
        assert (await intake.commit(WRITER, CommitPushed(QUERY, 1, ["1" * 32], ""))).error == behind
        assert await stage(intake, "2" * 32, part_of([3]), 1) == behind
        other = await stage(intake, "3" * 32, part_of([3]), 0, writer="writer:other", query="q")
        assert other == (await intake.commit("writer:other", CommitPushed("q", 0, ["3" * 32], ""))).error == ""
        await process.proxy.settled(3)
        assert not ended(disk)
        assert await intake.end("writer:other") == PushEnded(3, (), "")
    assert (logged(disk), ended(disk)) == ([1, 2, 3], True)
    assert not disk.list(push_folder(FOLDER) / "parts")
    process.proxy.close()

    third = replace(source(), reader={"kind": "push", "writers": ("etl", "third")})
    process = await Process.start(disk.restarted(), third)
    await process.run()
    assert process.proxy.ended
    assert (await process.intake.commit(WRITER, CommitPushed(QUERY, 0, ["0" * 32], ""))).error == ""
    assert (await process.intake.commit(WRITER, CommitPushed(QUERY, 1, [], ""))).error == behind
    answer = await process.intake.commit("writer:third", CommitPushed("q", 0, [], ""))
    assert answer.error == "the stream has ended: batch 0 of query q is not taken"
    assert await process.intake.end("writer:third") == PushEnded(3, (), "")


async def test_a_writer_without_a_batch_ends_its_stream_too(autojump_clock: Any) -> None:
    disk, only = SimDisk(), replace(source(), reader={"kind": "push", "writers": ("etl",)})
    async with trio.open_nursery() as nursery:
        process = await Process.start(disk, only)
        nursery.start_soon(process.run)
        await trio.testing.wait_all_tasks_blocked()
        assert await process.intake.end(WRITER) == PushEnded(0, (), "")
        answer = await process.intake.commit(WRITER, CommitPushed(QUERY, 0, [], ""))
        assert "ended its stream before its first batch" in answer.error
    assert (logged(disk), ended(disk)) == ([], True)


async def test_writer_with_lost_answer_commits_again(autojump_clock: Any) -> None:
    disk = SimDisk()
    async with trio.open_nursery() as nursery:
        process = await Process.start(disk)
        nursery.start_soon(process.run)
        await trio.testing.wait_all_tasks_blocked()
        intake, name = process.intake, "0" * 32
        assert await stage(intake, "2" * 32, part_of([1, 2]), 0) == ""  # the answer is lost
        assert await stage(intake, name, part_of([1, 2]), 0) == ""
        assert "there is a part" in await stage(intake, name, part_of([1, 2]), 0)
        for _ in range(3):
            assert (await intake.commit(WRITER, CommitPushed(QUERY, 0, [name], ""))).error == ""
            await process.proxy.settled(2)
        assert await stage(intake, "1" * 32, part_of([1, 2]), 0) == ""  # the whole batch is run again
        assert (await intake.commit(WRITER, CommitPushed(QUERY, 0, ["1" * 32], ""))).error == ""
        assert (await intake.commit(WRITER, CommitPushed(QUERY, 1, [], ""))).error == ""
        assert not disk.list(push_folder(FOLDER) / "parts")
        nursery.cancel_scope.cancel()
    assert logged(disk) == [1, 2]


async def test_parts_of_failed_attempts_give_no_rows_and_are_removed(autojump_clock: Any) -> None:
    disk = SimDisk()
    async with trio.open_nursery() as nursery:
        process = await Process.start(disk)
        nursery.start_soon(process.run)
        await trio.testing.wait_all_tasks_blocked()
        intake = process.intake
        for digit in "0123":
            assert await stage(intake, digit * 32, part_of([1]), 0) == ""
        assert await stage(intake, "5" * 32, part_of([7]), 0, writer="writer:other", query="q") == ""
        intake.drop(WRITER, DropParts(["3" * 32, "5" * 32]))  # the other writer's stays
        assert (await intake.commit(WRITER, CommitPushed(QUERY, 0, ["1" * 32], ""))).error == ""
        await process.proxy.settled(1)
        await trio.testing.wait_all_tasks_blocked()
        assert disk.list(push_folder(FOLDER) / "parts") == ["5" * 32]
        assert (await intake.commit("writer:other", CommitPushed("q", 0, ["5" * 32], ""))).error == ""
        await process.proxy.settled(2)
        nursery.cancel_scope.cancel()
    assert logged(disk) == [1, 7]


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (CommitPushed(QUERY, 1, ["f" * 32], ""), "of 1 parts 0 are here; the others were lost, or never came"),
        (CommitPushed(QUERY, 1, ["0" * 32, "0" * 32], ""), "of 2 parts 2 are here"),
        (CommitPushed(QUERY, 2, ["0" * 32], ""), "is of another batch"),
        (CommitPushed("query-2", 0, ["0" * 32], ""), "batches up to 0 of query query-1, and this is query query-2"),
        (CommitPushed("query-2", 0, ["0" * 32], "query-0"), "give the option replaces=query-1"),
    ],
)
async def test_a_commit_that_does_not_fit_is_refused(autojump_clock: Any, message: CommitPushed, said: str) -> None:
    disk = SimDisk()
    async with trio.open_nursery() as nursery:
        process = await Process.start(disk)
        nursery.start_soon(process.run)
        await trio.testing.wait_all_tasks_blocked()
        assert (await process.intake.commit(WRITER, CommitPushed(QUERY, 0, [], ""))).error == ""
        assert await stage(process.intake, "0" * 32, part_of([1]), 1) == ""
        assert said in (await process.intake.commit(WRITER, message)).error
        nursery.cancel_scope.cancel()
    assert logged(disk) == []


async def test_oversized_batch_is_refused_with_spark_repeat_advice(
    autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("replicas.source.push.BATCH_BYTES", 2 * len(part_of([1])) - 1)
    disk = SimDisk()
    async with trio.open_nursery() as nursery:
        process = await Process.start(disk)
        nursery.start_soon(process.run)
        await trio.testing.wait_all_tasks_blocked()
        intake, names = process.intake, ["0" * 32, "1" * 32]
        for name in names:
            assert await stage(intake, name, part_of([1]), 7) == ""
        error = (await intake.commit(WRITER, CommitPushed(QUERY, 7, names, ""))).error
        assert "a batch has at most" in error
        assert "unless you remove offsets/7 and offsets/.7.crc from the checkpoint" in error
        assert "limit what a trigger of the query takes" in error
        assert await stage(intake, "2" * 32, part_of([3]), 7) == ""  # the same batch, made anew
        assert (await intake.commit(WRITER, CommitPushed(QUERY, 7, ["2" * 32], ""))).error == ""
        await process.proxy.settled(1)
        nursery.cancel_scope.cancel()
    assert logged(disk) == [3]


async def test_another_query_replaces_one_only_explicitly(autojump_clock: Any) -> None:
    disk = SimDisk()
    async with trio.open_nursery() as nursery:
        process = await Process.start(disk)
        nursery.start_soon(process.run)
        await trio.testing.wait_all_tasks_blocked()
        intake = process.intake
        assert (await intake.commit(WRITER, CommitPushed(QUERY, 7, [], ""))).error == ""
        assert "the checkpoint is an older copy" in (await intake.commit(WRITER, CommitPushed(QUERY, 6, [], ""))).error
        assert (await intake.commit(WRITER, CommitPushed("query-2", 0, [], QUERY))).error == ""
        assert (await intake.commit(WRITER, CommitPushed("query-2", 1, [], QUERY))).error == ""
        assert "of query query-2" in (await intake.commit(WRITER, CommitPushed(QUERY, 8, [], ""))).error
        assert "must not push here" in (await intake.commit("writer:x", CommitPushed(QUERY, 8, [], ""))).error
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"\x01", "1 bytes end in the middle of a piece"),
        (b"\x05\x00\x00\x00hello", ""),
        (encode_part([rows_of([1])], SCHEMA)[:-9], "in the middle of a piece"),
    ],
)
async def test_a_part_that_is_none_is_refused(autojump_clock: Any, data: bytes, said: str) -> None:
    disk = SimDisk()
    intake = (await Process.start(disk)).intake
    error = await stage(intake, "0" * 32, data, 0)
    assert error
    assert said in error


async def test_a_row_without_its_event_time_is_refused_with_its_number(autojump_clock: Any) -> None:
    rows = Rows.from_tuples(SCHEMA, [0, 0], [(NOW_US, 1, "a"), (None, 2, "b")])
    intake = (await Process.start(SimDisk())).intake
    assert "row 2 of the part has no ts" in await stage(intake, "0" * 32, encode_part([rows], SCHEMA), 0)


async def test_missing_pieces_and_invalid_names_are_refused(autojump_clock: Any) -> None:
    intake = (await Process.start(SimDisk())).intake
    assert await intake.stage(1, WRITER, StagePart(QUERY, 0, "0" * 32, 1, False, b"x")) is None
    answer = await intake.stage(1, WRITER, StagePart(QUERY, 0, "0" * 32, 2, True, b"x"))
    assert answer is not None
    assert "piece 2 came without those before it" in answer.error
    assert "is no name of a part" in await stage(intake, "../../marks", part_of([1]), 0)
    assert "must not push here" in await stage(intake, "0" * 32, part_of([1]), 0, writer="writer:x")


async def test_rows_too_far_ahead_do_not_hold_up_those_behind_them(autojump_clock: Any) -> None:
    """All of a batch, its last chunk, and what a restart meets: they are left out, and that is logged (S8)."""
    disk, of = SimDisk(), replace(source(), ahead_us=3_600_000_000)
    async with trio.open_nursery() as nursery:
        process = await Process.start(disk, of)
        nursery.start_soon(process.run)
        await trio.testing.wait_all_tasks_blocked()
        far = 10_000_000
        for batch, numbers in enumerate([[far], [1, 2, far, far + 1, far + 2], [3]]):
            assert await stage(process.intake, f"{batch:032x}", part_of(numbers), batch) == ""
            message = CommitPushed(QUERY, batch, [f"{batch:032x}"], "")
            assert (await process.intake.commit(WRITER, message)).error == ""
        with trio.fail_after(10):
            await process.proxy.settled(7)
        assert logged(disk) == [1, 2, 3]
        nursery.cancel_scope.cancel()
    process.proxy.close()
    assert (await Process.start(disk.restarted(), of)).proxy.consumed == 7


async def test_pieces_of_hung_connection_stay_out_of_other_attempts(autojump_clock: Any) -> None:
    disk, data = SimDisk(), part_of([1, 2])
    async with trio.open_nursery() as nursery:
        process = await Process.start(disk)
        nursery.start_soon(process.run)
        await trio.testing.wait_all_tasks_blocked()
        intake, name = process.intake, "0" * 32
        assert await intake.stage("hangs", WRITER, StagePart(QUERY, 0, "1" * 32, 0, False, b"stale")) is None
        assert await intake.stage("new", WRITER, StagePart(QUERY, 0, name, 0, False, data[:10])) is None
        assert await intake.stage("hangs", WRITER, StagePart(QUERY, 0, name, 1, False, b"stale")) is None
        answer = await intake.stage("new", WRITER, StagePart(QUERY, 0, name, 1, True, data[10:]))
        assert answer == PartStaged(name, "")
        assert (await intake.commit(WRITER, CommitPushed(QUERY, 0, [name], ""))).error == ""
        await process.proxy.settled(2)
        nursery.cancel_scope.cancel()
    assert logged(disk) == [1, 2]
    assert disk.list(push_folder(FOLDER) / "parts") == []


async def test_incomplete_parts_end_with_their_connection(autojump_clock: Any) -> None:
    disk, parts = SimDisk(), push_folder(FOLDER) / "parts"
    intake = (await Process.start(disk)).intake
    assert await stage(intake, "f" * 32, b"nonsense", 0)
    assert disk.list(parts) == []
    for digit in "01":
        assert await intake.stage(digit, WRITER, StagePart(QUERY, 0, digit * 32, 0, False, b"x")) is None
    intake.hung_up("0")
    intake.hung_up("another")
    assert disk.list(parts) == ["1" * 32]


async def test_no_task_loses_its_place_to_others(autojump_clock: Any) -> None:
    """Each of 200 tasks has sent a piece before any has sent its last one."""
    disk, tasks = SimDisk(), range(200)
    async with trio.open_nursery() as nursery:
        process = await Process.start(disk)
        nursery.start_soon(process.run)
        await trio.testing.wait_all_tasks_blocked()
        data = [part_of([n]) for n in tasks]
        for n in tasks:
            piece = StagePart(QUERY, 0, f"{n:032x}", 0, False, data[n][:7])
            assert await process.intake.stage(n, WRITER, piece) is None
        for n in tasks:
            piece = StagePart(QUERY, 0, f"{n:032x}", 1, True, data[n][7:])
            assert await process.intake.stage(n, WRITER, piece) == PartStaged(f"{n:032x}", "")
        nursery.cancel_scope.cancel()


async def test_uncommitted_parts_are_bounded(autojump_clock: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that dies again and again before its commit: the oldest parts make room, never those of the ledger."""
    disk, parts, size = SimDisk(), push_folder(FOLDER) / "parts", PART_OVERHEAD + len(part_of([1]))
    monkeypatch.setattr("replicas.source.push.STAGED_BYTES", 4 * size)
    intake = (await Process.start(disk)).intake
    intake._stopped = ""  # nothing reads, so what is committed is needed
    assert await stage(intake, "0" * 32, part_of([0]), 0) == ""
    assert (await intake.commit(WRITER, CommitPushed(QUERY, 0, ["0" * 32], ""))).error == ""
    assert await stage(intake, "a" * 32, part_of([0]), 0, writer="writer:other", query="q") == ""
    for digit in "123456":
        assert await stage(intake, digit * 32, part_of([1]), 1) == ""
    assert disk.list(parts) == [digit * 32 for digit in "0456a"]
    for digit in "789":
        assert await intake.stage(digit, WRITER, StagePart(QUERY, 1, digit * 32, 0, False, part_of([1])[:-1])) is None
    assert disk.list(parts) == [digit * 32 for digit in "0789a"]
    answer = await intake.stage("b", WRITER, StagePart(QUERY, 1, "b" * 32, 0, False, b"x"))
    assert answer is not None
    assert "limit what a trigger" in answer.error

    again = (await Process.start(disk.restarted())).intake
    assert set(again._staged) == {"0" * 32, "a" * 32}
    assert await stage(again, "c" * 32, part_of([1]), 1) == ""
    only = replace(source(), reader={"kind": "push", "writers": ("etl",)})
    assert set((await Process.start(disk.restarted(), only)).intake._staged) == {"0" * 32}


async def test_a_full_disk_is_waited_for(autojump_clock: Any) -> None:
    disk = SimDisk()
    async with trio.open_nursery() as nursery:
        process = await Process.start(disk)
        nursery.start_soon(process.run)
        await trio.testing.wait_all_tasks_blocked()
        disk.space_left = 10

        async def room() -> None:
            await trio.sleep(5)
            disk.space_left = None

        nursery.start_soon(room)
        assert await stage(process.intake, "0" * 32, part_of([1, 2]), 0) == ""
        assert trio.current_time() >= 5
        assert (await process.intake.commit(WRITER, CommitPushed(QUERY, 0, ["0" * 32], ""))).error == ""
        await process.proxy.settled(2)
        nursery.cancel_scope.cancel()
    assert logged(disk) == [1, 2]


@pytest.mark.parametrize("how", ["dropped", "made room of"])
async def test_parts_being_committed_stay_while_disk_is_full(
    autojump_clock: Any, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """The ledger waits for room: meanwhile the driver gives up, or another attempt of its batch comes."""
    disk, name = SimDisk(), "0" * 32
    async with trio.open_nursery() as nursery:
        process = await Process.start(disk)
        nursery.start_soon(process.run)
        await trio.testing.wait_all_tasks_blocked()
        intake, answers = process.intake, []
        assert await stage(intake, name, part_of([1, 2]), 0) == ""
        disk.space_left = 0

        async def commit() -> None:
            answers.append((await intake.commit(WRITER, CommitPushed(QUERY, 0, [name], ""))).error)

        nursery.start_soon(commit)
        await trio.testing.wait_all_tasks_blocked()
        assert not answers
        if how == "dropped":
            intake.drop(WRITER, DropParts([name]))
        else:
            disk.space_left = 1
            monkeypatch.setattr("replicas.source.push.STAGED_BYTES", PART_OVERHEAD + 1)
            answer = await intake.stage("again", WRITER, StagePart(QUERY, 0, "1" * 32, 0, False, b"x"))
            assert answer is not None
            assert "limit what a trigger" in answer.error
        disk.space_left = None
        await process.proxy.settled(2)
        assert answers == [""]
        nursery.cancel_scope.cancel()
    assert logged(disk) == [1, 2]
    await Process.start(disk.restarted())


async def test_a_commit_is_answered_when_the_source_is_not_far_behind(
    autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert PENDING_BYTES < PART_BYTES
    monkeypatch.setattr("replicas.source.push.PENDING_BYTES", 10)
    disk = SimDisk()
    async with trio.open_nursery() as nursery:
        process = await Process.start(disk)
        nursery.start_soon(process.run)
        await trio.testing.wait_all_tasks_blocked()
        disk.sync_s = 3.0
        assert await stage(process.intake, "0" * 32, part_of([1, 2]), 0) == ""
        begun = trio.current_time()
        assert (await process.intake.commit(WRITER, CommitPushed(QUERY, 0, ["0" * 32], ""))).error == ""
        assert trio.current_time() - begun >= 6  # the ledger and the log
        assert logged(disk) == [1, 2]
        nursery.cancel_scope.cancel()


async def test_damage_is_named(autojump_clock: Any) -> None:
    disk = SimDisk()
    process = await Process.start(disk)
    assert await stage(process.intake, "0" * 32, part_of([1, 2]), 0) == ""
    process.intake._stopped = ""
    assert (await process.intake.commit(WRITER, CommitPushed(QUERY, 0, ["0" * 32], ""))).error == ""
    ledger, part = push_folder(FOLDER) / "ledger", push_folder(FOLDER) / "parts" / ("0" * 32)
    process.proxy.close()

    with pytest.raises(LogCorrupt, match=f"{ledger}: the checksum does not match"):
        await Process.start(disk.with_file(ledger, disk.read(ledger).replace(b"writer:etl", b"writer:elt")))
    with pytest.raises(LogCorrupt, match=r"parts/0+: a part of a committed batch is missing"):
        await Process.start(disk.with_file(part, b""))
    older = PushLedger(9, {}, ()).encode()
    with pytest.raises(LogCorrupt, match="the log has 0 pushed rows, and the parts that are left begin behind row 9"):
        await Process.start(disk.with_file(ledger, older))
    data = bytearray(disk.read(part))
    data[40] ^= 1
    damaged = await Process.start(disk.with_file(part, bytes(data)))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(damaged.run)
        await trio.testing.wait_all_tasks_blocked()
        assert "checksum of a pushed part" in str(damaged.proxy.fault)
        answer = await damaged.intake.commit(WRITER, CommitPushed(QUERY, 1, [], ""))
        assert "has stopped to take rows" in answer.error
        nursery.cancel_scope.cancel()


async def test_a_log_that_is_newer_than_the_ledger_is_refused(autojump_clock: Any) -> None:
    disk = CrashingDisk()
    assert await play(disk, Writer(BATCHES))
    ledger = push_folder(FOLDER) / "ledger"
    with pytest.raises(LogCorrupt, match="the log has 13 pushed rows, and 2 were committed"):
        await Process.start(disk.restarted().with_file(ledger, PushLedger(2, {}, ()).encode()))
