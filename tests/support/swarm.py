"""Seeded swarm: random plans, random faults on them, and what must hold when all has healed.

Each seed draws its own shape (depth, sources, replicas, partitions, stateful operators, policies, X, limits) and
leaves out fault kinds at random, for what is always there hides what happens without it.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any, Final

import trio

from replicas.replica import Replica
from replicas.simulation.cluster import SimCluster
from spe.config import load_plan_data
from spe.plan import Checkpoints, Limits, Plan, Reconcile
from spe.states import NodeState

#: Length of every source; faults happen within about this time, everything heals after it.
SECONDS: Final = 6

_KINDS: Final = (
    "cut", "isolate", "one-way", "source", "source", "starve", "flap", "slow", "half-open", "freeze",
    "kill", "kill the source", "kill the producer", "kill in stabilization", "one by one", "restart", "heal",
)  # fmt: skip


def random_plan(random: Random) -> Plan:
    """A chain of one to three units over one to three sources."""
    names = "abc"[: random.choice([1, 2, 2, 3])]
    replicas = random.choice([1, 2, 2, 2, 3])
    shared = random.random() < 0.25
    query, last = _first(random, names)
    groups = [list(query)]
    for at in range(2, random.choice([1, 2, 2, 3]) + 1):
        query[f"s{at}"], last = _next(random, last), f"s{at}"
        groups.append([last])
    nodes: list[str] = []
    fragments: dict[str, Any] = {}
    for at, operators in enumerate(groups, 1):
        where = [f"n{'' if shared else at}{letter}" for letter in "abc"[:replicas]]
        nodes += [n for n in where if n not in nodes]
        partitions = random.choice([1, 1, 2, 3])
        fragments[f"f{at}"] = {"operators": operators, "replicas": where}
        if partitions > 1:
            fragments[f"f{at}"] |= {"key": "key", "partitions": partitions, "replicas": [where] * partitions}
    policies = ["process", "process", "delay", "suspend"]
    data = {
        "cluster": "swarm",
        "bucket": "40ms",
        "defaults": {
            "x": random.choice(["400ms", "700ms", "1s"]),
            "alpha": random.choice([0.6, 0.9]),
            "policy": {"failure": random.choice(policies), "stabilization": random.choice(policies)},
        },
        "nodes": nodes,
        "sources": {name: _source(name, random.choice([20, 50]), random.choice(["0ms", "60ms"])) for name in names},
        "query": query,
        "outputs": [last],
        "fragments": fragments,
    }
    plan = load_plan_data(data)
    return replace(
        plan,
        nodes={name: replace(node, address=f"{name}:1") for name, node in plan.nodes.items()},
        sources={name: replace(one, address=f"source-{name}:1") for name, one in plan.sources.items()},
        limits=_limits(random),
    )


def with_random_checkpoints(plan: Plan, random: Random) -> Plan:
    """The same plan, whose nodes each get back behind tentative data, and over restarts, in a way of their own."""
    ways = [
        Checkpoints(),
        Checkpoints(30_000),
        Checkpoints(300_000),
        Checkpoints(100_000, True),
        Checkpoints(700_000, True),
    ]
    return replace(
        plan,
        nodes={
            name: replace(node, reconcile=random.choice(list(Reconcile)), checkpoints=random.choice(ways))
            for name, node in plan.nodes.items()
        },
    )


def _source(name: str, rate: int, disorder: str) -> dict[str, Any]:
    orders = {"name": "orders", "rate": rate, "keys": 6, "seed": ord(name), "duration": f"{SECONDS}s"}
    return {"boundary": "40ms", "disorder": disorder, "from": {"generator": orders | {"disorder": disorder}}}


def _first(random: Random, names: str) -> tuple[dict[str, Any], str]:
    """Operators of the first unit, whose last has the attributes key and v."""
    kind = random.choice(["join", "union", "windows"]) if len(names) > 1 else "windows"
    if kind == "join":
        join = {"left": "a", "right": "b", "on": "key", "within": ["-300ms", "300ms"], "prefix": ["l_", "r_"]}
        both = {"key": "coalesce(l_key, r_key)", "v": "coalesce(l_qty, r_qty)"}
        join["kind"] = random.choice(["inner", "left", "full"])
        return {"j": {"join": join}, "s1": {"map": {"from": "j", "compute": both}}}, "s1"
    query: dict[str, Any] = {"u": {"union": list(names)}} if len(names) > 1 else {}
    source = "u" if query else "a"
    if kind == "union":
        return query | {"s1": {"map": {"from": source, "compute": {"key": "key", "v": "qty"}}}}, "s1"
    window = {"sliding": "400ms", "slide": "100ms"}
    sums = {"v": "sum(qty)", "first": "first(price)"}
    return query | {"s1": {"aggregate": {"from": source, "window": window, "group_by": "key", "compute": sums}}}, "s1"


def _next(random: Random, last: str) -> dict[str, Any]:
    kind = random.choice(["windows", "count windows", "filter"])
    if kind == "filter":
        return {"filter": {"from": last, "where": "v >= 2"}}
    window = {"count": 5} if kind == "count windows" else {"tumbling": "200ms"}
    return {"aggregate": {"from": last, "window": window, "group_by": "key", "compute": {"v": "sum(v)"}}}


def _limits(random: Random) -> Limits:
    """Half of the plans have room for everything; the others spill, block, evict and redo for lack of it."""
    limits = Limits()
    if random.random() < 0.5:
        limits = replace(
            limits,
            output_bytes=random.choice([limits.output_bytes, 6_000, 30_000]),
            input_bytes=random.choice([limits.input_bytes, 1_000, 10_000]),
            suffix_bytes=random.choice([limits.suffix_bytes, 10_000]),
            spill_bytes=random.choice([limits.spill_bytes, 100_000, 0]),
        )
    return limits


def replicas_of(cluster: SimCluster) -> dict[str, Replica]:
    return {name: replica for node in cluster.nodes.values() for name, replica in node.replicas().items()}


class Faults:
    """Makes faults happen on a running cluster, as long as P3's premise holds: a replica of each partition is left."""

    def __init__(self, cluster: SimCluster, random: Random) -> None:
        self._cluster = cluster
        self._random = random
        plan = cluster.plan
        self._nodes = list(plan.nodes)
        self._sources = [f"source:{s}" for s in plan.sources]
        self._clients = [f"client:{c}" for c in plan.clients]
        self._edges = [
            (producer, node)
            for unit in plan.units
            for channel in unit.channels_in()
            for producer in plan.producer_addresses(channel)
            for of, nodes in plan.placement.items()
            for node in nodes
            if of.unit == unit.id and producer != node
        ]
        self._kinds = [k for k in _KINDS if random.random() < 0.5] or ["source"]
        self._down: set[str] = set()
        self._frozen: set[str] = set()
        self._cut = False

    async def run(self) -> None:
        """Some faults, then everything heals."""
        for _ in range(self._random.randint(2, 7)):
            await trio.sleep(self._random.choice([0.05, 0.2, 0.5, 0.9, 1.3]))
            await self._happen(self._random.choice(self._kinds))
        self._heal()
        for host in sorted(self._frozen):
            self._cluster.thaw(host)
        self._restart()

    async def _happen(self, kind: str) -> None:
        cluster, random = self._cluster, self._random
        hosts = [*self._nodes, *self._sources, *self._clients]
        match kind:
            case "cut":
                for _ in range(random.choice([1, 2, 3])):
                    self._apart(*random.choice(self._edges))
            case "isolate":
                self._apart(random.choice(hosts), "*")
            case "one-way":
                a, b = random.choice(self._edges)
                self._apart(*random.choice([(a, b), (b, a)]), one_way=True)
            case "source":
                self._apart(random.choice(self._sources), "*")
            case "starve":
                node = random.choice(self._nodes)
                for edge in (e for e in self._edges if node in e):
                    self._apart(*edge)
                await trio.sleep(random.choice([1, 2.5, 4]))
                self._heal()
            case "flap":
                a, b = random.choice(self._edges)
                for _ in range(4):
                    self._apart(a, b)
                    await trio.sleep(0.3)
                    self._heal()
                    await trio.sleep(random.choice([0.1, 0.4]))
            case "slow":
                for pair in self._edges:
                    cluster.delay(*pair, random.choice([0.0, 0.005, 0.05]))
            case "half-open":
                cluster.network.lose_one(random)
            case "freeze":
                host = random.choice(hosts)
                if host not in self._down | self._frozen:
                    self._frozen.add(host)
                    cluster.freeze(host)
                    await trio.sleep(random.choice([0.1, 0.5, 2]))
                    if random.random() < 0.7:
                        self._frozen.discard(host)
                        cluster.thaw(host)
            case "kill":
                self._kill(random.choice(self._nodes))
            case "kill the source":
                self._kill(random.choice(self._sources))
            case "kill the producer":
                for client in cluster.clients.values():
                    self._kill(*(i.main.producer for i in client.inputs if i.main is not None))
            case "kill in stabilization":
                with trio.move_on_after(1.5):
                    while not self._kill(  # noqa: ASYNC110  (no event says so)
                        *(r.id.node for r in replicas_of(cluster).values() if r.state is NodeState.STABILIZATION)
                    ):
                        await trio.sleep(0.01)
            case "one by one":
                for host in random.sample(self._nodes, min(2, len(self._nodes))):
                    if self._kill(host):
                        await trio.sleep(random.choice([0.1, 0.5]))
                        self._restart()
                        await trio.sleep(random.choice([0.1, 0.8]))
            case "restart":
                self._restart()
            case "heal":
                self._heal()

    def _apart(self, a: str, b: str, *, one_way: bool = False) -> None:
        self._cluster.cut(a, b, one_way=one_way)
        self._cut = True

    def _heal(self) -> None:
        self._cluster.heal()
        self._cut = False

    def _restart(self) -> None:
        for host in sorted(self._down):
            self._cluster.restart(host)
        self._down.clear()

    def _kill(self, *hosts: str) -> bool:
        """Kills the first of them, if it can be spared."""
        for host in hosts[:1]:
            if host not in self._down and (host in self._sources or self._spared(host)):
                self._frozen.discard(host)
                self._down.add(host)
                self._cluster.kill(host)
                return True
        return False

    def _spared(self, host: str) -> bool:
        """Does another replica of each of its partitions hold the stable state, and can it keep up?"""
        plan, replicas = self._cluster.plan, replicas_of(self._cluster)
        tight = plan.limits != Limits()  # who is cut off may lose its place in a full buffer
        if tight and (self._cut or self._frozen or any(" evicted " in line for line in self._cluster.log)):
            return False
        for of, nodes in plan.placement.items():
            others = [replicas.get(f"{of}@{n}") for n in nodes if n != host and n not in self._frozen]
            if host in nodes and not any(
                r is not None and r.state is not NodeState.RECOVERING and not r.must_reinstall() for r in others
            ):
                return False
        return True


def unrest(cluster: SimCluster) -> list[str]:
    """What is not as it was before the faults: states, memory, feeds; empty when all is quiet."""
    replicas = replicas_of(cluster)
    expected = [f"{of}@{n}" for of, nodes in cluster.plan.placement.items() for n in nodes]
    found = [f"{name} is not there" for name in expected if name not in replicas]
    for name, replica in replicas.items():
        if replica.state is not NodeState.STABLE:
            found.append(f"{name} is {replica.state.name}")
        if replica.sunion.stable_bytes or any(i.tentative for i in replica.sunion.inputs):
            found.append(f"{name} holds tuples in its SUnion")
        for log in replica.logs:
            # One entry may be left of what all have acknowledged, where an acknowledgement ends inside it.
            if not log.suffix.untouched or log.stable.end - log.stable.start > 1:
                found.append(f"{name} holds output of {log.channel}: {dict(log.statistics())}")
        found += [f"{name} does not read {i.channel}" for i in replica.inputs if i.main is None or i.corr is not None]
    bad = (" quarantine ", " bad_peer ", " replica_stopped ")
    return found + [line for line in cluster.log if any(word in line for word in bad)]
