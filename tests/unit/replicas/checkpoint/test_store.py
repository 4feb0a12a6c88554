"""Checkpoints on disk (A8): a damaged one is named, and the one before it used."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace
from pathlib import PurePosixPath
from random import Random
from typing import Any

import pytest
import trio
import trio.lowlevel

from replicas.checkpoint.store import CheckpointStore, decode_snapshot, encode_snapshot
from replicas.simulation.world.disk import SimDisk
from spe.errors import RemoteProtocolError
from spe.plan.plan import Plan
from spe.runtime.env import Env
from spe.stream.ids import ReplicaId
from spe.stream.names import NodeId, UnitId
from tests.simulation.test_reconcile import make_plan

REPLICA = ReplicaId(UnitId("f1"), 0, NodeId("n1a"))
FOLDER = PurePosixPath("nodes/n1a/f1-0")


def snapshot(number: int) -> dict[str, Any]:
    return {"restart": number, "fragment": {}, "outputs": [], "positions": [number], "logs": []}


class Disk:
    """A node's disk with its checkpoints, and the messages about them."""

    def __init__(self, plan: Plan | None = None) -> None:
        self.plan = plan or make_plan().plan
        self.storage = SimDisk()
        self.log: list[str] = []

    def store(self) -> CheckpointStore:
        nothing: Any = None
        env = Env(nothing, nothing, self.storage, self, Random(0), self)
        return CheckpointStore(env, self.plan, REPLICA)

    async def write(self, state: dict[str, Any]) -> None:
        await self.store().write(encode_snapshot(self.plan, REPLICA.of, state))

    async def run(self, function: Callable[[], Any]) -> Any:
        """As env.compute."""
        await trio.lowlevel.checkpoint()
        return function()

    def event(self, name: str, /, **fields: Any) -> None:
        """As env.trace."""
        self.log.append(f"{name} {fields}")

    def names(self) -> list[str]:
        return self.storage.list(FOLDER)


async def test_last_two_checkpoints_remain_and_newest_is_used() -> None:
    disk = Disk()
    for number in range(1, 5):
        await disk.write(snapshot(number))
    assert disk.names() == ["000000000003.checkpoint", "000000000004.checkpoint"]
    found = await disk.store().newest()
    assert found is not None
    assert found["positions"] == [4]


async def test_empty_store_has_no_newest_checkpoint() -> None:
    disk = Disk()
    assert await disk.store().newest() is None
    assert disk.log == []


@pytest.mark.parametrize("damage", ["torn", "empty", "flipped"])
async def test_a_damaged_checkpoint_is_named_and_the_older_one_used(damage: str) -> None:
    disk = Disk()
    await disk.write(snapshot(1))
    await disk.write(snapshot(2))
    path = FOLDER / "000000000002.checkpoint"
    data = bytearray(disk.storage.read(path))
    if damage == "torn":
        del data[len(data) // 2 :]
    elif damage == "empty":
        data.clear()
    else:
        data[len(data) // 2] ^= 4
    disk.storage = disk.storage.with_file(path, bytes(data))
    found = await disk.store().newest()
    assert found is not None
    assert found["positions"] == [1]
    (line,) = disk.log
    assert "checkpoint_refused" in line
    assert str(path) in line
    await disk.write(snapshot(3))
    found = await disk.store().newest()
    assert found is not None
    assert found["positions"] == [3]


async def test_damaged_checkpoint_is_not_one_of_the_two_stored() -> None:
    """A8: the one before the newest is for when that is damaged."""
    disk = Disk()
    for number in (1, 2):
        await disk.write(snapshot(number))
    disk.storage = disk.storage.with_file(FOLDER / "000000000002.checkpoint", b"")
    store = disk.store()
    assert await store.newest() == {**snapshot(1), "plan": disk.plan.fingerprint, "of": str(REPLICA.of)}
    await store.write(encode_snapshot(disk.plan, REPLICA.of, snapshot(3)))
    assert disk.names() == ["000000000001.checkpoint", "000000000003.checkpoint"]


async def test_a_number_of_a_damaged_checkpoint_can_be_used_again() -> None:
    """All files went, as where a log takes over, so the next checkpoint has the name of the damaged one."""
    disk = Disk()
    await disk.write(snapshot(1))
    disk.storage = disk.storage.with_file(FOLDER / "000000000001.checkpoint", b"damaged")
    store = disk.store()
    assert await store.newest() is None
    await store.forget()
    await store.write(encode_snapshot(disk.plan, REPLICA.of, snapshot(2)))
    newest = await store.newest()
    assert newest is not None
    assert newest["positions"] == [2]


def test_every_flipped_bit_and_truncation_is_detected() -> None:
    plan = make_plan().plan
    data = encode_snapshot(plan, REPLICA.of, snapshot(7))
    for at in range(len(data)):
        with pytest.raises(RemoteProtocolError):
            decode_snapshot(plan, REPLICA.of, data[:at])
        for bit in range(8):
            broken = bytearray(data)
            broken[at] ^= 1 << bit
            with pytest.raises(RemoteProtocolError):
                decode_snapshot(plan, REPLICA.of, bytes(broken))


async def test_a_checkpoint_of_another_plan_is_refused_and_named() -> None:
    disk = Disk()
    await disk.write(snapshot(1))
    disk.plan = replace(disk.plan, bucket_us=disk.plan.bucket_us * 2)
    assert await disk.store().newest() is None
    (line,) = disk.log
    assert "a snapshot of plan" in line
    assert disk.plan.fingerprint in line


async def test_a_full_disk_leaves_the_earlier_checkpoints() -> None:
    """Both: the newest may turn out to be damaged."""
    disk = Disk()
    for number in (1, 2):
        await disk.write(snapshot(number))
    before = disk.names()

    class Full(SimDisk):
        async def write_atomic(self, path: PurePosixPath, data: bytes) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

    full = Full()
    full.files = disk.storage.files
    disk.storage = full
    with pytest.raises(OSError, match="No space"):
        await disk.write(snapshot(3))
    assert disk.names() == before
    found = await disk.store().newest()
    assert found is not None
    assert found["positions"] == [2]


async def test_an_unreadable_checkpoint_is_tried_again_later() -> None:
    """Too few file descriptors are no damage."""
    disk = Disk()
    await disk.write(snapshot(1))
    await disk.write(snapshot(2))
    store, read = disk.store(), disk.storage.read

    def refuses(path: PurePosixPath) -> bytes:
        if path.name == "000000000002.checkpoint":
            raise OSError(24, "Too many open files")
        return read(path)

    disk.storage.read = refuses  # type: ignore[method-assign]
    found = await store.newest()
    assert found is not None
    assert found["positions"] == [1]
    disk.storage.read = read  # type: ignore[method-assign]
    found = await store.newest()
    assert found is not None
    assert found["positions"] == [2]


async def test_a_folder_that_cannot_be_listed_is_reported() -> None:
    disk = Disk()
    await disk.write(snapshot(1))
    store = disk.store()

    def refuses(folder: PurePosixPath) -> list[str]:
        raise OSError(13, "Permission denied")

    disk.storage.list = refuses  # type: ignore[method-assign]
    assert await store.newest() is None
    assert any("Permission denied" in line for line in disk.log)
