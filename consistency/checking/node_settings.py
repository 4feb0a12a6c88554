"""What each node went by, and when: X and its shares, α and policies (rules X1, X5).

A simulated run tells of versions of the directory, and who applied them when; of a run of real processes there is what
its nodes announced (T8).  A run that changes nothing has one version: what its directory says.
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
from spe.wire.messages import Announcement

#: (time, the node with the share of X that it has for a partition from then on); None: it has no role for it.
NodeStep: TypeAlias = tuple[int, Node | None]
#: From the policy under which least is claimed.
_BY_CLAIMS = (Policy.SUSPEND, Policy.DELAY, Policy.PROCESS)


class InForce:
    """See the module.

    Args:
      over_time: who has run what, or could have: roles as they are in the end, and as standbys those that had one.
      steps: of each node for each partition; the configuration counts where there are none.
      began_with: what the configuration says; None: ``over_time``, for nothing was changed.

    Attributes:
      directory: ``over_time``, each node with the policies that promise least of those that it had.
      giving: the same with those under which it gives most: results may have come from whoever was not always silent.
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
            (of, node): [(BEFORE_TIME, over_time.share(plan, of.unit, node))]
            for of in over_time.roles
            for node in over_time.hosts(of)
        }
        self._steps = configured | dict(steps)
        self.directory = self._under(over_time, _BY_CLAIMS)
        self.giving = self._under(over_time, _BY_CLAIMS[::-1])
        found: dict[PartitionId, list[list[tuple[int, int | None]]]] = {of: [] for of in over_time.roles}
        for (of, _), each in self._steps.items():
            found[of].append([(at, None if one is None else one.x_us) for at, one in each])
        self.longest = SharesInForce(plan, found)

    @classmethod
    def applied(cls, history: History, plan: Plan, over_time: Directory, versions: Mapping[Version, Directory]) -> Self:
        """As nodes applied versions of the directory; ``versions``: all that were issued, and the configuration's."""
        if not versions:
            return cls(plan, over_time, {})
        by_node = {node: [(BEFORE_TIME, versions[CONFIGURED])] for node in over_time.nodes}
        for event in (e for e in history if isinstance(e, DirectoryApplied) and e.host in by_node):
            if (issued := versions.get(Version(event.epoch, event.number))) is not None:
                by_node[NodeId(event.host)].append((event.at_us, issued))
        steps = {
            (of, node): [(at, d.share(plan, of.unit, node) if node in d.hosts(of) else None) for at, d in by_node[node]]
            for of in over_time.roles
            for node in over_time.hosts(of)
        }
        return cls(plan, over_time, steps, versions[CONFIGURED])

    @classmethod
    def announced(cls, plan: Plan, directory: Directory, heard: Iterable[Announcement], began_us: int) -> Self:
        """As nodes announced it; ``began_us``: wall time at which times begin."""
        found: dict[tuple[PartitionId, NodeId], dict[int, Node]] = {}
        for one in heard:
            node, unit = directory.nodes.get(NodeId(one.node)), plan.unit.get(UnitId(one.unit))
            if node is None or unit is None:
                continue
            said = replace(
                node,
                x_us=one.share_us,
                alpha=one.alpha,
                during_failure=Policy(one.during_failure),
                during_stabilization=Policy(one.during_stabilization),
            )
            for of in (PartitionId(unit.id, p) for p in range(unit.partitions)):
                found.setdefault((of, node.id), {})[one.since_us - began_us] = said
        return cls(plan, directory, {key: sorted(each.items(), key=lambda e: e[0]) for key, each in found.items()})

    def moved_us(self) -> float:
        """Since when some node has had a role that the configuration does not give it; infinite: never."""
        new = (each for (of, node), each in self._steps.items() if node not in self.began_with.hosts(of))
        return min((at for each in new for at, one in each if one), default=inf)

    def shares(self, unit: UnitId, node: NodeId) -> list[Node]:
        """The node with each share of X that a unit had there."""
        found = (
            one for (of, at), each in self._steps.items() if (of.unit, at) == (unit, node) for _, one in each if one
        )
        return list(dict.fromkeys(found))

    def longest_x_us(self, unit: UnitId, node: NodeId) -> int:
        return max((one.x_us for one in self.shares(unit, node)), default=self.directory.nodes[node].x_us)

    def shortest_x_us(self, unit: UnitId, node: NodeId) -> int:
        return min((one.x_us for one in self.shares(unit, node)), default=0)

    def shortest_alpha_x_us(self, of: Iterable[tuple[PartitionId, NodeId]]) -> int:
        """The least of some replicas; 0 where there are none."""
        return min((one.alpha_x_us for each in of for _, one in self._steps.get(each, ()) if one), default=0)

    def _under(self, over_time: Directory, order: Sequence[Policy]) -> Directory:
        """Each node with the first of its policies in this order."""
        nodes = {}
        for name, node in over_time.nodes.items():
            each = [node, *self._all(name)]
            nodes[name] = replace(
                node,
                during_failure=min((one.during_failure for one in each), key=order.index),
                during_stabilization=min((one.during_stabilization for one in each), key=order.index),
            )
        return replace(over_time, nodes=nodes)

    def delays(self, nodes: Iterable[NodeId]) -> bool:
        """Did one of them ever hold back each bucket?"""
        every = (one for node in nodes for one in self._all(node))
        return any(Policy.DELAY in (one.during_failure, one.during_stabilization) for one in every)

    def _all(self, node: NodeId) -> Iterator[Node]:
        return (one for (_, at), each in self._steps.items() if at == node for _, one in each if one)
