"""A cluster that gets back behind tentative data and over restarts in every way that can be configured."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from spe.config import load_plan_data
from spe.plan import Plan
from tests.simulation.test_cluster import run
from tests.support.cluster import SimCluster

SECONDS = 8


@pytest.fixture
def autojump_clock() -> MockClock:
    return MockClock(autojump_threshold=0)


def make_plan(**defaults: Any) -> Plan:
    """Two units with windows, a join, a ranking and count windows, each on two nodes."""
    generator = {"name": "orders", "rate": 60, "keys": 5, "duration": f"{SECONDS}s", "disorder": "60ms"}
    data = {
        "cluster": "reconcile",
        "bucket": "40ms",
        "defaults": {"x": "1s", "alpha": 0.9, **defaults},
        "nodes": ["n1a", "n1b", "n2a", "n2b"],
        "sources": {
            name: {"from": {"generator": {**generator, "seed": at}}, "boundary": "40ms"} for at, name in enumerate("ab")
        },
        "query": {
            "pairs": {
                "join": {
                    "left": "a",
                    "right": "b",
                    "kind": "full",
                    "on": "key",
                    "within": ["-300ms", "200ms"],
                }
            },
            "sums": {
                "aggregate": {
                    "from": "pairs",
                    "window": {"sliding": "400ms", "slide": "100ms"},
                    "group_by": "l_key",
                    "compute": {"n": "count(*)", "total": "sum(l_price * r_qty)"},
                }
            },
            "top": {"topk": {"from": "sums", "k": 3, "order_by": ["total desc"]}},
            "tens": {
                "aggregate": {
                    "from": "top",
                    "window": {"count": 10},
                    "group_by": "l_key",
                    "compute": {"total": "sum(total)"},
                }
            },
        },
        "outputs": ["top", "tens"],
        "fragments": {
            "f1": {"operators": ["pairs", "sums"], "replicas": ["n1a", "n1b"]},
            "f2": {"operators": ["top", "tens"], "replicas": ["n2a", "n2b"]},
        },
        "clients": {"c": {"reads": ["top", "tens"]}},
    }
    plan = load_plan_data(data)
    return replace(
        plan,
        nodes={name: replace(node, address=f"{name}:1") for name, node in plan.nodes.items()},
        sources={name: replace(one, address=f"source-{name}:1") for name, one in plan.sources.items()},
    )


@pytest.mark.parametrize("reconcile", ["checkpoint", "undo"])
@pytest.mark.parametrize(
    "options", [{}, {"policy": "delay"}, {"checkpoint": {"every": "500ms"}}, {"checkpoint": {"every": "30ms"}}]
)
async def test_both_ways_end_complete_down_a_chain(
    autojump_clock: MockClock, reconcile: str, options: dict[str, Any]
) -> None:
    async with SimCluster(make_plan(reconcile=reconcile, **options)) as cluster:
        with cluster.explain():
            await cluster.start()
            await trio.sleep(3)
            cluster.cut("source:b", "*")
            await trio.sleep(2.5)
            cluster.heal()
            outcome = await run(cluster, SECONDS + 8)
            outcome.assert_complete()
            assert outcome.tentative > 20
            replicas = [r.core for node in cluster.nodes.values() for r in node.replicas().values()]
            assert sum(r.redone_rows for r in replicas) > 100
            assert (sum(r.rebuilt_rows for r in replicas) > 0) == (reconcile == "undo")


async def test_a_replica_that_undoes_gives_a_restarting_partner_its_state(autojump_clock: MockClock) -> None:
    """While it is in UP_FAILURE it has no snapshot; it makes the state at its marks again for the partner."""
    async with SimCluster(make_plan(reconcile="undo")) as cluster:
        with cluster.explain():
            await cluster.start()
            await trio.sleep(2)
            cluster.kill("n1b")
            cluster.cut("source:b", "*")
            await trio.sleep(2)
            cluster.restart("n1b")
            await trio.sleep(1)
            assert any("n1b" in line and "installed" in line for line in cluster.log)
            cluster.heal()
            await trio.sleep(3)
            cluster.kill("n1a")
            outcome = await run(cluster, SECONDS + 8)
            outcome.assert_complete()
