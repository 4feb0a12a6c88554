"""The coordinator's database, and its errors when the disk fails."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from replicas.placement.deciders.move import Move, MovePhase
from replicas.placement.store import ORDERS, CoordinatorStore
from replicas.simulation.world.disk import SimDisk
from spe.errors import LogCorrupt
from spe.log.issued_directories import PATH, IssuedVersion, read_issued, read_moves
from spe.plan.directory import Role, Version
from spe.runtime.env import Env
from spe.runtime.production import NullTrace
from spe.stream.ids import PartitionId
from spe.stream.names import NodeId, UnitId
from tests.unit.spe.plan.test_revision import revision

WANTED = {PartitionId(UnitId("f"), 1): frozenset({NodeId("n1"), NodeId("n2")})}


Opening = Callable[[SimDisk], CoordinatorStore]


@pytest.fixture
def store() -> Iterator[Opening]:
    """Opens stores on a disk; they are closed after the test."""
    nothing: Any = None
    with ExitStack() as opened:
        yield lambda disk: opened.enter_context(
            CoordinatorStore(Env(nothing, nothing, disk, nothing, Random(0), NullTrace()))
        )


async def test_each_start_begins_a_larger_epoch(store: Opening) -> None:
    disk = SimDisk()
    assert await store(disk).begin(70) == 70
    assert await store(disk).begin(60) == 71, "the clock went back"
    assert await store(disk.restarted()).begin(90) == 90


async def test_wanted_standbys_and_the_last_number_are_restored(store: Opening) -> None:
    disk = SimDisk()
    one = store(disk)
    assert (one.wanted("plan"), one.last_number()) == ({}, 0)
    one.want("plan", WANTED)
    await one.write()
    for number in (1, 2):
        one.ordered(number, 70, 5, "install", "f/1@n1", "")
    await one.write()
    disk = disk.restarted()
    again = store(disk)
    assert (again.wanted("plan"), again.last_number()) == (WANTED, 2)
    again.want("plan", {})
    await again.write()
    assert store(disk).wanted("plan") == {}


async def test_orders_of_another_plan_do_not_affect_this_one(store: Opening) -> None:
    """H7: its units may have the same names, and other standbys are worth more."""
    disk = SimDisk()
    one, other = store(disk), {PartitionId(UnitId("f"), 0): frozenset({NodeId("n3")})}
    one.want("other", other)
    await one.write()
    assert one.wanted("plan") == {}
    one.want("plan", WANTED)
    await one.write()
    one.want("plan", {})
    await one.write()
    again = store(disk.restarted())
    assert (again.wanted("plan"), again.wanted("other")) == ({}, other)


async def test_the_last_loads_of_a_plan_are_restored(store: Opening) -> None:
    one, other = PartitionId(UnitId("f"), 0), PartitionId(UnitId("f"), 1)
    disk = SimDisk()
    kept = store(disk)
    assert kept.loads("plan") == {}
    kept.note_loads("plan", {one: 0.5, other: 0.25}, {other: 1e9})
    await kept.write()
    kept.note_loads("other", {one: 0.75}, {})
    await kept.write()
    kept.note_loads("plan", {one: 0.5}, {one: 2e9})
    await kept.write()
    again = store(disk.restarted())
    assert (again.loads("plan"), again.loads("other")) == ({one: 0.5}, {one: 0.75})
    assert (again.memory("plan"), again.memory("other")) == ({one: 2e9}, {})


async def test_each_version_is_logged_with_its_reason(store: Opening) -> None:
    """X5: and is read from the folder of a run; with the version itself, or not at all."""
    disk = SimDisk()
    one = store(disk)
    made = [replace(revision(), version=Version(5, number)) for number in (1, 2, 3)]
    await one.keep("plan", made[0], 70, "move 1")
    await one.keep("plan", made[1], 80, "set n3 x=4s")
    disk.space_left = 0
    with pytest.raises(OSError, match="space"):
        await one.keep("plan", made[2], 90, "set n3 x=5s")
    expected = [IssuedVersion(70, Version(5, 1), "move 1"), IssuedVersion(80, Version(5, 2), "set n3 x=4s")]
    assert one.issued("plan") == expected
    assert read_issued(disk, "plan") == expected
    assert read_issued(disk, "another") == read_issued(SimDisk(), "plan") == []


async def test_newest_orders_are_stored(store: Opening) -> None:
    disk = SimDisk()
    one = store(disk)
    for number in range(1, ORDERS + 11):
        one.ordered(number, 70, 5, "install", "f/1@n1", "")
    await one.write()
    (kept, first) = one._database.execute("SELECT count(*), min(number) FROM orders").fetchone()
    assert (kept, first) == (ORDERS, 11)


@pytest.mark.parametrize("damage", ["flipped", "torn", "other"])
async def test_a_damaged_store_is_named_with_a_remedy(store: Opening, damage: str) -> None:
    disk = SimDisk()
    one = store(disk)
    await one.begin(1)
    one.want("plan", WANTED)
    await one.write()
    data = bytearray(disk.read(PATH))
    match damage:
        case "flipped":
            data[3] ^= 1
        case "torn":
            del data[len(data) // 2 :]
        case _:
            data[:] = b"SELECT 1"
    await disk.write_atomic(PATH, bytes(data))
    with pytest.raises(LogCorrupt, match=r"coordinator/state\.sqlite.*move the file away"):
        store(disk)


async def test_on_a_full_disk_the_old_state_stays_and_no_epoch_begins(store: Opening) -> None:
    disk = SimDisk()
    one = store(disk)
    await one.begin(70)
    disk.space_left = 0
    one.want("plan", WANTED)
    with pytest.raises(OSError, match="space"):
        await one.write()
    with pytest.raises(OSError, match="space"):
        await store(disk).begin(80)
    disk.space_left = 1 << 30
    again = store(disk)
    assert again.wanted("plan") == {}
    assert await again.begin(0) == 71


def connections_made(monkeypatch: pytest.MonkeyPatch) -> list[sqlite3.Connection]:
    made: list[sqlite3.Connection] = []
    connect = sqlite3.connect

    def connect_and_note(*args: Any, **options: Any) -> sqlite3.Connection:
        made.append(connect(*args, **options))
        return made[-1]

    monkeypatch.setattr(sqlite3, "connect", connect_and_note)
    return made


@pytest.mark.parametrize("damaged", [False, True])
async def test_no_database_connection_stays_open(
    store: Opening, monkeypatch: pytest.MonkeyPatch, damaged: bool
) -> None:
    """Python 3.13 warns of each one; earlier versions say nothing."""
    disk = SimDisk()
    made = connections_made(monkeypatch)
    if damaged:
        await disk.write_atomic(PATH, b"SELECT 1")
        with pytest.raises(LogCorrupt):
            store(disk)
    else:
        with store(disk) as one:
            await one.begin(1)
    (connection,) = made
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        connection.execute("SELECT 1")


async def test_order_refused_by_disk_is_not_written_later(store: Opening) -> None:
    """Whoever asked was told that it cannot be kept."""
    disk = SimDisk()
    one, move = store(disk), Move(1, PartitionId(UnitId("u1"), 0), NodeId("n1"), NodeId("n2"), Role.ACTIVE, "ordered")
    await one.begin(1)
    disk.space_left = 0
    with pytest.raises(OSError, match="space"):
        await one.keep_moves("plan", [move])
    one.note_moves("plan", [])
    disk.space_left = None
    one.want("plan", WANTED)
    await one.write()
    assert store(disk.restarted()).moves("plan") == []


async def test_the_moves_of_a_run_can_be_read(store: Opening) -> None:
    disk = SimDisk()
    move = Move(1, PartitionId(UnitId("u1"), 0), NodeId("n1"), NodeId("n2"), Role.ACTIVE, "ordered", predicted_us=7)
    move.began_us = {MovePhase.JOIN: 5, MovePhase.DROPPED: 9}
    move.phase, move.why = MovePhase.DROPPED, "cancelled"
    await store(disk).keep_moves("plan", [move])
    (made,) = read_moves(disk, "plan")
    assert made == (1, "u1/0", "n1", "n2", "ordered", ((5, "join"), (9, "dropped")), 7, "cancelled")
    assert read_moves(disk, "another") == read_moves(SimDisk(), "plan") == []


async def test_newest_version_is_of_the_latest_epoch(store: Opening) -> None:
    """D2: a coordinator that lost its store began to count again, and ours has taken its version since."""
    disk = SimDisk()
    first = store(disk)
    for version in (Version(5, 9), Version(6, 2)):
        await first.keep("plan", replace(revision(), version=version))
    newest = store(disk.restarted()).revision("plan")
    assert newest is not None
    assert newest.version == Version(6, 2)
