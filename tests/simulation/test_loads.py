"""Samples of load reach the coordinator while all is well; silence and corrections give none (L1)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import trio

from replicas.checkpoint.store import encode_snapshot
from replicas.simulation.world.clock import JumpClock
from spe.stream.ids import PartitionId, ReplicaId
from spe.stream.names import NodeId, NodeState, UnitId
from spe.wire.messages.commands import MoveOrder
from tests.simulation.test_buffers import longer
from tests.simulation.test_cluster import make_plan
from tests.simulation.test_reconcile import make_plan as reconciling
from tests.simulation.test_standbys import runs, with_standbys
from tests.support.faulty_cluster import FaultyCluster

PARTITION = PartitionId(UnitId("u1"), 0)
REPLICA = ReplicaId(*PARTITION, NodeId("n1a"))
#: 300 rows a second.
ROW_NS = 1_000_000


def started() -> FaultyCluster:
    """u1 runs on n1a, and n1b stands by; a row takes 1 ms."""
    return FaultyCluster(*with_standbys(*longer(*make_plan(1), 60)), row_ns={PARTITION: ROW_NS})


def series(cluster: FaultyCluster) -> Sequence[float]:
    """Busy share of the last samples."""
    assert cluster.coordinator is not None
    now = cluster.env("coordinator").clock.monotonic_us()
    series = cluster.coordinator.view.loads.series(PARTITION, now)
    return [round(float(share), 2) for share in series[np.flatnonzero(~np.isnan(series))[0] :]]


async def test_samples_arrive_every_ten_seconds(jump_clock: JumpClock) -> None:
    async with started() as cluster:
        await cluster.start()
        await trio.sleep(19)
        assert cluster.coordinator is not None
        assert cluster.coordinator.status().loads == (), "at first it was RECOVERING"
        await trio.sleep(22)
        assert series(cluster) == [0.3, 0.3, 0.3]
        load = cluster.nodes["n1a"].hosting.running[PARTITION].meter.latest
        assert load is not None
        assert load.rows == pytest.approx(300, rel=0.05)
        assert load.network > 300 * 8
        assert load.memory > 0


async def test_status_shows_loads_and_balancer_uses_them(jump_clock: JumpClock) -> None:
    async with started() as cluster:
        await cluster.start()
        await trio.sleep(5)
        assert cluster.coordinator is not None
        (replica,) = cluster.nodes["n1a"].status().replicas
        assert (replica.load, replica.load_age_us) == (None, None)
        assert cluster.coordinator.status().loads == ()
        await trio.sleep(28)
        (replica,) = cluster.nodes["n1a"].status().replicas
        (partition,) = cluster.coordinator.status().loads
        assert replica.load is not None
        assert replica.load.cpu == pytest.approx(0.3, rel=0.05)
        assert replica.load_age_us == pytest.approx(3_000_000, abs=100_000)
        assert (partition.partition, partition.samples) == ("u1/0", 2)
        assert partition.mean.rows == pytest.approx(300, rel=0.05)
        answer = await cluster.coordinator.move(MoveOrder("propose", "", "", "", 0))
        assert answer.remarks[0].text.startswith("n1a needs 0.30 of 1 cores")


async def test_the_size_of_the_state_is_that_of_a_snapshot(jump_clock: JumpClock) -> None:
    plan, directory = reconciling()
    async with FaultyCluster(plan, directory) as cluster:
        await cluster.start()
        await trio.sleep(3)
        replicas = [r for r in cluster.replicas().values() if r.core.between_slices]
        assert replicas
        for replica in replicas:
            snapshot = replica.snapshot()
            assert snapshot is not None
            memory, state = replica.footprint()
            assert state == pytest.approx(len(encode_snapshot(plan, replica.id.of, snapshot)), rel=0.5, abs=4_000)
            assert memory > 0


async def test_a_time_with_a_failure_gives_no_sample(jump_clock: JumpClock) -> None:
    async with started() as cluster:
        await cluster.start()
        await trio.sleep(23)
        cluster.cut("source:a", "n1a")
        await trio.sleep(3)
        assert cluster.replicas()[str(REPLICA)].state is NodeState.UP_FAILURE
        cluster.heal()
        await trio.sleep(3)
        assert runs(cluster, str(REPLICA))
        await trio.sleep(12)
        assert series(cluster) == [0.3, pytest.approx(np.nan, nan_ok=True), 0.3]


@pytest.mark.long
async def test_a_node_that_is_silent_gives_none(jump_clock: JumpClock) -> None:
    async with started() as cluster:
        await cluster.start()
        await trio.sleep(21)
        cluster.kill("n1a")
        await trio.sleep(12)
        assert runs(cluster, "u1/0@n1b")
        assert series(cluster) == [0.3, pytest.approx(np.nan, nan_ok=True)]


@pytest.mark.long
async def test_another_coordinator_begins_with_the_samples_that_come(jump_clock: JumpClock) -> None:
    async with started() as cluster:
        await cluster.start()
        await trio.sleep(15)
        cluster.kill("coordinator")
        await trio.sleep(10)
        cluster.restart("coordinator")
        await trio.sleep(1)
        assert series(cluster) == [0.3], "the last one was not told yet"
        await trio.sleep(10)
        assert series(cluster) == [0.3, 0.3]
