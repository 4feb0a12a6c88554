"""What nodes say that their replicas need (rule L1).  Pure."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from replicas.planning.load import LoadHistory, LoadSample
from spe.plan.directory import Directory
from spe.plan.plan import Plan
from spe.status import PartitionLoad
from spe.stream.ids import Channel, PartitionId, ReplicaId
from spe.stream.names import NodeId, StreamId, UnitId
from spe.wire.messages import Load, OutputStatus


class HeardLoads:
    """Takes samples from heartbeat answers.

    Args:
      plan: the cluster.
      directory: who may say something of which partition.

    Attributes:
      history: of each partition.
    """

    def __init__(self, plan: Plan, directory: Directory) -> None:
        self.history = LoadHistory()
        self._plan = plan
        self._directory = directory
        self._latest: dict[NodeId, dict[PartitionId, LoadSample]] = {}

    def redirect(self, directory: Directory) -> None:
        """Another directory counts."""
        self._directory = directory

    def heard(
        self, node: NodeId, outputs: Iterable[OutputStatus], loads: Iterable[Load], now: int
    ) -> list[tuple[PartitionId, LoadSample]]:
        """Takes an answer, which names everything that the node runs.

        Args:
          now: monotonic microseconds.

        Returns:
          The samples that count: those of partitions that the node has a role for.
        """
        latest = self._latest.setdefault(node, {})
        directory, counted = self._directory, []
        for load in loads:
            partition, sample = PartitionId(UnitId(load.unit), load.partition), LoadSample(*load[2:])
            if partition in directory.roles and node in directory.hosts(partition):
                self.history.sample(partition, sample, now)
                latest[partition] = sample
                counted.append((partition, sample))
        if latest:
            told = {Channel(StreamId(o.stream), o.partition) for o in outputs}
            for id in [id for id in latest if Channel(self._plan.unit[id.unit].outputs[0], id.partition) not in told]:
                del latest[id]
        return counted

    def status(self, now: int) -> list[PartitionLoad]:
        """The mean of each partition over the time that samples are kept."""
        found = []
        for partition in self._directory.roles:
            if (mean := self.history.mean(partition, now)) is not None:
                many = int((~np.isnan(self.history.series(partition, now))).sum())
                found.append(PartitionLoad(partition=str(partition), samples=many, mean=mean.status()))
        return found

    def lost(self, node: NodeId) -> None:
        """A node does not answer any more."""
        self._latest.pop(node, None)

    def latest(self) -> dict[ReplicaId, LoadSample]:
        """The newest sample of each replica that runs, as far as its node answers."""
        return {ReplicaId(*of, node): load for node, loads in self._latest.items() for of, load in loads.items()}
