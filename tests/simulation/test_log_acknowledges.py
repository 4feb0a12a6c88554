"""What upstream may forget while a checkpoint log is replayed, and what it must keep (G5)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import trio

from replicas.simulation.scenario import Scenario
from spe.plan.deploy import Deployed
from spe.stream.names import NodeState
from tests.simulation.test_checkpoint_log import origins
from tests.simulation.test_cut_off_replay import states
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

    met = play(*chain_of_two(), script)
    assert origins(met)[2:] == ["log", "log"]
