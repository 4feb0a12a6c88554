"""A node that is full by what its replicas measure gives a partition away, while all goes on (L1, L4, L5)."""

from __future__ import annotations

import pytest
import trio

from replicas.simulation.simulate import is_quiet
from replicas.simulation.world.clock import JumpClock
from spe.config.load import load_data
from spe.plan.deploy import Deployed, with_addresses
from spe.stream.ids import PartitionId
from spe.stream.names import NodeId, UnitId
from tests.simulation.test_cluster import Outcome
from tests.support.faulty_cluster import FaultyCluster
from tests.support.situations import until

#: Of all partitions together.
ROWS = 60
SECONDS = 64


def p(number: int) -> PartitionId:
    return PartitionId(UnitId("totals"), number)


def make_plan() -> Deployed:
    """Four partitions, three of them on n1; n3 is spare."""
    generator = {"name": "orders", "rate": ROWS, "keys": 400, "duration": f"{SECONDS}s", "seed": 1}
    aggregate = {"from": "orders", "window": "1s", "group_by": "key", "compute": {"n": "count(*)"}}
    plan, directory = load_data(
        {
            "cluster": "balance",
            "sources": {"orders": {"from": {"generator": generator}}},
            "query": {"totals": {"aggregate": aggregate}},
            "outputs": ["totals"],
            "fragments": {
                "totals": {
                    "operators": ["totals"],
                    "key": "key",
                    "partitions": 4,
                    "replicas": [["n1"], ["n1"], ["n1"], ["n2"]],
                }
            },
            "nodes": {"n1": {}, "n2": {}, "n3": {"spare": True}},
            "coordinator": {"balance": "10s", "idle": 0},
            "clients": {"c": {"reads": ["totals"]}},
        }
    )
    return Deployed(plan, with_addresses(directory, {n: f"{n.replace(':', '-')}:1" for n in directory.addresses()}))


def shares(**cores: float) -> dict[PartitionId, int]:
    """Nanoseconds per row, so that partitions need so many cores, about."""
    return {p(int(name[1:])): round(share * 1e9 * 4 / ROWS) for name, share in cores.items()}


def places(cluster: FaultyCluster) -> list[str]:
    """The node that runs each partition."""
    placement = cluster.current.placement
    return ["+".join(placement[p(number)]) for number in range(4)]


@pytest.mark.long
async def test_when_load_shifts_the_full_node_gives_a_partition_away(jump_clock: JumpClock) -> None:
    row_ns = shares(p0=0.2, p1=0.2, p2=0.2, p3=0.2)
    async with FaultyCluster(*make_plan(), row_ns=row_ns) as cluster:
        await cluster.start()
        await trio.sleep(22)
        assert cluster.coordinator is not None
        assert places(cluster) == ["n1", "n1", "n1", "n2"], "0.6 of a core is not beyond the cap of 0.8"
        row_ns.update(shares(p0=0.5, p1=0.3, p2=0.2))
        await until(lambda: places(cluster) != ["n1", "n1", "n1", "n2"], within_s=60, look_s=0.1)
        first = places(cluster)
        assert sorted(first) == ["n1", "n1", "n2", "n2"], "one partition is enough"
        (move,) = cluster.coordinator.mover.orders.all()
        assert move.reason.startswith("n1")
        assert (move.source, move.target) == (NodeId("n1"), NodeId("n2"))
        await until(lambda: is_quiet(cluster), within_s=60, look_s=0.1)
        assert places(cluster) == first
        outcome = Outcome(cluster)
        outcome.assert_complete()
        assert outcome.tentative == 0
