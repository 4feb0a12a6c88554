"""Roles that a recovery gives to nodes for a while, where those with one have no room or are gone (rule O5).  Pure.

A node that is to restore a partition without a role for it becomes its standby first, as the target of a move does
(M2), and is told to run it when all producers know that.  When somebody else serves the partition, and the node has
been told to stand by again, it loses the role.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from replicas.placement.moves import RoleChange
from spe.plan.directory import Directory, Role
from spe.stream.ids import PartitionId, ReplicaId
from spe.stream.names import NodeId


class Lending:
    """See the module.

    Args:
      known: what the coordinator before this one had lent.

    Attributes:
      lent: roles that are to be taken back.
    """

    def __init__(self, directory: Directory, known: Iterable[ReplicaId] = ()) -> None:
        self._directory = directory
        self.lent = set(known)

    def redirect(self, directory: Directory) -> None:
        """Another directory counts."""
        self._directory = directory

    def step(
        self,
        wanted: Mapping[PartitionId, NodeId],
        runs: Mapping[NodeId, Mapping[PartitionId, bool]],
        moving: Collection[PartitionId],
    ) -> RoleChange | None:
        """What to change next in the directory.  :attr:`lent` is to be stored before that is done.

        Args:
          wanted: where partitions are to be restored.
          runs: by node that answers, what it runs; True: it serves it.
          moving: partitions with a move that has not ended, which counts on the roles that it found.
        """
        for id, node in wanted.items():
            if node in self._directory.nodes and node not in self._directory.hosts(id):
                self.lent.add(ReplicaId(*id, node))
                return RoleChange(id, ((node, Role.STANDBY),))
        for one in sorted(self.lent):
            if self._directory.roles[one.of].get(one.node) is not Role.STANDBY:
                self.lent.discard(one)  # a move has made it something else, or it has been taken back
            elif wanted.get(one.of) != one.node and one.of not in moving and self._is_over(one, runs):
                return RoleChange(one.of, ((one.node, None),))
        return None

    def _is_over(self, one: ReplicaId, runs: Mapping[NodeId, Mapping[PartitionId, bool]]) -> bool:
        served = any(here.get(one.of, False) for node, here in runs.items() if node != one.node)
        return served and one.of not in runs.get(one.node, {})
