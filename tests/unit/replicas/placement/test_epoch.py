"""Which coordinator a node follows, also after a restart (H6: epochs)."""

from __future__ import annotations

from pathlib import PurePosixPath
from random import Random
from typing import Any

from replicas.link.connection import Identity
from replicas.link.directory import DirectoryKeeper
from replicas.placement.epoch import FollowedEpoch
from replicas.simulation.world.disk import SimDisk
from spe.runtime.env import Env
from spe.runtime.production import NullTrace
from spe.stream.names import NodeId
from tests.unit.spe.plan.test_revision import deployed

PATH = PurePosixPath("nodes", "n1", "epoch")


def followed(disk: SimDisk) -> FollowedEpoch:
    nothing: Any = None
    env = Env(nothing, nothing, disk, nothing, Random(0), NullTrace())
    return FollowedEpoch(env, NodeId("n1"), DirectoryKeeper(env, deployed().directory, Identity("node", "n1", 1)))


async def test_a_restarted_node_follows_no_older_coordinator() -> None:
    disk = SimDisk()
    one = followed(disk)
    assert one.latest == 0
    one._keeper.heard_of(7)
    await one.keep()
    assert followed(disk.restarted()).latest == 7


async def test_a_damaged_epoch_file_is_ignored() -> None:
    disk = SimDisk()
    one = followed(disk)
    one._keeper.heard_of(7)
    await one.keep()
    kept = disk.read(PATH)
    for at in range(len(kept)):
        damaged = bytearray(kept)
        damaged[at] ^= 1
        await disk.write_atomic(PATH, bytes(damaged))
        assert followed(disk).latest == 0
