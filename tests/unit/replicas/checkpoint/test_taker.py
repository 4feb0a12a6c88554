"""Checkpoints that a standby fetches (H1, H2)."""

from __future__ import annotations

from random import Random
from typing import Any

import trio

from replicas.checkpoint.replica_log import ReplicaLog
from replicas.checkpoint.store import CheckpointStore, encode_held, encode_snapshot
from replicas.checkpoint.taker import CheckpointTaker
from replicas.simulation.disk import SimDisk
from spe.runtime.env import Env
from spe.runtime.production import NullTrace
from spe.stream.ids import ReplicaId
from tests.support.source_env import AtOnceCompute
from tests.unit.replicas.placement.test_coordination import PARTITION, plan
from tests.unit.replicas.placement.test_standby import EVERY, A, C, hears, output, positions, standby


class _Clock:
    def monotonic_us(self) -> int:
        return EVERY


async def test_what_another_standby_holds_is_no_newer_checkpoint() -> None:
    """The furthest replica has just become a standby, and gives what it holds; the other one runs."""
    found = plan().plan
    clock: Any = _Clock()
    network: Any = None
    env = Env(clock, network, SimDisk(), AtOnceCompute(), Random(0), NullTrace())
    one = standby()
    asked: list[str] = []

    async def fetch(id: ReplicaId, maker: str) -> bytearray | str:
        await trio.lowlevel.checkpoint()
        asked.append(maker)
        encode = encode_held if maker == A else encode_snapshot
        return bytearray(encode(found, id.of, {"positions": [1, 1, 1] if maker == A else [8, 8, 8]}))

    id = ReplicaId(*PARTITION, one.id.node)
    taker = CheckpointTaker(env, found, one, CheckpointStore(env, found, id), ReplicaLog(env, found, id), fetch)
    hears(one, A, output(9))
    hears(one, C, output(8))
    for _ in range(3):
        await taker.take_if_due()
    assert asked[:2] == [A, C]
    assert one.checkpoints == 1
    assert positions(one) == [0, 0, 0]
