"""A move whose changes wait for the coordinator's disk."""

from __future__ import annotations

from random import Random
from typing import Any

import trio
import trio.testing

from replicas.link.connection import Identity
from replicas.placement.issuing import DirectoryIssuer
from replicas.placement.mover import Mover
from replicas.placement.store import CoordinatorStore
from replicas.simulation.world.clock import SimClock
from replicas.simulation.world.disk import SimDisk
from spe.plan.directory import CONFIGURED, COORDINATOR
from spe.runtime.env import Env
from spe.runtime.production import NullTrace
from spe.stream.names import NodeState
from spe.wire.messages import HeartbeatAnswer, OutputStatus
from tests.support.moves import PARTITION, SOURCES, A, B, C, plan_of


async def test_change_delayed_by_disk_is_made_only_if_still_wanted(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The target dies as its move is written: it does not become a standby."""
    plan, directory = plan_of([A, B])
    nothing: Any = None
    disk = SimDisk()
    env = Env(SimClock(), nothing, disk, nothing, Random(0), NullTrace())
    with CoordinatorStore(env) as store:
        issuer = DirectoryIssuer(env, plan, directory, Identity("coordinator", COORDINATOR, 1), store)
        mover = Mover(env, plan, issuer, store, dict)
        issuer.on_change(mover.redirect)
        output = OutputStatus(plan.unit[PARTITION.unit].outputs[0], 0, NodeState.STABLE, False, 0, 0, 0, 1, 0.0)
        for process in (A, B, C, *SOURCES):
            mover.heard(process, HeartbeatAnswer(1, 1, [output] if process in (A, B) else []))
        mover.moves.stored([move := mover.moves.ask(PARTITION, A, C, "asked for")])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(mover.run)
            disk.stall(True)
            await trio.sleep(1)
            mover.lost(C)
            disk.stall(False)
            await trio.sleep(1)
            nursery.cancel_scope.cancel()
    assert move.why == "n1c does not answer"
    assert issuer.version == CONFIGURED
