"""Checks whether a node may host one more partition: units in sequence there divide its X (rules T7, M5)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from spe.plan.directory import Directory, roles_of
from spe.plan.plan import Plan
from spe.plan.review import refused_share
from spe.stream.ids import Channel, PartitionId
from spe.stream.names import NodeId

#: Nodes that run each partition.
Running = Mapping[PartitionId, tuple[NodeId, ...]]


class SharesOfX:
    """The check of ``spe check`` for one more host.

    Args:
      directory: has the standbys, and the X of each node.
    """

    def __init__(self, plan: Plan, directory: Directory) -> None:
        self._plan = plan
        self._directory = directory
        self._beside = {id: self._read_and_readers(id) for id in directory.placement}

    def neighbours(self, partition: PartitionId) -> frozenset[PartitionId]:
        """Returns partitions that it reads or that read it: on one node they divide X."""
        return self._beside[partition]

    def refused(self, running: Running, partition: PartitionId, target: NodeId) -> str | None:
        """Returns why a node may not run a partition along with those that it hosts; None: it may."""
        if partition in running and target in self._hosts(running, partition):
            return None
        hosted = [p for p in running if target in self._hosts(running, p)]
        if any(p.unit == partition.unit for p in hosted) and not self._beside[partition] & set(hosted):
            return None  # nothing is in sequence with it, and others of its unit are there already
        hosts = {p: self._hosts(running, p) for p in running}
        roles = {p: roles_of(nodes) for p, nodes in hosts.items()} | {
            partition: roles_of([*hosts.get(partition, ()), target])
        }
        return refused_share(self._plan, replace(self._directory, roles=roles), target)

    def _hosts(self, running: Running, partition: PartitionId) -> tuple[NodeId, ...]:
        """Returns the nodes that run a partition or stand by for it."""
        standbys = self._directory.standbys.get(partition)
        more = () if standbys is None else standbys.nodes
        return (*running[partition], *(n for n in more if n not in running[partition]))

    def _read_and_readers(self, partition: PartitionId) -> frozenset[PartitionId]:
        plan, unit = self._plan, self._plan.unit[partition.unit]
        reads = {plan.maker_of(c) for c in unit.channels_in(partition.partition) if c.stream in plan.producer}
        read_by = {r for s in unit.outputs for r in plan.readers_of(Channel(s, partition.partition))}
        return frozenset(reads | read_by)
