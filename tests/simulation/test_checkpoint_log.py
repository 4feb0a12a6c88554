"""Replicas that write a checkpoint log (G), killed in every way: they go on from it, and nothing is lost."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from replicas.simulation.scenario import Scenario
from spe.plan.deploy import Deployed
from spe.stream.history import Note
from spe.stream.names import NodeState
from tests.support.faulty_cluster import FaultyCluster
from tests.support.situations import Met, play

QUERIES: dict[str, dict[str, Any]] = {
    "tumbling": {"aggregate": {"from": "s", "window": {"tumbling": "2s"}, "group_by": "key", "compute": "n"}},
    "sliding": {
        "aggregate": {"from": "s", "window": {"sliding": "2s", "slide": "500ms"}, "group_by": "key", "compute": "n"}
    },
    "count": {"aggregate": {"from": "s", "window": {"count": 7}, "group_by": "key", "compute": "n"}},
    "topk": {"topk": {"from": "s", "k": 2, "order_by": ["qty", "key desc"], "window": {"tumbling": "2s"}}},
    "top": {"topk": {"from": "s", "k": 2, "order_by": ["qty", "key desc"]}},
    "join": {"join": {"left": "s", "right": "t", "kind": "full", "on": "key", "within": ["-1s", "1s"]}},
    "chain": {"custom": {"from": ["m"], "class": "replicas.simulation.hash_chain:HashChain"}},
}


def logged(
    query: str, *, replicas: int = 2, reconcile: str = "checkpoint", seconds: int = 12, **checkpoint: Any
) -> Deployed:
    """One stateful fragment behind two sources, and one that passes on what it makes."""
    body = {kind: dict(what) for kind, what in QUERIES[query].items()}
    for what in body.values():
        if "compute" in what:
            what["compute"] = {"n": "count(*)", "v": "sum(qty)", "f": "first(price)"}
    nodes = [f"n{letter}" for letter in "abc"[:replicas]]
    generator = {"name": "orders", "duration": f"{seconds}s", "rate": 60, "keys": 20}
    made = {"s": {"generator": {**generator, "seed": 1}}, "t": {"generator": {**generator, "seed": 2}}}
    data: dict[str, Any] = {
        "cluster": "logged",
        "bucket": "40ms",
        "defaults": {"x": "1s", "reconcile": reconcile},
        "nodes": nodes,
        "sources": {name: {"boundary": "40ms", "from": reader} for name, reader in made.items()},
        "query": {"m": {"map": {"from": "s", "compute": {"key": "key", "v": "qty", "p": "price"}}}, "out": body},
        "outputs": ["out"],
        "fragments": {
            "f": {
                "operators": ["out"],
                "replicas": nodes,
                "checkpoint": {"continuous": True, "recovery": "2s", **checkpoint},
            },
        },
        "clients": {"client": {"reads": ["out"]}},
    }
    if query != "chain":
        del data["query"]["m"]
    else:
        data["fragments"]["f"]["operators"] = ["m", "out"]
    if query != "join":
        del made["t"]
        data["sources"] = {"s": {"boundary": "40ms", "from": made["s"]}}
    return Scenario(0, data).deployed()


def told(met: Met, name: str) -> list[str]:
    return [e.text for e in met.history if isinstance(e, Note) and e.name == name]


def origins(met: Met) -> list[str]:
    """From what replicas went on."""
    return [text.rpartition("origin=")[2] for text in told(met, "installed")]


async def settled(cluster: FaultyCluster, *nodes: str) -> None:
    for node in nodes:
        cluster.restart(node)
    await trio.sleep(3)
    assert all(r.state is NodeState.STABLE for r in cluster.replicas().values())


@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize("reconcile", ["checkpoint", "undo"])
def test_all_replicas_are_killed_at_once(query: str, reconcile: str) -> None:
    async def script(cluster: FaultyCluster) -> None:
        for pause in (3, 2.3):
            await trio.sleep(pause)
            cluster.kill("na")
            cluster.kill("nb")
            await trio.sleep(0.4)
            await settled(cluster, "na", "nb")

    met = play(*logged(query, reconcile=reconcile), script)
    assert origins(met)[2:].count("log") >= 2
    assert not told(met, "log_refused")
