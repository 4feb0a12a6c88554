"""Which coordinator a node follows, also after a restart (H6: epochs)."""

from __future__ import annotations

from pathlib import PurePosixPath
from random import Random
from typing import Any

from replicas.placement.epoch import FollowedEpoch
from replicas.simulation.disk import SimDisk
from spe.runtime.env import Env
from spe.runtime.production import NullTrace
from spe.stream.names import NodeId

PATH = PurePosixPath("nodes", "n1", "epoch")


def followed(disk: SimDisk) -> FollowedEpoch:
    nothing: Any = None
    return FollowedEpoch(Env(nothing, nothing, disk, nothing, Random(0), NullTrace()), NodeId("n1"))


async def test_a_restarted_node_follows_no_older_coordinator() -> None:
    disk = SimDisk()
    one = followed(disk)
    assert one.latest == 0
    one.latest = 7
    await one.keep()
    assert followed(disk.restarted()).latest == 7


async def test_a_damaged_epoch_file_is_ignored() -> None:
    disk = SimDisk()
    one = followed(disk)
    one.latest = 7
    await one.keep()
    kept = disk.read(PATH)
    for at in range(len(kept)):
        damaged = bytearray(kept)
        damaged[at] ^= 1
        await disk.write_atomic(PATH, bytes(damaged))
        assert followed(disk).latest == 0
