"""What upstream may forget while a checkpoint log is replayed, and what it must keep (G5)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
import trio

from replicas.checkpoint import pauses
from replicas.checkpoint.log import CheckpointLog, Commit
from replicas.checkpoint.state_log import StateLog
from replicas.node import log_side, log_task
from replicas.node.replica import Replica
from replicas.producer.log_entry import Entry
from replicas.simulation.scenarios.scenario import Scenario
from replicas.simulation.world.disk import SimDisk
from replicas.simulation.world.host import SimCompute
from spe.plan.deploy import Deployed
from spe.stream.ids import ReplicaId
from spe.stream.names import NodeId, NodeState, UnitId
from tests.simulation.test_checkpoint_log import damaged, files_of, kept_by, origins, told
from tests.simulation.test_cut_off_replay import logged, states
from tests.support.faulty_cluster import FaultyCluster
from tests.support.situations import play, until


def chain_of_two() -> Deployed:
    """``g`` reads what ``f`` makes, of which ``f`` keeps little."""
    logged = {"checkpoint": {"continuous": True, "recovery": "60s", "share": "1%"}}
    count = {"group_by": "key", "compute": {"n": "count(*)"}}
    orders = {"name": "orders", "duration": "14s", "rate": 200, "keys": 40}
    data: dict[str, Any] = {
        "bucket": "40ms",
        "defaults": {"x": "1s"},
        "nodes": ["na", "nb"],
        "sources": {"s": {"from": {"generator": orders}}},
        "query": {
            "m": {"map": {"from": "s", "compute": {"key": "key", "v": "qty"}}},
            "a": {"aggregate": {"from": "s", "window": {"count": 100}, **count}},
            "out": {"aggregate": {"from": "m", "window": {"count": 7}, **count}},
        },
        "outputs": ["out", "a"],
        "limits": {"output": 30_000},
        "fragments": {
            "f": {"operators": ["m", "a"], "replicas": ["na"], **logged},
            "g": {"operators": ["out"], "replicas": ["nb"], **logged},
        },
        "clients": {"client": {"reads": ["out", "a"]}},
    }
    plan, directory = Scenario(0, data).deployed()
    return Deployed(replace(plan, limits=replace(plan.limits, spill_bytes=0)), directory)


@pytest.mark.parametrize("syncs", [True, False])
def test_a_full_producer_and_its_consumer_restart_together(syncs: bool) -> None:
    """The log of the consumer goes further than that of the producer, whose output is full from the start.

    Args:
      syncs: the disk of the consumer works at once.
    """

    async def script(cluster: FaultyCluster) -> None:
        await trio.sleep(5)
        cluster.disks["na"].space_left = 0
        await trio.sleep(0.8)
        for node in ("na", "nb"):
            cluster.kill(node)
        cluster.disks["na"].space_left = None
        await trio.sleep(0.3)
        for node in ("na", "nb"):
            cluster.restart(node)
        cluster.disks["nb"].sync_fails = not syncs
        await trio.sleep(1.5)
        assert syncs or NodeState.UP_FAILURE in states(cluster), "it waits"
        cluster.disks["nb"].sync_fails = False
        await until(lambda: states(cluster) == {NodeState.STABLE})

    with patch.object(log_side, "_are_alike", return_value=False):  # small batches take much room
        met = play(*chain_of_two(), script)
    assert origins(met)[2:] == ["log", "log"]


def test_disabled_log_is_kept_until_replay_ends() -> None:
    """Nothing else is on disk; who is killed meanwhile goes on from it again."""
    plan, on = logged("count")
    off = replace(on, logs={})
    plan = replace(plan, limits=replace(plan.limits, slice_rows=4))  # the replay takes long
    replays = 0

    def acknowledges(replica: Replica) -> list[int]:
        return [upto for _, upto in replica.recovery.acks()]

    async def all_restart(cluster: FaultyCluster) -> None:
        for node in ("na", "nb"):
            cluster.kill(node)
            cluster.directories[node] = off
        await trio.sleep(0.3)
        for node in ("na", "nb"):
            cluster.restart(node)
        await until(lambda: all(r.reading.installed for r in cluster.replicas().values()))

    async def script(cluster: FaultyCluster) -> None:
        nonlocal replays
        await trio.sleep(4.3)
        for _ in range(2):
            await all_restart(cluster)
            for _ in range(10):
                for replica in cluster.replicas().values():
                    if not replica.core.is_whole:
                        replays += 1
                        assert replica.recovery.other is not None
                        assert acknowledges(replica) <= list(replica.recovery.other.positions)
                        assert kept_by(cluster, replica.id.node) == {"log"}
                await trio.sleep(0.02)
        await until(lambda: states(cluster) == {NodeState.STABLE})
        await until(lambda: not kept_by(cluster, "na") | kept_by(cluster, "nb"))

    met = play(plan, on, script, turn_us=15_000)
    assert replays >= 8
    assert origins(met)[2:] == ["log"] * 4


def test_refused_log_is_kept_until_both_new_copies_have_state() -> None:
    """People may still save something of it."""

    def numbers(cluster: FaultyCluster) -> set[str]:
        return {path.parent.parent.name for path in files_of(cluster, "na")}

    async def script(cluster: FaultyCluster) -> None:
        await trio.sleep(4)
        cluster.kill("na")
        damaged(cluster, "na", "01")
        await trio.sleep(0.2)
        cluster.restart("na")
        await until(lambda: "na" in cluster.nodes)
        kept = cluster.nodes["na"].hosting.log(ReplicaId(UnitId("f"), 0, NodeId("na")))
        await until(lambda: kept.folder.name == "1" and kept.log is not None)
        assert kept.log is not None
        kept.log._written[1].fails(OSError("it is gone"))
        await trio.sleep(3)
        assert kept.log.commits, "one copy is written"
        assert numbers(cluster) == {"0", "1"}
        await until(lambda: numbers(cluster) == {"1"})
        assert kept.log.held_by_both is not None

    met = play(*logged("count"), script)
    assert len(told(met, "log_refused")) == 1


def test_log_refused_during_sync_is_not_acknowledged() -> None:
    """What it has more than had been acknowledged is nowhere else."""
    sync = StateLog.sync
    found: list[tuple[list[int], list[int] | None]] = []
    compared = 0

    async def script(cluster: FaultyCluster) -> None:
        nonlocal compared
        await trio.sleep(3)
        (replica,) = [r for r in cluster.replicas().values() if r.id.node == "na"]
        kept = cluster.nodes["na"].hosting.log(replica.id)

        def acknowledges() -> list[int]:
            return [upto for _, upto in replica.recovery.acks()]

        async def refused(state: StateLog) -> None:
            await sync(state)
            if kept.state is state and state.acknowledged() != acknowledges() and not found:
                found.append((acknowledges(), state.acknowledged()))
                await kept.refuse("a test")

        with patch.object(StateLog, "sync", refused):
            await until(lambda: bool(found))
        while kept.state is None or kept.state.acknowledged() is None:
            assert acknowledges() == found[0][0]
            compared += 1
            await trio.sleep(0.01)

    play(*logged("count"), script)
    assert compared > 3


def test_old_and_new_log_writers_never_overlap() -> None:
    """A task that was cancelled waits for its thread, and a sync takes long here."""
    busy: set[int] = set()
    overlaps: list[bool] = []
    moving, sync = SimDisk.moving, CheckpointLog.sync

    async def in_a_thread(disk: SimDisk) -> None:
        with trio.CancelScope(shield=True):
            await trio.sleep(0.2)
        await moving(disk)

    async def alone(log: CheckpointLog) -> Commit | None:
        overlaps.append(id(log) in busy)
        busy.add(id(log))
        try:
            return await sync(log)
        finally:
            busy.discard(id(log))

    async def script(cluster: FaultyCluster) -> None:
        await trio.sleep(3)
        cluster.kill("na")
        await trio.sleep(4)
        assert [r.id.node for r in cluster.replicas().values()] == ["nb"]
        cluster.restart("na")
        await trio.sleep(6)
        assert [r.id.node for r in cluster.replicas().values()] == ["na"], "the other one stands by again"

    with patch.object(SimDisk, "moving", in_a_thread), patch.object(CheckpointLog, "sync", alone):
        play(*logged("count", standbys=1, seconds=20), script)
    assert overlaps
    assert not any(overlaps)


def test_earlier_output_is_assembled_off_the_event_loop() -> None:
    """While a client is away it is written anew, and it may be much."""
    depth = 0
    found: list[tuple[bool, int]] = []
    run, output = SimCompute.run, log_task.logged_output

    async def in_a_thread(compute: SimCompute, function: Callable[[], Any]) -> Any:
        def inside() -> Any:
            nonlocal depth
            depth += 1
            try:
                return function()
            finally:
                depth -= 1

        return await run(compute, inside)

    def seen(entries: Sequence[Sequence[Entry]], *more: Any) -> Any:
        found.append((depth > 0, len(entries[0])))
        return output(entries, *more)

    async def script(cluster: FaultyCluster) -> None:
        await trio.sleep(2)
        for node in ("na", "nb"):
            cluster.cut("client:client", node)
        await trio.sleep(6)
        cluster.heal()

    with (
        patch.multiple(log_task, OUTPUT_BYTES=0, OUTPUT_AGAIN=0, logged_output=seen),
        patch.object(SimCompute, "run", in_a_thread),
    ):
        play(*logged("count"), script)
    assert max(many for inside, many in found if inside) > 40
    assert max(many for inside, many in found if not inside) < 20


def test_few_slices_are_read_for_join_with_long_retention() -> None:
    """None of them can be left out by rewriting, so that they come less often."""
    read: list[int] = []
    plan, directory = logged("join", seconds=16)

    async def script(cluster: FaultyCluster) -> None:
        await trio.sleep(12)
        for node in ("na", "nb"):
            log = cluster.nodes[node].hosting.log(ReplicaId(UnitId("f"), 0, NodeId(node))).log
            assert log is not None
            read.append(sum(c.last >= log.commits[-1].needs for c in log.commits))

    with patch.object(pauses, "SLICES_MOST", 4):
        play(plan, directory, script)
    assert max(read) <= 8
