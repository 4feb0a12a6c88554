"""What befalls a disk in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import trio
import trio.testing

from replicas.simulation.world.disk import SimDisk


def only_synced(storage: SimDisk) -> SimDisk:
    """After a loss of power that leaves what was synced, and nothing else."""
    return storage.power_loss(lambda _path, synced, _written: synced)


@asynccontextmanager
async def during(sync: Callable[[], Awaitable[object]], storage: SimDisk) -> AsyncIterator[None]:
    """The body runs while the sync waits for the disk; the sync ends behind it."""
    storage.stall(True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sync)
        await trio.testing.wait_all_tasks_blocked()
        yield
        storage.stall(False)
