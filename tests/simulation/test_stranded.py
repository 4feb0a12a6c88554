"""A replica that can go on from nothing that is left says so once, after X (A3, H8)."""

from __future__ import annotations

import trio

from replicas.simulation.world.clock import JumpClock
from replicas.simulation.world.cluster import SimCluster
from replicas.simulation.world.host import seeded_scheduling
from spe.stream.history import Note
from tests.simulation.test_buffers import longer
from tests.simulation.test_cluster import make_plan


def test_replica_without_any_state_reports_it_once_after_x() -> None:
    """The only replica of u2 loses its disk; u1 has forgotten what u2 has read, for that was acknowledged."""
    found: list[Note] = []
    back_us = 5_000_000

    async def main() -> None:
        plan, directory = longer(*make_plan(2, replicas=1), 20)
        async with SimCluster(plan, directory, seed=1) as cluster:
            await cluster.start()
            await trio.sleep(4)
            cluster.wipe("n2a")
            await trio.sleep(1)
            cluster.restart("n2a")
            await trio.sleep(10)
            found.extend(e for e in cluster.history if isinstance(e, Note) and e.name == "stranded")
            x_us = directory.nodes[next(iter(cluster.nodes))].x_us
            assert cluster.replicas()["u2/0@n2a"].recovery.stranded(back_us + x_us - 1) == []

    with seeded_scheduling(1):
        trio.run(main, clock=JumpClock(60.0))
    (one,) = found
    assert one.text.startswith("replica=u2/0@n2a lacks=s1/0: n1a begins at id ")
    assert one.at_us >= back_us


def test_a_replica_that_a_partner_helps_says_nothing() -> None:
    found: list[Note] = []

    async def main() -> None:
        async with SimCluster(*longer(*make_plan(2, replicas=2), 12), seed=1) as cluster:
            await cluster.start()
            await trio.sleep(4)
            cluster.wipe("n2a")
            await trio.sleep(1)
            cluster.restart("n2a")
            await trio.sleep(5)
            found.extend(e for e in cluster.history if isinstance(e, Note) and e.name == "stranded")

    with seeded_scheduling(1):
        trio.run(main, clock=JumpClock(60.0))
    assert found == []
