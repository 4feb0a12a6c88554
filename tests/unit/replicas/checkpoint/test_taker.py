"""Checkpoints that a standby fetches (H1, H2)."""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable
from contextlib import redirect_stderr
from io import StringIO
from pathlib import PurePosixPath
from random import Random
from typing import Any

import trio

from replicas.checkpoint.replica_log import ReplicaLog
from replicas.checkpoint.store import CheckpointStore, encode_held, encode_snapshot
from replicas.checkpoint.taker import CheckpointTaker
from replicas.placement.standby import Standby
from replicas.simulation.world.disk import SimDisk
from spe.runtime.env import Env
from spe.runtime.production import NullTrace
from spe.stream.ids import ReplicaId
from spe.wire.state import encode_state
from tests.support.source_env import AtOnceCompute
from tests.unit.replicas.placement.test_install import PARTITION, plan
from tests.unit.replicas.placement.test_standby import EVERY, A, C, hears, output, positions, standby


class _Clock:
    def monotonic_us(self) -> int:
        return EVERY

    def step_ns(self) -> int:
        return 0


class _Full(SimDisk):
    """Has no room for a checkpoint."""

    async def write_atomic(self, path: PurePosixPath, data: bytes | bytearray | memoryview) -> None:
        if path.suffix == ".checkpoint":
            raise OSError(errno.ENOSPC, "No space left on device")
        await super().write_atomic(path, data)


def taker_of(
    one: Standby, disk: SimDisk, fetch: Callable[[ReplicaId, str], Awaitable[bytearray | str]]
) -> CheckpointTaker:
    found, id = plan().plan, ReplicaId(*PARTITION, one.id.node)
    clock: Any = _Clock()
    network: Any = None
    env = Env(clock, network, disk, AtOnceCompute(), Random(0), NullTrace())
    return CheckpointTaker(env, found, one, CheckpointStore(env, found, id), ReplicaLog(env, found, id), fetch)


async def test_a_checkpoint_without_room_is_not_acknowledged() -> None:
    """H2: upstream would delete what only a checkpoint has that is nowhere."""
    one, at = standby(), 0

    async def fetch(id: ReplicaId, maker: str) -> bytearray | str:
        await trio.lowlevel.checkpoint()
        return bytearray(encode_snapshot(plan().plan, id.of, {"positions": [at] * 3}))

    taker = taker_of(one, _Full(), fetch)
    with redirect_stderr(StringIO()):
        for at in (7, 8, 9):
            hears(one, A, output(at))
            await taker.take_if_due()
    assert "No space left" in one.trouble
    assert (one.checkpoints, positions(one)) == (0, [0, 0, 0])


async def test_checkpoint_of_another_standby_is_not_newer() -> None:
    """The furthest replica has just become a standby, and gives what it holds; the other one runs."""
    found, one = plan().plan, standby()
    asked: list[str] = []

    async def fetch(id: ReplicaId, maker: str) -> bytearray | str:
        await trio.lowlevel.checkpoint()
        asked.append(maker)
        encode = encode_held if maker == A else encode_snapshot
        return bytearray(encode(found, id.of, {"positions": [1, 1, 1] if maker == A else [8, 8, 8]}))

    taker = taker_of(one, SimDisk(), fetch)
    hears(one, A, output(9))
    hears(one, C, output(8))
    for _ in range(3):
        await taker.take_if_due()
    assert asked[:2] == [A, C]
    assert one.checkpoints == 1
    assert positions(one) == [0, 0, 0]


async def test_a_log_stays_while_it_is_further_in_one_input() -> None:
    """A8: it could not be synced, so the checkpoints count; the log is what has most of the second input."""
    one, disk, made = standby(), SimDisk(), [[9, 4, 9], [9, 4, 9], [9, 6, 9], [9, 7, 9]]

    async def fetch(id: ReplicaId, maker: str) -> bytearray | str:
        await trio.lowlevel.checkpoint()
        return bytearray(encode_snapshot(plan().plan, id.of, {"positions": made.pop(0)}))

    taker = taker_of(one, disk, fetch)
    await taker._kept.open()
    assert taker._kept.log is not None
    commit = {"begin": 5, "positions": [5] * 3, "origins": [""] * 3, "outputs": [{"last_id": 0, "boundary": 0}]}
    taker._kept.log.write(5, [], encode_state(commit))
    disk.sync_fails = True
    await taker.look_on_disk()
    disk.sync_fails = False
    while made:
        assert taker._kept.state is not None
        await taker._take(A)
    assert positions(one) == [9, 6, 9]
    assert taker._kept.state is None, "the checkpoints are past it in all inputs"
