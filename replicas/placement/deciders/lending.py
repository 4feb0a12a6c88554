"""Roles that a recovery gives to nodes for a while, where those with one have no room or are gone (rule O5).  Pure.

A node that is to restore a partition without a role for it becomes its standby first, as the target of a move does
(M2), and is told to run it when all producers know that.  When somebody else serves the partition, and the node has
been told to stand by again, it loses the role.  One that does not answer may run it all the same, and may be the only
one that lacks nothing: it loses the role when somebody else is STABLE.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from replicas.placement.deciders.move import RoleChange
from replicas.placement.view import ClusterView
from spe.plan.directory import Directory
from spe.stream.ids import PartitionId, ReplicaId
from spe.stream.names import NodeId


@dataclass(frozen=True, slots=True)
class Lent:
    """A node becomes a standby of a partition for a while."""

    partition: PartitionId
    node: NodeId

    def __call__(self, directory: Directory) -> Directory:
        return directory.with_lent(self.partition, self.node)

    def __str__(self) -> str:
        return f"{self.partition}: {self.node} standby"


class Lending:
    """See the module.  The directory says which roles are lent, so that each coordinator knows."""

    def __init__(self, view: ClusterView) -> None:
        self._view = view

    @property
    def lent(self) -> frozenset[ReplicaId]:
        """Roles that are to be taken back."""
        return self._view.directory.lent

    def step(
        self,
        wanted: Mapping[PartitionId, NodeId],
        spared: Callable[[ReplicaId], bool],
        moving: Collection[PartitionId],
    ) -> Lent | RoleChange | None:
        """What to change next in the directory.

        Args:
          wanted: where partitions are to be restored.
          spared: does a partition do without what a node may run of it?
          moving: partitions with a move that has not ended, which counts on the roles that it found.
        """
        for id, node in wanted.items():
            if node in self._view.directory.nodes and node not in self._view.directory.hosts(id):
                return Lent(id, node)
        for replica in sorted(self.lent):
            assert replica.node in self._view.directory.hosts(replica.of), (
                "O5: a lent role is one that the directory has"
            )
            if wanted.get(replica.of) != replica.node and replica.of not in moving and spared(replica):
                return RoleChange(replica.of, ((replica.node, None),))
        return None
