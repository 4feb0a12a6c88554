"""The lasting part of a page: the query, and the replicas.  Pure.

The page gets it once, and again when it changes; a frame (replicas.cli.dashboard.frame) has only rows of figures, in
the order of the lists here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from spe.figures.cluster_figures import ClusterFigures, partition_name
from spe.figures.sight import Sight
from spe.plan.directory import COORDINATOR, Directory
from spe.plan.plan import Plan, Unit
from spe.plan.timing import origins
from spe.status import NodeStatus
from spe.stream.ids import ReplicaId
from spe.stream.names import NodeId, StreamId


@dataclass(frozen=True)
class ClusterLayout:
    """The names of a page, in the order of a frame's rows.

    Attributes:
      nodes: all known nodes, joined ones last.
      replicas: the replicas that the nodes run, stand by for, or are configured to run.
      channels: client, stream and partition of each channel that is read.
    """

    plan: Plan
    directory: Directory
    nodes: tuple[NodeId, ...]
    replicas: tuple[ReplicaId, ...]
    channels: tuple[tuple[str, StreamId, int], ...]

    @property
    def sources(self) -> tuple[StreamId, ...]:
        return tuple(self.plan.sources)

    @property
    def processes(self) -> list[str]:
        """All processes that answer polls."""
        clients = [f"client:{name}" for name in dict.fromkeys(client for client, _, _ in self.channels)]
        above = [COORDINATOR] if self.directory.coordinated else []
        return [*(f"source:{s}" for s in self.sources), *map(str, self.nodes), *above, *clients]

    @cached_property
    def origins(self) -> Mapping[StreamId, frozenset[StreamId]]:
        """The sources of each stream."""
        made = [s for unit in self.plan.units for s in unit.outputs]
        return {s: frozenset(origin.stream for origin in origins(self.plan, s)) for s in [*self.sources, *made]}

    def data(self, title: str) -> dict[str, Any]:
        """Returns the layout as the page gets it."""
        at = {node: i for i, node in enumerate(self.nodes)}
        unit_at = {unit.id: i for i, unit in enumerate(self.plan.units)}
        return {
            "cluster": self.plan.cluster,
            "title": title,
            "sources": list(self.sources),
            "units": [_unit(unit) for unit in self.plan.units],
            "nodes": list(self.nodes),
            "replicas": [
                [
                    f"{partition_name(self.plan, replica.of)}@{replica.node}",
                    unit_at[replica.unit],
                    replica.partition,
                    at[replica.node],
                ]
                for replica in self.replicas
            ],
            "channels": [
                [client, stream, partition, self.plan.partitions_of(stream)]
                for client, stream, partition in self.channels
            ],
        }


def _unit(unit: Unit) -> dict[str, Any]:
    return {
        "name": unit.id,
        "operators": [[o.name, o.spec.KEYWORD] for o in unit.operators],
        "inputs": [input.stream for input in unit.inputs],
        "outputs": list(unit.outputs),
        "partitions": unit.partitions,
    }


class LayoutMaker:
    """Makes the layouts of one cluster; reads only nodes whose status has changed."""

    def __init__(self, plan: Plan, directory: Directory) -> None:
        self._plan = plan
        self._directory = directory
        #: Last status of each node, and the replicas that it hosted then.
        self._hosted: dict[NodeId, tuple[NodeStatus | None, list[ReplicaId]]] = {}
        self._last: ClusterLayout | None = None

    def make(self, sight: Sight) -> ClusterLayout:
        """Returns the current layout; the same object while nothing has changed."""
        figures = ClusterFigures(self._plan, self._directory, sight)
        nodes = figures.nodes
        for node in nodes:
            status = sight.node(node)
            known = self._hosted.get(node)
            if known is None or known[0] is not status:
                hosted = figures.hosted_on(node)
                self._hosted[node] = (status, [replica for replica in hosted if replica.of in self._directory.roles])
        replicas = _in_order(self._plan, (replica for node in nodes for replica in self._hosted[node][1]))
        channels = tuple(
            (name, stream, partition)
            for name in figures.clients
            for stream in self._directory.clients[name].reads
            for partition in range(self._plan.partitions_of(stream))
        )
        if self._last is None or (self._last.nodes, self._last.replicas, self._last.channels) != (
            nodes,
            replicas,
            channels,
        ):
            self._last = ClusterLayout(self._plan, self._directory, nodes, replicas, channels)
        return self._last


def _in_order(plan: Plan, replicas: Iterable[ReplicaId]) -> tuple[ReplicaId, ...]:
    """Sorts replicas by unit and partition, in the order of the plan; keeps the order within a partition."""
    rank = {unit.id: i for i, unit in enumerate(plan.units)}
    return tuple(sorted(replicas, key=lambda replica: (rank[replica.unit], replica.partition)))
