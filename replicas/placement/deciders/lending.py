"""Lends roles to nodes for a recovery, where nodes with a role have no room or are gone (rule O5).  Pure.

A node that is to restore a partition without a role for it becomes its standby first, as the target of a move does
(D3), and is ordered to run it when all producers know that.  When another node serves the partition and this node
stands by again, it loses the role.  A node that does not answer may still run the partition, and may be the only one
with its state: it loses the role when another node is STABLE.
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
    """Makes a node a standby of a partition for a while."""

    partition: PartitionId
    node: NodeId

    def __call__(self, directory: Directory) -> Directory:
        return directory.with_lent(self.partition, self.node)

    def __str__(self) -> str:
        return f"{self.partition}: {self.node} standby"


class Lending:
    """Lends and takes back roles.  The directory records lent roles, so each coordinator knows them."""

    def __init__(self, view: ClusterView) -> None:
        self._view = view

    @property
    def lent(self) -> frozenset[ReplicaId]:
        """Lent roles, which are to be taken back."""
        return self._view.directory.lent

    def step(
        self,
        wanted: Mapping[PartitionId, NodeId],
        spared: Callable[[ReplicaId], bool],
        moving: Collection[PartitionId],
    ) -> Lent | RoleChange | None:
        """Returns the next change of the directory; None: none is needed.

        Args:
          wanted: nodes on which partitions are to be restored.
          spared: can a partition do without a replica?
          moving: partitions with a move that has not ended, which relies on their present roles.
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
