"""The settings of each node over time: X and its shares, α and policies (rules X1, X5).

A simulated run records versions of the directory, and when each node applied them; a run of real processes records the
announcements of its nodes (T8).  A run without changes has one version, that of its directory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import Self, TypeAlias

from spe.plan.bound_changes import SharesInForce
from spe.plan.directory import CONFIGURED, Directory, Version
from spe.plan.nodes import Node, Policy
from spe.plan.plan import Plan
from spe.stream.history import DirectoryApplied, History
from spe.stream.ids import PartitionId
from spe.stream.names import NodeId, UnitId
from spe.stream.times import BEFORE_TIME
from spe.wire.messages.feeds import Announcement

#: (time, the node with its share of X for a partition from then on); None: it has no role for it.
NodeStep: TypeAlias = tuple[int, Node | None]
#: From the policy that promises least.
_BY_CLAIMS = (Policy.SUSPEND, Policy.DELAY, Policy.PROCESS)


class InForce:
    """The settings in force over time; see the module.

    Args:
      over_time: all replicas that ran or could run: the roles at the end, and former holders of roles as standbys.
      steps: of each node for each partition; the configuration counts where there are none.
      began_with: the configured directory; None: ``over_time``, for nothing was changed.

    Attributes:
      directory: ``over_time``, each node with the least promising of its policies.
      giving: the same with its most giving policies: results may come from any replica that was not always silent.
      longest: X of each partition at each node, over time.
    """

    def __init__(
        self,
        plan: Plan,
        over_time: Directory,
        steps: Mapping[tuple[PartitionId, NodeId], Sequence[NodeStep]],
        began_with: Directory | None = None,
    ) -> None:
        self.began_with = over_time if began_with is None else began_with
        configured: dict[tuple[PartitionId, NodeId], Sequence[NodeStep]] = {
            (partition, node): [(BEFORE_TIME, over_time.share(plan, partition.unit, node))]
            for partition in over_time.roles
            for node in over_time.hosts(partition)
        }
        self._steps = configured | dict(steps)
        self.directory = self._under(over_time, _BY_CLAIMS)
        self.giving = self._under(over_time, _BY_CLAIMS[::-1])
        x_of: dict[PartitionId, list[list[tuple[int, int | None]]]] = {partition: [] for partition in over_time.roles}
        for (partition, _), each in self._steps.items():
            x_of[partition].append([(at, None if node_then is None else node_then.x_us) for at, node_then in each])
        self.longest = SharesInForce(plan, x_of)

    @classmethod
    def applied(cls, history: History, plan: Plan, over_time: Directory, versions: Mapping[Version, Directory]) -> Self:
        """Reads applied versions of the directory; ``versions``: all that were issued, and the configuration's."""
        if not versions:
            return cls(plan, over_time, {})
        by_node = {node: [(BEFORE_TIME, versions[CONFIGURED])] for node in over_time.nodes}
        for event in (e for e in history if isinstance(e, DirectoryApplied) and e.host in by_node):
            if (issued := versions.get(Version(event.epoch, event.number))) is not None:
                by_node[NodeId(event.host)].append((event.at_us, issued))
        steps = {
            (partition, node): [
                (at, d.share(plan, partition.unit, node) if node in d.hosts(partition) else None)
                for at, d in by_node[node]
            ]
            for partition in over_time.roles
            for node in over_time.hosts(partition)
        }
        return cls(plan, over_time, steps, versions[CONFIGURED])

    @classmethod
    def announced(cls, plan: Plan, directory: Directory, heard: Iterable[Announcement], began_us: int) -> Self:
        """Reads announcements of nodes; ``began_us``: wall time at which times begin."""
        steps: dict[tuple[PartitionId, NodeId], dict[int, Node]] = {}
        for announcement in heard:
            node, unit = directory.nodes.get(NodeId(announcement.node)), plan.unit.get(UnitId(announcement.unit))
            if node is None or unit is None:
                continue
            node_then = replace(
                node,
                x_us=announcement.share_us,
                alpha=announcement.alpha,
                during_failure=Policy(announcement.during_failure),
                during_stabilization=Policy(announcement.during_stabilization),
            )
            for partition in (PartitionId(unit.id, p) for p in range(unit.partitions)):
                steps.setdefault((partition, node.id), {})[announcement.since_us - began_us] = node_then
        return cls(plan, directory, {key: sorted(each.items(), key=lambda e: e[0]) for key, each in steps.items()})

    def moved_us(self) -> float:
        """Returns when a node first had a role that the configuration does not give it; infinite: never."""
        new = (each for (partition, node), each in self._steps.items() if node not in self.began_with.hosts(partition))
        return min((at for each in new for at, node_then in each if node_then), default=inf)

    def shares(self, unit: UnitId, node: NodeId) -> list[Node]:
        """Returns the node with each share of X that a unit had there."""
        nodes = (
            node_then
            for (partition, at), each in self._steps.items()
            if (partition.unit, at) == (unit, node)
            for _, node_then in each
            if node_then
        )
        return list(dict.fromkeys(nodes))

    def longest_x_us(self, unit: UnitId, node: NodeId) -> int:
        return max((node_then.x_us for node_then in self.shares(unit, node)), default=self.directory.nodes[node].x_us)

    def shortest_x_us(self, unit: UnitId, node: NodeId) -> int:
        return min((node_then.x_us for node_then in self.shares(unit, node)), default=0)

    def shortest_alpha_x_us(self, replicas: Iterable[tuple[PartitionId, NodeId]]) -> int:
        """Returns the smallest αX of some replicas; 0 where there are none."""
        return min(
            (node_then.alpha_x_us for each in replicas for _, node_then in self._steps.get(each, ()) if node_then),
            default=0,
        )

    def _under(self, over_time: Directory, order: Sequence[Policy]) -> Directory:
        """Returns each node with the first of its policies in this order."""
        nodes = {}
        for name, node in over_time.nodes.items():
            each = [node, *self._all(name)]
            nodes[name] = replace(
                node,
                during_failure=min((node_then.during_failure for node_then in each), key=order.index),
                during_stabilization=min((node_then.during_stabilization for node_then in each), key=order.index),
            )
        return replace(over_time, nodes=nodes)

    def delays(self, nodes: Iterable[NodeId]) -> bool:
        """Did one of the nodes ever hold back each bucket?"""
        every = (node_then for node in nodes for node_then in self._all(node))
        return any(Policy.DELAY in (node_then.during_failure, node_then.during_stabilization) for node_then in every)

    def _all(self, node: NodeId) -> Iterator[Node]:
        return (node_then for (_, at), each in self._steps.items() if at == node for _, node_then in each if node_then)
