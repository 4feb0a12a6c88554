"""Moves that wait for the coordinator's disk."""

from __future__ import annotations

from collections.abc import AsyncIterator
from random import Random
from typing import Any
from unittest.mock import patch

import pytest
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
from spe.wire.messages.commands import MoveOrder
from spe.wire.messages.feeds import OutputStatus
from tests.support.moves import PARTITION, SOURCES, A, B, C, plan_of
from tests.support.placement_world import answer

Setting = tuple[Mover, CoordinatorStore, SimDisk, DirectoryIssuer]


@pytest.fixture
async def setting() -> AsyncIterator[Setting]:
    """A and B run the partition, and C could."""
    plan, directory = plan_of([A, B])
    nothing: Any = None
    disk = SimDisk()
    env = Env(SimClock(), nothing, disk, nothing, Random(0), NullTrace())
    with CoordinatorStore(env) as store:
        view = ClusterView(plan, directory, 0, recovery_us=1)
        output = OutputStatus(plan.unit[PARTITION.unit].outputs[0], 0, NodeState.STABLE, False, 0, 0, 0, 1, 0.0)
        for process in (A, B, C, *SOURCES):
            view.heard(process, answer([output] if process in (A, B) else []), 0)
        issuer = DirectoryIssuer(env, plan, directory, Identity("coordinator", COORDINATOR, 1), store)
        yield Mover(env, view, store), store, disk, issuer


async def test_change_delayed_by_disk_is_made_only_if_still_wanted(
    autojump_clock: trio.testing.MockClock, setting: Setting
) -> None:
    """The target dies while the disk is busy: it does not become a standby."""
    mover, _, disk, issuer = setting
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
        mover._view.lost(C, 1)
        disk.stall(False)
    assert (move.phase, move.why) == (MovePhase.DROPPED, "n1c does not answer; start it first")
    assert issuer.version == Version(1, 1), "nothing but what was under way"


async def test_a_phase_goes_to_the_store_with_its_change(setting: Setting) -> None:
    """M1: the next coordinator continues from there."""
    mover, store, _, _ = setting
    mover.orders.stored([mover.orders.ask(PARTITION, A, C, "asked for")])
    step = mover.step({})
    assert (step.change is not None, step.noted) == (True, True)
    assert [move.phase for move in store.moves(mover._plan.fingerprint)] == [MovePhase.JOIN]


async def test_an_order_that_cannot_be_stored_is_not_carried_out(setting: Setting) -> None:
    """M1: the one who ordered it hears that it is refused."""
    mover, store, disk, _ = setting
    disk.space_left = 0
    order = MoveOrder("move", str(PARTITION), A, C, 0)
    assert "cannot be kept" in (await mover.order(order)).error
    assert mover.orders.open() == []
    disk.space_left = None
    assert (await mover.order(order)).error == ""
    assert [move.target for move in store.moves(mover._plan.fingerprint)] == [C]


async def test_the_balancer_waits_for_orders_of_people(setting: Setting) -> None:
    """L7: what they ordered changes the loads."""
    mover, _, _, _ = setting
    mover.orders.stored([mover.orders.ask(PARTITION, A, C, "asked for")])
    with patch.object(mover.balance, "tick", side_effect=AssertionError("it is not asked")):
        await mover.follow_loads()
    assert len(mover.orders.open()) == 1
