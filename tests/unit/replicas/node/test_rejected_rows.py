"""The file of rejected rows has each row once, whatever the disk and the process do (U15: rows that fail)."""

from __future__ import annotations

import json
from collections.abc import Iterable
from random import Random
from typing import Any

import pytest
import trio

from operators.rejections import Rejection
from replicas.node import rejected_rows
from replicas.node.rejected_rows import RejectedRows
from replicas.node.replica import Replica
from replicas.simulation.clock import JumpClock
from replicas.simulation.disk import SimDisk
from spe.plan.deploy import Deployed
from spe.plan.directory import Directory
from spe.plan.plan import Plan
from spe.runtime.env import Trace
from spe.runtime.logged_trace import LoggedTrace
from spe.stream.names import NodeId, StreamId
from tests.support.effects import NoEffects
from tests.support.files import watch_files
from tests.support.plans import SEQUENCE, chain, pass_on, source
from tests.support.source_env import ListTrace, source_env


def plan_of(partitions: int = 1) -> Deployed:
    return chain([source("a", reader={})], [("s", pass_on("a"), SEQUENCE)], bucket_us=10_000 * partitions)


PLAN, DIRECTORY = plan_of()


def replica(origin: str = "log 1", plan: Plan = PLAN, directory: Directory = DIRECTORY) -> Replica:
    (id,) = directory.replicas_on(NodeId("n1a"))
    made = Replica(plan, directory, id, random=Random(0), now=0, effects=NoEffects())
    made.serving.origin = origin
    return made


def rejections(numbers: Iterable[int], *, result: bool = False, reason: str = "ValueError: bad") -> list[Rejection]:
    stream, at, id = ("", None, None) if result else ("a", 0, 10)
    return [
        Rejection(StreamId("s"), result, n, StreamId(stream), at, id, n * 1_000_000, {"n": n}, reason) for n in numbers
    ]


def writer(
    disk: SimDisk, plan: Plan = PLAN, directory: Directory = DIRECTORY, trace: Trace | None = None
) -> RejectedRows:
    (id,) = directory.replicas_on(NodeId("n1a"))
    return RejectedRows(source_env(disk, trace=trace), plan, id)


def lines(disk: SimDisk, *, synced: bool = True) -> list[dict[str, Any]]:
    (path,) = disk.files
    file = disk.files[path]
    return [json.loads(line) for line in (file.synced if synced else bytes(file.written)).splitlines()]


def numbers(disk: SimDisk) -> list[int]:
    return [line["n"] for line in lines(disk) if "n" in line]


async def test_a_line_names_the_row_and_the_reason(jump_clock: JumpClock) -> None:
    disk = SimDisk()
    one = writer(disk)
    one.take(replica(), rejections([1]) + rejections([1], result=True))
    assert await one.flush()
    assert list(map(str, disk.files)) == ["nodes/n1a/rejected/u1-0.jsonl"]
    assert lines(disk) == [
        {"plan": PLAN.fingerprint, "origin": "log 1"},
        {
            "operator": "s",
            "kind": "row",
            "n": 1,
            "from": "a/0",
            "id": 10,
            "time": "1970-01-01T00:00:01",
            "values": {"n": 1},
            "reason": "ValueError: bad",
        },
        {
            "operator": "s",
            "kind": "result",
            "n": 1,
            "from": None,
            "id": None,
            "time": "1970-01-01T00:00:01",
            "values": {"n": 1},
            "reason": "ValueError: bad",
        },
    ]


async def test_rows_rejected_again_by_a_redo_or_restart_are_written_once(jump_clock: JumpClock) -> None:
    disk = SimDisk()
    one = writer(disk)
    one.take(replica(), rejections(range(1, 6)))
    one.take(replica(), rejections(range(3, 8)))
    assert await one.flush()
    assert numbers(disk) == [1, 2, 3, 4, 5, 6, 7]
    other = writer(disk)
    other.take(replica(), rejections(range(4, 10)))
    other.take(replica(), rejections([20]))  # a partner's state was installed in between
    assert await other.flush()
    assert numbers(disk) == [1, 2, 3, 4, 5, 6, 7, 8, 9, 20]


async def test_a_torn_line_is_written_again(jump_clock: JumpClock) -> None:
    disk = SimDisk()
    one = writer(disk)
    one.take(replica(), rejections([1, 2]))
    assert await one.flush()
    disk = disk.power_loss(lambda path, synced, written: written[:-3])
    other = writer(disk)
    other.take(replica(), rejections([1, 2, 3]))
    assert await other.flush()
    assert numbers(disk) == [1, 2, 3]


async def test_rows_of_another_plan_or_log_are_counted_from_zero(jump_clock: JumpClock) -> None:
    disk = SimDisk()
    one = writer(disk)
    one.take(replica(), rejections([1, 2]))
    assert await one.flush()
    one.take(replica("log 2"), rejections([1]))
    assert await one.flush()
    plan = plan_of(2).plan
    other = writer(disk, plan)
    other.take(replica("log 2", plan), rejections([1, 2]))
    assert await other.flush()
    assert [line.get("n", line.get("origin")) for line in lines(disk)] == ["log 1", 1, 2, "log 2", 1, "log 2", 1, 2]


async def test_a_full_disk_is_waited_for(jump_clock: JumpClock) -> None:
    disk, trace = SimDisk(), ListTrace()
    one = writer(disk, trace=trace)
    one.take(replica(), rejections([1]))
    assert await one.flush()
    disk.space_left = 50
    one.take(replica(), rejections([2, 3]))
    assert not await one.flush()
    assert not await one.flush()
    assert numbers(disk) == [1]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(one.run)
        await trio.sleep(5)
        disk.space_left = None
        await trio.sleep(2)
        nursery.cancel_scope.cancel()
    assert numbers(disk) == [1, 2, 3]
    (told,) = trace.named("rejected_unwritten")
    assert "No space left on device; going on" in told["why"]


async def test_waiting_for_room_for_a_header_holds_no_file_open(
    jump_clock: JumpClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SimDisk()
    opened = watch_files(disk, monkeypatch)
    disk.space_left = 20
    one = writer(disk)
    one.take(replica(), rejections([1]))
    assert not await one.flush()
    assert not await one.flush()
    assert [file._closed for file in opened] == [True, True]
    disk.space_left = None
    assert await one.flush()
    assert numbers(disk) == [1]


async def test_lines_appended_before_a_cancellation_are_not_repeated(jump_clock: JumpClock) -> None:
    disk = SimDisk()
    one = writer(disk)
    one.take(replica(), rejections([1, 2]))
    disk.stall(True)
    with trio.move_on_after(1):
        await one.flush()
    assert [line["n"] for line in lines(disk, synced=False)[1:]] == [1, 2]
    disk.stall(False)
    assert await one.flush()
    assert numbers(disk) == [1, 2], "once, and synced"
    one.take(replica(), rejections([3]))
    assert await one.flush()
    assert numbers(disk) == [1, 2, 3]


async def test_a_failing_disk_blocks_nothing(jump_clock: JumpClock) -> None:
    disk, trace = SimDisk(), ListTrace()
    disk.sync_fails = True
    one = writer(disk, trace=trace)
    one.take(replica(), rejections([1]))
    assert await one.flush()
    one.take(replica(), rejections([2]))
    assert await one.flush()
    (told,) = trace.named("rejected_unwritten")
    assert "are counted only" in told["why"]


async def test_the_file_is_bounded(jump_clock: JumpClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rejected_rows, "FILE_BYTES", 1000)
    monkeypatch.setattr(rejected_rows, "_WRITTEN", 1)
    disk, trace = SimDisk(), ListTrace()
    one = writer(disk, trace=trace)
    one.take(replica(), rejections(range(1, 100)))
    assert await one.flush()
    assert 1 < len(numbers(disk)) < 10
    (told,) = trace.named("rejected_unwritten")
    assert "is full: further rows that are rejected are counted only" in told["why"]


async def test_rows_that_wait_for_the_disk_are_bounded(jump_clock: JumpClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rejected_rows, "WAITING", 3)
    disk, trace = SimDisk(), ListTrace()
    one = writer(disk, trace=trace)
    one.take(replica(), rejections(range(1, 100)))
    assert await one.flush()
    assert numbers(disk) == [1, 2, 3]
    (told,) = trace.named("rejected_unwritten")
    assert "come faster than they are written" in told["why"]


async def test_rejections_are_logged_at_once_and_then_every_minute(
    jump_clock: JumpClock, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = ListTrace()
    one = writer(SimDisk(), trace=LoggedTrace(trace, lambda: 0))
    for n in range(1, 200):
        one.take(replica(), rejections([n], reason="ValueError: a bad\x1b[2J\nrow"))
        await trio.sleep(1)
    said = capsys.readouterr().err.splitlines()
    assert said[0] == (
        "u1/0@n1a: operator 's' goes on without a row of a/0 of 1970-01-01T00:00:01: ValueError: a bad\\x1b[2J; "
        "see nodes/n1a/rejected/u1-0.jsonl"
    )
    assert len(said) == len(trace.named("rejected")) == 4
    assert " and 59 more since the last one told: " in said[1]
