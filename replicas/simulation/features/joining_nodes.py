"""Nodes that are not configured join a simulated cluster while it runs (D4), and get moves.

Entries of ``joins`` are plain data: each is one action on such a node.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from random import Random
from typing import Any, Final

from consistency.checking.counters import Counters
from replicas.simulation.features.ordered_moves import give_order
from replicas.simulation.world.clock import sleep_until_us
from replicas.simulation.world.cluster import SimCluster
from spe.config import load_data
from spe.plan.describe import show_duration
from spe.plan.directory import COORDINATOR, Directory
from spe.plan.nodes import Node
from spe.stream.history import History, Note, StateChanged, host_of
from spe.stream.names import NodeState
from spe.stream.times import MILLISECOND, SECOND
from spe.wire.messages.commands import MoveOrder

NAMES: Final = ("new1", "new2")
#: Number of moves to such a node; and the faults that it gets.
MOVES: Final = (1, 2, 3, 4)
FAULTS: Final = (0, 1, 2, 3)
#: Share of such nodes that are drained again, and of these, the share that leave.
_DRAINED: Final = 0.5
_LEAVES: Final = 0.7
#: Share of such nodes that restart with other settings, and of those with an X of their own.
_CHANGED: Final = 0.3
_OWN_X: Final = 0.3
#: X, as a multiple of that of the others: less may be too little.
_TIMES: Final = (1, 2, 3)
_CAPACITIES: Final = (0.5, 1.0, 2.0)
_GRID_US: Final = 10 * MILLISECOND
_LENGTHS_MS: Final = (50, 300, 1000, 2000, 4000, 6000)

Entry = dict[str, Any]


def random_joins(random: Random, config: Mapping[str, Any], until_us: int) -> tuple[list[Entry], list[Entry]]:
    """Returns the actions on nodes that join, in order of time, and the faults that they get."""
    done: list[Entry] = []
    befalls: list[Entry] = []
    directory = load_data(config).directory
    for name in NAMES[: random.choice([1, 1, 2])]:
        begins = _grid(random.randrange(SECOND // 2, until_us // 2))
        done.append({"at_us": begins, "do": "join", "node": name, "own": _own(random, config)})
        at, times = begins, [begins]
        for _ in range(random.choice(MOVES)):
            at += random.choice([100, 300, 1000, 2000, 3000]) * MILLISECOND
            done.append({"at_us": at, "do": "move", "node": name, "draw": random.randrange(1 << 30)})
            times.append(at)
        if random.random() < _CHANGED:
            at_us = _grid(random.randrange(begins, until_us))
            done.append({"at_us": at_us, "do": "join", "node": name, "own": _own(random, config)})
            befalls.append({"at": at_us, "kind": "restart", "target": name})
        for _ in range(random.choice(FAULTS)):
            befalls += _befalls(random, name, random.choice(times), begins, directory)
        if random.random() < _DRAINED:
            at += random.choice([500, 2000, 4000]) * MILLISECOND
            done.append({"at_us": at, "do": "drain", "node": name})
            if random.random() < _LEAVES:
                at += random.choice([1000, 3000]) * MILLISECOND
                befalls.append({"at": at, "kind": "kill", "target": name, "for": "4s"})
                done += [{"at_us": at + n * SECOND, "do": "leave", "node": name} for n in (1, 2, 3)]
    return (
        sorted((e for e in done if e["at_us"] < until_us), key=lambda e: e["at_us"]),
        [{**e, "at": show_duration(e["at"])} for e in befalls if e["at"] < until_us],
    )


def _grid(us: int) -> int:
    return us // _GRID_US * _GRID_US


def _own(random: Random, config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings of a node that joins."""
    own: dict[str, Any] = {"capacity": random.choice(_CAPACITIES)}
    if random.random() < _OWN_X:
        own["x"] = f"{random.choice(_TIMES) * int(config['defaults']['x'].removesuffix('ms'))}ms"
    return own


def _befalls(random: Random, name: str, near: int, begins: int, directory: Directory) -> list[Entry]:
    """Returns one fault of a node near the time at which it joins, or gets a partition."""
    lasts = {"for": show_duration(random.choice(_LENGTHS_MS) * MILLISECOND)}
    soon = near + random.choice([0, 50, 200, 500, 1000, 2000]) * MILLISECOND
    match random.choice(["dies", "dies", "empty", "starts", "cut", "no coordinator", "recovers", "partner", "freeze"]):
        case "dies":  # and restarts with its folder
            return [{"at": soon, "kind": random.choice(["kill", "power"]), "target": name, **lasts}]
        case "empty":
            return [{"at": soon, "kind": "wipe", "target": name, **lasts}]
        case "starts":
            at = begins + random.choice([0, 0, 10, 50, 150]) * MILLISECOND
            return [{"at": at, "kind": random.choice(["kill", "power", "wipe"]), "target": name, **lasts}]
        case "cut":
            other = random.choice(["all", COORDINATOR, *map(str, directory.nodes)])
            return [{"at": soon, "kind": "cut", "from": name, "to": other, **lasts}]
        case "no coordinator":
            at = max(0, near - random.choice([-200, -20, 0, 100, 500]) * MILLISECOND)
            kind = random.choice(["kill", "power", "freeze", "full"])
            return [{"at": at, "kind": kind, "target": COORDINATOR, **lasts}]
        case "recovers":
            return [{"at": soon, "kind": "kill", "target": f"state:{NodeState.RECOVERING.name}", **lasts}]
        case "partner":
            return [{"at": soon, "kind": "kill", "target": random.choice(sorted(directory.nodes)), **lasts}]
        case _:
            return [{"at": soon, "kind": "freeze", "target": name, **lasts}]


async def order_joins(
    cluster: SimCluster, entries: Sequence[Mapping[str, Any]], newcomer: Callable[[Mapping[str, Any]], Node]
) -> None:
    """Performs each action at its time; orders are given if there is a coordinator then.

    A hand-written move has ``partition`` and ``source`` in place of ``draw``.
    """
    for entry in entries:
        await sleep_until_us(entry["at_us"])
        if entry["do"] == "join":
            cluster.joins(newcomer(entry))
        elif cluster.runs(COORDINATOR):
            taken = await give_order(cluster, _order(cluster, entry))
            if taken and entry["do"] == "leave":
                cluster.taken_out.add(entry["node"])


def _order(cluster: SimCluster, entry: Mapping[str, Any]) -> MoveOrder:
    node = entry["node"]
    if entry["do"] != "move":
        return MoveOrder(entry["do"], "", node, "", 0)
    if "partition" in entry:
        return MoveOrder("move", entry["partition"], entry["source"], node, 0)
    random, roles = Random(entry["draw"]), cluster.current.roles
    partition = random.choice(
        sorted(partition_id for partition_id, nodes in roles.items() if node not in nodes) or sorted(roles)
    )
    return MoveOrder("move", str(partition), random.choice(sorted(roles[partition])), node, 0)


def count_joins(history: History, newcomers: Collection[str], counters: Counters) -> None:
    """Counts how often nodes have joined, and how often they came to run a partition."""
    for event in history if newcomers else ():
        if isinstance(event, Note) and event.name == "joined":
            counters.add("nodes that joined")
        elif isinstance(event, StateChanged) and host_of(event.replica) in newcomers:
            counters.add(f"times that a replica on a node that joined became {event.state.name}")
