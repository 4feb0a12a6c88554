"""Random plans under random faults, a seed each; a seed that finds a bug becomes a test of its own elsewhere.

More seeds by hand: ``SWARM=1000:2000 pytest tests/simulation/test_swarm.py``.
"""

from __future__ import annotations

import os
from random import Random

import pytest
import trio
from trio.testing import MockClock

from consistency.checking.verdict import judge
from replicas.observation import buffers
from replicas.simulation.cluster import SimCluster
from replicas.simulation.host import seeded_scheduling
from tests.simulation.test_cluster import Outcome
from tests.support.swarm import SECONDS, Faults, random_plan, replicas_of, unrest, with_random_checkpoints

FIRST, LAST = (int(n) for n in os.environ.get("SWARM", "0:25").split(":"))

#: Seconds of virtual time in which everything must be corrected and quiet again, however long the failures were.
GRACE = 12


@pytest.mark.parametrize("seed", range(FIRST, LAST))
def test_whatever_happens_it_ends_complete_and_quiet(seed: int) -> None:
    """P2, P3 and P4 hold, and nothing is left of the failures: no state, no memory, no feed."""
    with seeded_scheduling(seed):
        trio.run(scenario, seed, clock=MockClock(autojump_threshold=0))


@pytest.mark.parametrize("seed", range(FIRST, LAST))
def test_however_its_nodes_get_back_it_ends_complete_and_quiet(seed: int) -> None:
    """The same with undo/redo, periodic and durable checkpoints, drawn for each node."""
    with seeded_scheduling(seed):
        trio.run(scenario, seed, True, clock=MockClock(autojump_threshold=0))


def test_a_run_is_its_seed() -> None:
    """Fails when trio's private switch for its task order changes, or when something draws from elsewhere."""
    logs = []
    for _ in range(2):
        with seeded_scheduling(3):
            logs.append(trio.run(scenario, 3, clock=MockClock(autojump_threshold=0)))
    assert logs[0] == logs[1]


async def scenario(seed: int, otherwise: bool = False) -> list[str]:
    """Runs a seed; returns its story."""
    random = Random(seed)
    plan = random_plan(random)
    if otherwise:
        plan = with_random_checkpoints(plan, Random(f"checkpoints/{seed}"))
    async with SimCluster(plan, seed=seed) as cluster:
        with cluster.explain():
            await cluster.start()
            await trio.sleep(random.choice([0.05, 1, 2]))
            await Faults(cluster, random).run()
            deadline = max(trio.current_time(), SECONDS) + GRACE
            (client,) = cluster.clients.values()
            while trio.current_time() < deadline and (not client.finished or unrest(cluster)):  # noqa: ASYNC110
                await trio.sleep(0.25)
            Outcome(cluster, *plan.clients).assert_complete()
            assert unrest(cluster) == []
            for replica in replicas_of(cluster).values():
                cluster.history(buffers(replica, round(trio.current_time() * 1e6)))
            assert judge(cluster.history, plan, cluster.reference()).findings == []
    return cluster.log
