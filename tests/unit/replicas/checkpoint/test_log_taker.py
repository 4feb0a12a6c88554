"""Logs that a standby follows, and what it takes where there is none (G9)."""

from __future__ import annotations

from contextlib import redirect_stderr
from dataclasses import replace
from io import StringIO
from random import Random
from typing import Any
from unittest.mock import patch

import pytest
import trio

from replicas.checkpoint.log import LogKind
from replicas.checkpoint.log_taker import ANY, LogTaker
from replicas.checkpoint.log_transfer import SentSlice
from replicas.checkpoint.replica_log import ReplicaLog
from replicas.checkpoint.store import CheckpointStore, encode_snapshot
from replicas.checkpoint.taker import CheckpointTaker
from replicas.placement.standby import Standby
from replicas.simulation.world.disk import SimDisk
from spe.errors import LogFull
from spe.log.marks import Mark, Marks
from spe.runtime.env import Env
from spe.runtime.production import NullTrace
from spe.stream.ids import ReplicaId
from spe.wire.state import encode_state
from tests.support.source_env import AtOnceCompute
from tests.unit.replicas.placement.test_install import PARTITION, plan
from tests.unit.replicas.placement.test_standby import EVERY, A, hears, output, positions, standby

#: What the only output of a commit had made.
MADE = {"last_id": 0, "boundary": 0}


class _Clock:
    now = 0

    def monotonic_us(self) -> int:
        self.now += EVERY
        return self.now

    def step_ns(self) -> int:
        return 0


class Maker:
    """A replica that runs, at these positions; its log may be unreadable.

    As a real one it sends what follows the record that it is asked from, or all that its newest commit needs (G9).
    """

    def __init__(self) -> None:
        self.plan = plan().plan
        self.at = 1
        #: How far its log is replayed from behind that.
        self.behind = 0
        self.has_log = True
        self.asked: list[str] = []
        self.begins_a_log("a/1")

    def begins_a_log(self, identity: str) -> None:
        self.log, self.slices = identity, list[dict[str, Any]]()

    async def fetch(self, id: ReplicaId, maker: str, log: str, since: int) -> bytearray | str:
        await trio.lowlevel.checkpoint()
        self.asked.append(log)
        if not log:
            return bytearray(encode_snapshot(self.plan, id.of, {"positions": [self.at] * 3}))
        if not self.has_log:
            return "no copy of the log can be read"
        if not self.slices or self.slices[-1]["time"] < self.at:
            self.slices.append(a_slice(self.at, len(self.slices) + 1, self.at - self.behind))
        if log == self.log and since < len(self.slices):
            return self.sent(log, self.slices[since:])
        return self.sent(self.log, self.slices[-1:])

    def sent(self, log: str, slices: list[dict[str, Any]]) -> bytearray:
        """Slices of one record each that follow each other, as they are sent."""
        first, last = slices[0]["first"], slices[-1]["first"]
        data = encode_snapshot(self.plan, PARTITION, {"log": log, "first": first, "last": last, "slices": slices})
        return bytearray(data)


def commit_at(position: int, begin: int) -> bytes:
    return encode_state({"begin": begin, "positions": [position] * 3, "origins": ["", "", ""], "outputs": [MADE]})


def a_slice(time: int, first: int, position: int) -> dict[str, Any]:
    """One that needs nothing before it."""
    kinds, payloads = [int(LogKind.COMMIT)], [commit_at(position, time)]
    return {"time": time, "needs": first, "first": first, "kinds": kinds, "payloads": payloads}


async def following(disk: SimDisk) -> tuple[Maker, Standby, LogTaker]:
    """A standby that has taken record 1 of a log, which ends at 2."""
    maker, follower = Maker(), standby()
    taker = made(maker, follower, disk)
    maker.at = 2
    hears(follower, A, output(2))
    await taker.take_if_due()
    assert (taker._log, taker._since, positions(follower)) == ("a/1", 1, [2, 2, 2])
    return maker, follower, taker


def sends(taker: LogTaker, answers: list[bytearray]) -> list[tuple[str, int]]:
    """The maker sends these in turn; returns what it is asked for: (log, up to which record it is held)."""
    asked: list[tuple[str, int]] = []

    async def fetch(id: ReplicaId, name: str, log: str, since: int) -> bytearray | str:
        await trio.lowlevel.checkpoint()
        asked.append((log, since))
        return answers[len(asked) - 1]

    taker._fetch = fetch
    return asked


def times(taker: LogTaker) -> list[int]:
    assert taker._kept.log is not None
    return [c.time for c in taker._kept.log.commits]


async def test_later_slices_are_added_to_the_log() -> None:
    maker, follower, taker = await following(SimDisk())
    for maker.at in (5, 9):
        hears(follower, A, output(maker.at))
        await taker.take_if_due()
    assert maker.asked == [ANY, "a/1", "a/1"]
    assert (times(taker), positions(follower)) == ([2, 5, 9], [9, 9, 9])


async def test_after_a_gap_the_log_is_replaced() -> None:
    """G9: records 2 to 4 are missing, and with them the footprints that they have."""
    maker, follower, taker = await following(SimDisk())
    sends(taker, [maker.sent("a/1", [a_slice(9, 5, 9)])])
    hears(follower, A, output(9))
    await taker.take_if_due()
    assert (times(taker), positions(follower)) == ([9], [9, 9, 9])


async def test_after_a_write_that_failed_all_is_asked_for_again() -> None:
    """G9: a part of it may have been written, and would be twice in the log."""
    maker, follower, taker = await following(disk := SimDisk())
    slices = [a_slice(5, 2, 5), a_slice(9, 3, 9)]
    asked = sends(taker, [maker.sent("a/1", slices), maker.sent("a/1", [a_slice(2, 1, 2), *slices])])
    hears(follower, A, output(9))
    before = len(commit_at(5, 5))
    disk.space_left = 3 * before  # for one of them in each copy
    with redirect_stderr(StringIO()):
        await taker.take_if_due()
        assert "No space left" in follower.trouble
        assert times(taker) == [2, 5]
        disk.space_left = None
        hears(follower, A, output(10))
        await taker.take_if_due()
    assert asked == [("a/1", 1), (ANY, 1)]
    assert (times(taker), positions(follower), follower.trouble) == ([2, 5, 9], [9, 9, 9], "")


async def test_a_slice_needs_the_same_records_as_in_the_makers_log() -> None:
    """G9: the second one continues the first; without its records it could not be replayed."""
    kept = made(Maker(), standby(), SimDisk())._kept
    await kept.open()
    records = [(LogKind.FOOTPRINTS, b"x")]
    await kept.follow([SentSlice(1, records, commit_at(1, 1), 41, 41), SentSlice(2, records, commit_at(1, 1), 41, 43)])
    assert kept.log is not None
    assert [c.needs for c in kept.log.commits] == [1, 1]


def made(maker: Maker, of: Standby, disk: SimDisk) -> LogTaker:
    network: Any = None
    env = Env(_Clock(), network, disk, AtOnceCompute(), Random(0), NullTrace())  # type: ignore[arg-type]
    id = ReplicaId(*PARTITION, of.id.node)
    kept, store = ReplicaLog(env, maker.plan, id), CheckpointStore(env, maker.plan, id)
    return LogTaker(env, maker.plan, of, kept, store, maker.fetch)


async def test_standby_takes_full_snapshots_while_no_log_exists() -> None:
    """It says so once, holds what it acknowledges also after a restart, and follows the log again when there is one."""
    maker = Maker()
    disk, follower = SimDisk(), standby()
    first = made(maker, follower, disk)

    async def goes_on(upto: int) -> None:
        maker.at = upto
        hears(follower, A, output(upto))
        await first.take_if_due()

    await goes_on(2)
    assert positions(follower) == [2, 2, 2]
    maker.has_log = False
    with redirect_stderr(StringIO()) as said:
        for at in range(3, 11):
            await goes_on(at)
    assert maker.asked.count("") >= 3
    assert follower.trouble == f"{A}: no copy of the log can be read"
    assert positions(follower) > [2, 2, 2], "upstream need not keep all"
    assert said.getvalue().count("takes whole snapshots") == 1

    again = standby()
    disk = disk.restarted()
    await (second := made(maker, again, disk)).look_on_disk()
    assert positions(again) == [2, 2, 2], "the older of the two: the log"
    first, follower, maker.has_log = second, again, True
    await goes_on(11)
    assert positions(follower) == [11, 11, 11]
    assert follower.trouble == ""
    assert not disk.list(first._store.folder)


@pytest.mark.parametrize("full", [False, True])
async def test_log_from_before_held_state_is_reported_and_awaited(full: bool) -> None:
    """Whole snapshots are taken instead where a producer fills up; it follows once the log has passed what it holds."""
    maker, follower = Maker(), standby()
    taker = made(maker, follower, SimDisk())

    async def goes_on(upto: int) -> None:
        maker.at = upto
        hears(follower, A, output(upto))
        if full:
            hears(follower, "source:a", output(1000, stream="a", fill=0.9))
        await taker.take_if_due()

    await goes_on(5)
    maker.behind = 8
    maker.begins_a_log("a/2")
    with redirect_stderr(StringIO()) as said:
        for at in range(6, 12):
            await goes_on(at)
    assert f"{A}: its log is replayed from before what is held here" == follower.trouble
    assert said.getvalue().count("replayed from before") == 1
    assert ("" in maker.asked) == full
    assert (positions(follower) > [5, 5, 5]) == full
    maker.behind = 0
    for at in range(20, 26):
        await goes_on(at)
    assert follower.trouble == ""
    assert positions(follower) == [25, 25, 25]


@pytest.mark.parametrize("works", [True, False])
@pytest.mark.parametrize("follows", [True, False])
async def test_only_synced_log_of_retiring_replica_is_acknowledged(works: bool, follows: bool) -> None:
    """The same process has it open, with a commit that no copy has synced; the power may fail.

    Args:
      works: the disk still syncs.
      follows: the standby goes on with the log; else with checkpoints.
    """
    maker, disk, follower = Maker(), SimDisk(), standby()
    taker: LogTaker | CheckpointTaker = made(maker, follower, disk)
    env, kept = taker._env, taker._kept
    await kept.open()
    log = kept.log
    assert log is not None

    def writes(at: int) -> None:
        log.write(
            at, [], encode_state({"begin": at, "positions": [at] * 3, "origins": ["", "", ""], "outputs": [MADE]})
        )

    writes(10)
    await log.sync()
    writes(20)
    disk.sync_fails = not works
    if not follows:
        taker = CheckpointTaker(
            env, maker.plan, follower, taker._store, kept, lambda id, name: maker.fetch(id, name, "", 0)
        )
    await taker.look_on_disk()
    assert positions(follower) == ([20] * 3 if works else [0] * 3)
    id = ReplicaId(*PARTITION, follower.id.node)
    after = ReplicaLog(replace(env, storage=disk.power_loss(lambda path, synced, written: synced)), maker.plan, id)
    head = await after.head()
    assert head is not None
    assert head.positions >= positions(follower), "what is acknowledged survives"


async def test_log_that_a_copy_cannot_mark_is_reported() -> None:
    """It is not acknowledged; once it is marked, that is over."""
    maker, follower = Maker(), standby()
    taker = made(maker, follower, SimDisk())

    async def goes_on(upto: int) -> None:
        maker.at = upto
        hears(follower, A, output(upto))
        await taker.take_if_due()

    await goes_on(2)
    with patch.object(Marks, "write", side_effect=LogFull("no room for a mark")), redirect_stderr(StringIO()) as said:
        await goes_on(3)
    assert follower.trouble == "its log is not in both copies: no room for a mark"
    assert said.getvalue().count("no room for a mark") == 1
    assert positions(follower) == [2, 2, 2]
    await goes_on(4)
    assert follower.trouble == ""
    assert positions(follower) == [4, 4, 4]


async def test_after_a_whole_snapshot_the_log_is_taken_anew() -> None:
    """G9: what is held is further than the log, whose next slices may begin before it."""
    maker, follower, taker = await following(SimDisk())
    maker.has_log = False
    with redirect_stderr(StringIO()):
        for maker.at in range(3, 9):
            hears(follower, A, output(maker.at))
            await taker.take_if_due()
        maker.has_log = True
        whole = len(maker.asked)
        assert "" in maker.asked
        for maker.at in range(9, 14):
            hears(follower, A, output(maker.at))
            await taker.take_if_due()
    assert maker.asked[whole] == ANY
    assert positions(follower) == [13, 13, 13]


async def test_checkpoints_stay_until_the_log_can_be_read() -> None:
    """A8: a log that turns out to be damaged is begun anew, and then they are all that there is."""
    maker, follower = Maker(), standby()
    taker = made(maker, follower, SimDisk())
    await taker._store.write(encode_snapshot(maker.plan, PARTITION, {"positions": [1] * 3}))
    maker.at = 2
    hears(follower, A, output(2))

    async def no_head() -> None:
        await trio.lowlevel.checkpoint()

    with patch.object(taker._kept, "head", no_head), redirect_stderr(StringIO()):
        await taker.take_if_due()
    assert await taker._store.newest() is not None
    assert positions(follower) == [0, 0, 0]
    hears(follower, A, output(2))
    await taker.take_if_due()
    assert await taker._store.newest() is None
    assert positions(follower) == [2, 2, 2]


async def test_a_log_in_one_copy_does_not_replace_another() -> None:
    """G9: the one before is valid until both copies hold the new one."""
    maker, follower, taker = await following(SimDisk())
    write = Marks.write

    async def in_one(marks: Marks, mark: Mark) -> None:
        if marks._folder.name == "1":
            raise LogFull("no room for a mark")
        await write(marks, mark)

    maker.begins_a_log("a/2")
    maker.at = 5
    hears(follower, A, output(5))
    with patch.object(Marks, "write", in_one), redirect_stderr(StringIO()):
        await taker.take_if_due()
    assert "not in both copies" in follower.trouble
    assert (times(taker), positions(follower)) == ([2], [2, 2, 2])
