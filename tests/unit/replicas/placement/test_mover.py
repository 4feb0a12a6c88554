"""Moves that wait for the coordinator's disk."""

from __future__ import annotations

from random import Random
from typing import Any

import trio
import trio.testing

from replicas.link.connection import Identity
from replicas.placement.deciders.move import MovePhase
from replicas.placement.issuing import DirectoryIssuer
from replicas.placement.mover import Mover
from replicas.placement.store import CoordinatorStore
from replicas.placement.view import ClusterView
from replicas.simulation.world.clock import SimClock
from replicas.simulation.world.disk import SimDisk
from spe.plan.directory import COORDINATOR, Directory, Version
from spe.runtime.env import Env
from spe.runtime.production import NullTrace
from spe.stream.names import NodeState
from spe.wire.messages import OutputStatus
from tests.support.moves import PARTITION, SOURCES, A, B, C, plan_of
from tests.support.placement_world import answer


async def test_change_delayed_by_disk_is_made_only_if_still_wanted(autojump_clock: trio.testing.MockClock) -> None:
    """The target dies while the disk is busy: it does not become a standby."""
    plan, directory = plan_of([A, B])
    nothing: Any = None
    disk = SimDisk()
    env = Env(SimClock(), nothing, disk, nothing, Random(0), NullTrace())
    with CoordinatorStore(env) as store:
        issuer = DirectoryIssuer(env, plan, directory, Identity("coordinator", COORDINATOR, 1), store)
        view = ClusterView(plan, directory, 0, recovery_us=1)
        mover = Mover(env, view, store)
        output = OutputStatus(plan.unit[PARTITION.unit].outputs[0], 0, NodeState.STABLE, False, 0, 0, 0, 1, 0.0)
        for process in (A, B, C, *SOURCES):
            view.heard(process, answer([output] if process in (A, B) else []), 0)
        mover.orders.stored([move := mover.orders.ask(PARTITION, A, C, "asked for")])

        def decide(directory: Directory) -> tuple[Directory, str] | None:
            change = mover.step({}).change
            return None if change is None else (change(directory), "")

        async with trio.open_nursery() as nursery:
            disk.stall(True)
            nursery.start_soon(issuer.publish, lambda directory: directory, "something else")
            await trio.sleep(1)
            nursery.start_soon(issuer.propose, decide)
            await trio.sleep(1)
            view.lost(C, 1)
            disk.stall(False)
    assert (move.phase, move.why) == (MovePhase.DROPPED, "n1c does not answer; start it first")
    assert issuer.version == Version(1, 1), "nothing but what was under way"
