"""Replicas that are cut off from upstream while they replay their checkpoint log: results go on within X (G4, T3)."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import trio

from replicas.simulation.scenarios.scenario import Scenario
from spe.plan.deploy import Deployed
from spe.stream.batch import Batch
from spe.stream.history import Delivered
from spe.stream.names import Kind, NodeState
from tests.simulation.test_checkpoint_log import RECONCILE, kept_by, without_logs
from tests.support.faulty_cluster import FaultyCluster
from tests.support.long_forms import long_but
from tests.support.situations import play, until

#: X, seconds.
X = 1.0
QUERIES: dict[str, dict[str, Any]] = {
    "tumbling": {"aggregate": {"from": "u", "window": {"tumbling": "2s"}, "group_by": "key", "compute": "c"}},
    "sliding": {
        "aggregate": {"from": "u", "window": {"sliding": "2s", "slide": "500ms"}, "group_by": "key", "compute": "c"}
    },
    "count": {"aggregate": {"from": "u", "window": {"count": 7}, "group_by": "key", "compute": "c"}},
    "topk": {"topk": {"from": "u", "k": 2, "order_by": ["qty", "key desc"], "window": {"tumbling": "2s"}}},
    "top": {"topk": {"from": "u", "k": 2, "order_by": ["qty", "key desc"]}},
    "join": {"join": {"left": "s", "right": "t", "kind": "full", "on": "key", "within": ["-1s", "1s"]}},
    "chain": {"custom": {"from": ["m"], "class": "replicas.simulation.features.hash_chain:HashChain"}},
}


def logged(
    query: str = "tumbling", *, reconcile: str = "checkpoint", standbys: int = 0, seconds: int = 16, **more: Any
) -> Deployed:
    """One stateful fragment that reads two sources."""
    body = {kind: dict(what) for kind, what in QUERIES[query].items()}
    for what in body.values():
        if "compute" in what:
            what["compute"] = {"n": "count(*)", "v": "sum(qty)", "f": "first(price)"}
    before: dict[str, Any] = {"u": {"union": {"from": ["s", "t"]}}}
    if query == "join":
        before = {}
    elif query == "chain":
        before["m"] = {"map": {"from": "u", "compute": {"key": "key", "v": "qty", "p": "price"}}}
    nodes = ["na", "nb"]
    generator = {"name": "orders", "duration": f"{seconds}s", "rate": 60, "keys": 20}
    data: dict[str, Any] = {
        "cluster": "logged",
        "bucket": "100ms",
        "defaults": {"x": f"{X}s", "reconcile": reconcile, **more},
        "nodes": nodes,
        "sources": {
            name: {"boundary": "100ms", "from": {"generator": {**generator, "seed": seed}}}
            for name, seed in (("s", 1), ("t", 2))
        },
        "query": {**before, "out": body},
        "outputs": ["out"],
        "fragments": {
            "f": {
                "operators": [*before, "out"],
                "replicas": nodes[: 2 - standbys],
                **({"standby": nodes[2 - standbys :]} if standbys else {}),
                "checkpoint": {"continuous": True, "recovery": "2s"},
            },
        },
        "clients": {"client": {"reads": ["out"]}},
    }
    return Scenario(0, data).deployed()


def states(cluster: FaultyCluster) -> set[NodeState]:
    return {r.state for r in cluster.replicas().values()}


def tentative(cluster: FaultyCluster) -> int:
    """Tentative batches that the client was given."""
    batches = [e.element for e in cluster.history if isinstance(e, Delivered) and isinstance(e.element, Batch)]
    return sum(batch.kind is Kind.TENTATIVE for batch in batches)


async def gives_tentative_results(cluster: FaultyCluster, *, replays: bool = True) -> None:
    """Soon after X, and what comes later is in time as well."""
    await until(lambda: states(cluster) == {NodeState.UP_FAILURE}, within_s=2.5 * X)
    for replica in cluster.replicas().values():
        assert (replica.core.snapshot() is None) == replays, "the stable state lacks something"
    for _ in range(2):
        before = tentative(cluster)
        await trio.sleep(2 + X)  # the windows are two seconds long
        assert tentative(cluster) > before


@pytest.mark.parametrize(
    ("query", "reconcile"),
    long_but(
        [("tumbling", "undo"), ("count", "checkpoint"), ("join", "undo"), ("chain", "checkpoint")],
        product(QUERIES, RECONCILE),
    ),
)
def test_replica_is_cut_off_from_one_input_before_replay(query: str, reconcile: str) -> None:
    async def script(cluster: FaultyCluster) -> None:
        await trio.sleep(4.3)
        for node in ("na", "nb"):
            cluster.kill(node)
        cluster.cut("source:t", "*")
        await trio.sleep(0.3)
        for node in ("na", "nb"):
            cluster.restart(node)
        await gives_tentative_results(cluster, replays=query != "top")  # what that holds is always in the log
        cluster.heal()
        await until(lambda: states(cluster) == {NodeState.STABLE})

    play(*logged(query, reconcile=reconcile), script)


async def restarted(cluster: FaultyCluster, *nodes: str, cut: str = "source:t") -> None:
    """They were killed at once, and come back to find somebody cut off."""
    await trio.sleep(4.3)
    for node in nodes:
        cluster.kill(node)
    cluster.cut(cut, "*")
    await trio.sleep(0.3)
    for node in nodes:
        cluster.restart(node)


def test_a_standby_that_takes_over_is_cut_off() -> None:
    async def script(cluster: FaultyCluster) -> None:
        await trio.sleep(4.3)
        cluster.kill("na")
        cluster.cut("source:t", "*")
        await until(lambda: states(cluster) == {NodeState.RECOVERING})
        await gives_tentative_results(cluster)
        cluster.heal()
        await until(lambda: states(cluster) == {NodeState.STABLE})
        cluster.restart("na")
        await trio.sleep(4)

    play(*logged(standbys=1, seconds=24), script)


@pytest.mark.parametrize(
    ("query", "reconcile"),
    long_but([("count", "undo"), ("chain", "checkpoint")], product(["count", "join", "chain"], RECONCILE)),
)
def test_replay_survives_kills_while_tentative_and_correcting(query: str, reconcile: str) -> None:
    async def script(cluster: FaultyCluster) -> None:
        await restarted(cluster, "na", "nb")
        await gives_tentative_results(cluster)
        cluster.kill("na")
        cluster.kill("nb")
        await trio.sleep(0.3)
        cluster.restart("na")
        cluster.restart("nb")
        await gives_tentative_results(cluster)
        cluster.heal()
        await until(lambda: NodeState.STABILIZATION in states(cluster))
        cluster.kill("na")
        await until(lambda: states(cluster) == {NodeState.STABLE})
        cluster.restart("na")
        await trio.sleep(3)

    play(*logged(query, reconcile=reconcile, seconds=24), script, turn_us=20_000)


@pytest.mark.parametrize("query", long_but(["count"], ["sliding", "count", "join"]))
def test_only_replica_corrects_with_live_results(query: str) -> None:
    """Its partner stays away; each step takes its time, and input fails again before the replay has ended."""

    async def script(cluster: FaultyCluster) -> None:
        await trio.sleep(4.3)
        cluster.kill("na")
        cluster.kill("nb")
        cluster.cut("source:t", "*")
        await trio.sleep(0.3)
        cluster.restart("na")
        await gives_tentative_results(cluster)
        for _ in range(3):
            cluster.heal()
            await until(lambda: states(cluster) == {NodeState.STABILIZATION})
            cluster.cut("source:t", "*")
            await until(lambda: states(cluster) == {NodeState.UP_FAILURE})
        cluster.heal()
        await until(lambda: states(cluster) == {NodeState.STABLE})
        cluster.restart("nb")
        await trio.sleep(3)

    play(*logged(query, seconds=30), script, turn_us=20_000)


def test_a_policy_that_suspends_is_obeyed() -> None:
    """What was in the log can be read; all else waits for the input."""

    async def script(cluster: FaultyCluster) -> None:
        await restarted(cluster, "na", "nb")
        before = tentative(cluster)
        await trio.sleep(3 * X)
        assert states(cluster) == {NodeState.UP_FAILURE}
        assert not any(r.sunion.tainted for r in cluster.replicas().values())
        assert tentative(cluster) == before
        cluster.heal()
        await until(lambda: states(cluster) == {NodeState.STABLE})

    play(*logged(policy={"failure": "suspend", "stabilization": "process"}), script)


def test_the_log_is_ahead_of_the_one_upstream() -> None:
    """Whose disk was full for a while: what is to be replayed is not there, and what comes instead is tentative."""
    sources = {
        name: {"boundary": "100ms", "from": {"generator": {"name": "orders", "duration": "20s", "rate": 60, "seed": n}}}
        for n, name in enumerate("st")
    }
    count = {"window": {"count": 3}, "group_by": "key", "compute": {"n": "count(*)", "v": "sum(qty)"}}
    log = {"checkpoint": {"continuous": True, "recovery": "2s"}}
    data: dict[str, Any] = {
        "cluster": "logged",
        "bucket": "100ms",
        "defaults": {"x": "2s"},
        "nodes": ["na", "nb", "nc", "nd"],
        "sources": sources,
        "query": {
            "u": {"union": {"from": ["s", "t"]}},
            "m": {"aggregate": {"from": "u", **count}},
            "out": {"aggregate": {"from": "m", "window": {"tumbling": "2s"}, "compute": {"v": "sum(v)"}}},
        },
        "outputs": ["out"],
        "fragments": {
            "f": {"operators": ["u", "m"], "replicas": ["na", "nb"], **log},
            "g": {"operators": ["out"], "replicas": ["nc", "nd"], **log},
        },
        "clients": {"client": {"reads": ["out"]}},
    }

    async def script(cluster: FaultyCluster) -> None:
        await trio.sleep(3.2)
        for node in ("na", "nb"):
            cluster.disks[node].space_left = 10
        await trio.sleep(1.5)
        for node in ("na", "nb", "nc", "nd"):
            cluster.kill(node)
            cluster.disks[node].space_left = None
        cluster.cut("source:t", "*")
        await trio.sleep(0.3)
        for node in ("na", "nb", "nc", "nd"):
            cluster.restart(node)
        await until(lambda: states(cluster) == {NodeState.UP_FAILURE})
        assert [r.core.snapshot() for r in cluster.replicas().values()] == [None] * 4
        before = tentative(cluster)
        await trio.sleep(5)
        assert tentative(cluster) > before
        cluster.heal()
        await until(lambda: states(cluster) == {NodeState.STABLE})

    play(*Scenario(0, data).deployed(), script)


def test_checkers_require_results_of_replays() -> None:
    """Nothing else is looked at here."""

    async def script(cluster: FaultyCluster) -> None:
        await restarted(cluster, "na", "nb")
        await trio.sleep(9)
        cluster.heal()

    play(*logged(), script)


@pytest.mark.parametrize(
    ("query", "reconcile"),
    long_but([("count", "checkpoint"), ("sliding", "undo")], product(["sliding", "count", "join"], RECONCILE)),
)
def test_the_log_was_turned_off(query: str, reconcile: str) -> None:
    """Its replay is the last use of the log; redo goes on without one."""
    plan, on = logged(query, reconcile=reconcile)
    off = without_logs(on)

    async def script(cluster: FaultyCluster) -> None:
        await trio.sleep(0.1)
        for node in ("na", "nb"):  # from their next start on
            cluster.directories[node] = off
        await restarted(cluster, "na", "nb")
        await gives_tentative_results(cluster)
        cluster.heal()
        await until(lambda: states(cluster) == {NodeState.STABLE})
        await trio.sleep(2)
        assert not any(kept_by(cluster, node) == {"log"} for node in ("na", "nb"))

    play(plan, on, script)
