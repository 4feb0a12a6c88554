"""Identifiers of channels, partitions and replicas."""

from __future__ import annotations

from typing import NamedTuple

from spe.stream.names import NodeId, StreamId, UnitId


class Channel(NamedTuple):
    """One partition of a stream; ids count its tuples."""

    stream: StreamId
    partition: int

    def __str__(self) -> str:
        return f"{self.stream}/{self.partition}"


class PartitionId(NamedTuple):
    """One partition of a unit; partitions are replicated."""

    unit: UnitId
    partition: int

    def __str__(self) -> str:
        return f"{self.unit}/{self.partition}"


class ReplicaId(NamedTuple):
    """One running copy of a partition; at most one per node."""

    unit: UnitId
    partition: int
    node: NodeId

    @property
    def of(self) -> PartitionId:
        return PartitionId(self.unit, self.partition)

    def __str__(self) -> str:
        return f"{self.unit}/{self.partition}@{self.node}"
