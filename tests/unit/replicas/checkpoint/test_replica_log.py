"""Which log of a partition on a node counts (G9)."""

from __future__ import annotations

from pathlib import PurePosixPath
from random import Random
from typing import Any

import pytest
import trio

from replicas.checkpoint.log_transfer import SentSlice
from replicas.checkpoint.replica_log import ReplicaLog
from replicas.simulation.world.disk import SimDisk
from spe.runtime.env import Env
from spe.runtime.production import NullTrace
from spe.stream.ids import ReplicaId
from tests.support.source_env import AtOnceCompute
from tests.unit.replicas.placement.test_install import PARTITION, plan
from tests.unit.replicas.placement.test_standby import A


class _Clock:
    def step_ns(self) -> int:
        return 0


class _Disk(SimDisk):
    """Refuses one file."""

    refused: PurePosixPath | None = None

    async def write_atomic(self, path: PurePosixPath, data: bytes | bytearray | memoryview) -> None:
        if path == self.refused:
            raise OSError("No space left on device")
        await super().write_atomic(path, data)


def _replica_log(disk: SimDisk, compute: Any) -> ReplicaLog:
    clock: Any = _Clock()
    network: Any = None
    env = Env(clock, network, disk, compute, Random(0), NullTrace())
    return ReplicaLog(env, plan().plan, ReplicaId(*PARTITION, A))


async def log_on(disk: SimDisk) -> ReplicaLog:
    log = _replica_log(disk, AtOnceCompute())
    await log.open()
    return log


def slice_to(time: int) -> list[SentSlice]:
    return [SentSlice(time, [], b"C", 1, 1)]


async def no_longer_refusable() -> tuple[_Disk, ReplicaLog]:
    """A log with a slice, on a disk that has no room for a mark that a log does not count."""
    disk = _Disk()
    log = await log_on(disk)
    await log.replace(slice_to(10))
    disk.refused = log.folder / "refused"
    return disk, log


def ends(log: ReplicaLog) -> list[int]:
    assert log.log is not None
    return [c.time for c in log.log.commits]


async def test_log_not_marked_on_disk_does_not_count_after_restart() -> None:
    """It was whole, but the one before could not be marked; the next one, which did get there, is the one to read."""
    disk, log = await no_longer_refusable()
    with pytest.raises(OSError, match="No space left"):
        await log.replace(slice_to(20))
    assert ends(log) == ends(await log_on(disk.restarted())) == [10]
    disk.refused = None
    await log.replace(slice_to(30))
    assert ends(log) == ends(await log_on(disk.restarted())) == [30]


async def test_log_whose_creation_was_cancelled_late_can_be_opened() -> None:
    scope = trio.CancelScope()

    class Cancelling(SimDisk):
        def remove(self, path: PurePosixPath) -> None:
            super().remove(path)
            scope.cancel()

    log = await log_on(Cancelling())
    with scope:
        await log.replace(slice_to(10))
    assert scope.cancelled_caught
    await log.forget()
    await log.open()
    assert (log.trouble, ends(log)) == ("", [10])


async def test_a_log_whose_opening_was_cancelled_can_be_opened() -> None:
    """The tasks of a partition are cancelled when it gets another role here; the next ones open it anew."""
    disk = SimDisk()
    await (await log_on(disk)).replace(slice_to(10))
    scope = trio.CancelScope()

    class Cancelled(AtOnceCompute):
        async def run(self, function: Any) -> Any:
            scope.cancel()
            return await super().run(function)

    log = _replica_log(disk.restarted(), Cancelled())
    with scope:
        await log.open()
    assert scope.cancelled_caught
    await log.open()
    assert (log.trouble, ends(log)) == ("", [10])


async def test_log_is_refused_later_if_disk_prevents_it_now() -> None:
    disk, log = await no_longer_refusable()
    await log.refuse("damaged")
    assert (log.trouble, log.state) == ("damaged; No space left on device", None)
    await log.open()
    assert (log.trouble, log.state) == ("damaged; No space left on device", None)
    assert await log.head() is None
    disk.refused = None
    await log.open()
    assert (log.trouble, ends(log)) == ("", [])
    assert ends(await log_on(disk.restarted())) == []


async def test_a_log_whose_refusal_was_cancelled_is_refused_later() -> None:
    scope = trio.CancelScope()

    class Cancelling(SimDisk):
        async def write_atomic(self, path: PurePosixPath, data: bytes | bytearray | memoryview) -> None:
            if data == b"damaged":
                scope.cancel()
            await super().write_atomic(path, data)

    log = await log_on(Cancelling())
    await log.replace(slice_to(10))
    with scope:
        await log.refuse("damaged")
    assert scope.cancelled_caught
    await log.open()
    assert (log.trouble, ends(log)) == ("", [])


async def test_log_replacing_one_not_yet_refused_can_be_read() -> None:
    disk, log = await no_longer_refusable()
    await log.refuse("damaged")
    disk.refused = None
    await log.replace(slice_to(20))
    await log.open()
    assert (log.trouble, ends(log)) == ("", [20])
    await log.forget()
    await log.open()
    assert (log.trouble, ends(log)) == ("", [])


async def test_new_log_survives_power_loss_once_old_one_is_void() -> None:
    """A file that was removed may be there again, unless its folder was synced since."""
    lost: list[SimDisk] = []

    class Removing(SimDisk):
        def __init__(self) -> None:
            super().__init__()
            self.removed = {}

        async def write_atomic(self, path: PurePosixPath, data: bytes | bytearray | memoryview) -> None:
            await super().write_atomic(path, data)
            assert self.removed is not None
            self.removed = {p: d for p, d in self.removed.items() if p.parent != path.parent}
            left = self.restarted()
            for removed in self.removed:
                await left.write_atomic(removed, self.removed[removed])
            lost.append(left)

    log = await log_on(Removing())
    await log.replace(slice_to(10))
    lost.clear()
    await log.replace(slice_to(20))
    found = [ends(await log_on(disk.restarted())) for disk in lost]
    assert found[0] == [10]
    assert found[-1] == [20]
    assert [] not in found


async def test_the_files_of_each_refused_log_go_once() -> None:
    cleared: list[PurePosixPath] = []

    class Watched(SimDisk):
        def list(self, folder: PurePosixPath) -> list[str]:
            cleared.append(folder)
            return super().list(folder)

    log = await log_on(Watched())
    first = log.folder
    for time in (10, 20, 30):
        await log.replace(slice_to(time))
    assert first / "0" in cleared
    cleared.clear()
    await log.forget_refused()
    assert cleared == []


async def test_log_counts_even_if_files_of_old_log_remain() -> None:
    class Keeping(SimDisk):
        keeps: PurePosixPath | None = None

        def remove(self, path: PurePosixPath) -> None:
            if self.keeps is not None and self.keeps in path.parents:
                raise OSError("Read-only file system")
            super().remove(path)

    disk = Keeping()
    log = await log_on(disk)
    await log.replace(slice_to(10))
    old = disk.keeps = log.folder
    await log.replace(slice_to(20))
    assert (log.trouble, ends(log)) == ("", [20])
    disk.keeps = None
    assert disk.list(old / "0")
    await log.forget_refused()
    assert not disk.list(old / "0")
