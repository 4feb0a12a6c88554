"""What nodes say that their replicas need (rule L1).  Pure."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from replicas.planning.load import LoadHistory, LoadSample
from spe.plan.directory import Directory
from spe.status import PartitionLoad
from spe.stream.ids import PartitionId
from spe.stream.names import NodeId, UnitId
from spe.wire.messages import Load


class HeardLoads:
    """Takes samples from heartbeat answers.

    Args:
      directory: who may say something of which partition.

    Attributes:
      history: of each partition.
    """

    def __init__(self, directory: Directory) -> None:
        self.history = LoadHistory()
        self._directory = directory

    def redirect(self, directory: Directory) -> None:
        """Another directory counts."""
        self._directory = directory

    def heard(self, node: NodeId, loads: Iterable[Load], now: int) -> list[tuple[PartitionId, LoadSample]]:
        """Takes the samples of a node.

        Args:
          now: monotonic microseconds.

        Returns:
          The samples that count: those of partitions that the node has a role for.
        """
        directory, counted = self._directory, []
        for load in loads:
            partition, sample = PartitionId(UnitId(load.unit), load.partition), LoadSample(*load[2:])
            if partition in directory.roles and node in directory.hosts(partition):
                self.history.sample(partition, sample, now)
                counted.append((partition, sample))
        return counted

    def status(self, now: int) -> list[PartitionLoad]:
        """The mean of each partition over the time that samples are kept."""
        found = []
        for partition in self._directory.roles:
            if (mean := self.history.mean(partition, now)) is not None:
                many = int((~np.isnan(self.history.series(partition, now))).sum())
                found.append(PartitionLoad(partition=str(partition), samples=many, mean=mean.status()))
        return found
