"""Clusters in which nodes have too little room for all their standbys (rules O1 to O6)."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any, Final

from spe.config import load_data

#: Share of a node's standbys for which it has room.
_ROOM: Final = (0.0, 0.3, 0.6, 1.0)
#: Share of the clusters with a spare node.
_SPARE: Final = 0.4
_LOADS: Final = (0.05, 0.1, 0.2, 0.4)


def with_little_room(random: Random, config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the configuration with loads, and capacities that they may exceed; unchanged if there are no standbys."""
    plan, directory = load_data(config)
    if not directory.standbys:
        return dict(config)
    loads = {str(unit.id): random.choice(_LOADS) for unit in plan.units}
    configured = config["nodes"]
    nodes = (
        {name: dict(own) for name, own in configured.items()}
        if isinstance(configured, Mapping)
        else {n: {} for n in configured}
    )
    for name, own in nodes.items():
        runs = sum(loads[id.unit] for id, hosts in directory.placement.items() if name in hosts)
        backs = sum(loads[id.unit] for id, standbys in directory.standbys.items() if name in standbys.nodes)
        needed = runs + random.choice(_ROOM) * backs
        own["capacity"] = round(max(needed, min(_LOADS)) / directory.coordinator.cap + 0.001, 3)
    if random.random() < _SPARE:  # a node without a role takes what standbys have no room for (O5)
        nodes["room1"] = {"spare": True, "capacity": round(random.choice(_LOADS) * random.choice((1, 2, 4)) + 0.1, 3)}
    priorities = {output: random.choice([1, 2, 5]) for output in plan.query.outputs}
    recovery = {"value": random.choice(["fidelity", "complete"]), "priorities": priorities, "loads": loads}
    return {**config, "nodes": nodes, "recovery": recovery}
