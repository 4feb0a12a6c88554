"""The room of nodes for lost partitions (rules O1, O5).  Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import inf

from replicas.placement.deciders.install import LostPartition
from replicas.placement.deciders.needs import PartitionNeeds
from replicas.placement.view import ClusterView
from replicas.planning.recovery.choosing import LITTLE
from replicas.planning.shares import SharesOfX
from spe.stream.ids import PartitionId
from spe.stream.names import NodeId


class RestoringRoom:
    """Knows which nodes have room for lost partitions.

    Attributes:
      pending: ordered replicas that their nodes do not report yet.
    """

    def __init__(self, view: ClusterView, needs: PartitionNeeds) -> None:
        self._view = view
        self._needs = needs
        self.pending: dict[PartitionId, NodeId] = {}
        self.redirect()

    def redirect(self) -> None:
        """Follows a changed directory."""
        self._shares = SharesOfX(self._view.plan, self._view.directory)
        #: Does X of a node allow a role for a partition?
        self._may_wait: dict[tuple[PartitionId, NodeId], bool] = {}

    def fits(self, lost: Mapping[PartitionId, LostPartition]) -> bool:
        """Has the first standby of each partition room, with all that it runs and was ordered to run?

        The second standby counts for a partition that recovers: it would be ordered to help after a while (H5).
        """
        more: dict[NodeId, list[PartitionId]] = {}
        for id, partition in lost.items():
            if not partition.able:
                return False
            if id not in self.pending:
                more.setdefault(partition.able[0], []).append(id)
        return all(self._has_room(node, ids) for node, ids in more.items())

    def _has_room(self, node: NodeId, more: Collection[PartitionId]) -> bool:
        """Has a node cores for these partitions as well?  Partitions that need next to none always have room."""
        load = sum(self._needs.load[id] for id in more)
        return self._has_memory(node, more) and (load <= LITTLE or load <= self._cores_left(node) + LITTLE)

    def _cores_left(self, node: NodeId) -> float:
        return self.capacity(node) * self._view.directory.coordinator.cap - sum(
            self._needs.load.get(id, 0.0) for id in self.here(node)
        )

    def here(self, node: NodeId) -> set[PartitionId]:
        """Returns the partitions that a node runs or was ordered to run."""
        return {*self._view.runs.get(node, ()), *(id for id, where in self.pending.items() if where == node)}

    def _has_memory(self, node: NodeId, more: Collection[PartitionId]) -> bool:
        return self._memory_left(node, more) >= 0

    def _memory_left(self, node: NodeId, more: Collection[PartitionId] = ()) -> float:
        """Returns the bytes left after these partitions; infinite where the node's memory is unknown."""
        if (memory := self._view.directory.nodes[node].memory) is None:
            return inf
        needed = sum(self._needs.memory.get(id, 0.0) for id in {*self.here(node), *more})
        return memory * self._view.directory.coordinator.cap - needed

    def memory_short(self, id: PartitionId, standbys: Collection[NodeId]) -> str:
        """Describes which memory a partition lacks on these standbys, for people."""
        left, node = max((max(0.0, self._memory_left(n)), n) for n in standbys)
        needed = self._needs.memory.get(id, 0.0)
        return f"needs {needed / 1e6:.0f} MB; of its standbys {node} has most memory left, {left / 1e6:.0f} MB"

    def may_run(self, id: PartitionId, partition: LostPartition) -> frozenset[NodeId]:
        """Returns answering nodes that may restore a partition, with or without a role; cores are not checked."""
        assert not set(partition.able) & set(partition.others), "O5: others are those without a role"
        others = () if partition.recovering else partition.others
        nodes = [*partition.able, *(n for n in others if n in self._view.runs and self._may_have(id, n))]
        return frozenset(n for n in nodes if self._has_memory(n, [id]))

    def _may_have(self, id: PartitionId, node: NodeId) -> bool:
        """Would X of a node suffice for this partition too, and are the needs of all that it runs known?"""
        if any(other not in self._needs.load for other in self.here(node)):
            return False
        if (id, node) not in self._may_wait:
            self._may_wait[id, node] = self._shares.refused(self._view.directory.placement, id, node) is None
        return self._may_wait[id, node]

    def capacity(self, node: NodeId) -> float:
        return self._view.directory.nodes[node].capacity
