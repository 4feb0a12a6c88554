"""Settings of a node: X, policies, reconciliation, checkpoints."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

from spe.stream.names import NodeId

#: Default number of cores of a node: a Python process keeps one busy.
CAPACITY: Final = 1.0


class Policy(enum.StrEnum):
    """How new tuples are treated while inputs are not stable (rules T3, R5)."""

    SUSPEND = "suspend"
    DELAY = "delay"
    PROCESS = "process"


class Reconcile(enum.StrEnum):
    """How a replica rolls back tentative state (rule R9)."""

    CHECKPOINT = "checkpoint"
    UNDO = "undo"


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """When a node's replicas take checkpoints (rule C1).

    Attributes:
      every_us: microseconds of wall time between checkpoints; None: on entering UP_FAILURE, in memory only.
      disk: checkpoints go to disk, for restarts; the one in memory is then taken on entering UP_FAILURE.
    """

    every_us: int | None = None
    disk: bool = False

    @property
    def memory_us(self) -> int | None:
        """Interval of checkpoints in memory; None: on entering UP_FAILURE."""
        return None if self.disk else self.every_us

    @property
    def disk_us(self) -> int | None:
        """Interval of checkpoints on disk; None: there are none."""
        return self.every_us if self.disk else None


@dataclass(frozen=True, slots=True)
class Node:
    """A process that hosts replicas.

    Attributes:
      address: ``host:port``.
      x_us: availability threshold X, microseconds of wall time; units in sequence share it (Directory.share).
      alpha: the share of X that an SUnion may spend waiting.
      during_failure, during_stabilization: policies for new tuples.
      reconcile: how to roll back tentative state.
      checkpoints: when to take checkpoints.
      spare: no partition is placed on it; partitions may move there.
      capacity: cores that partitions may use; the coordinator fills a share of it (``cap``).
      memory: bytes that partitions may use, in the same way; None: unlimited.
    """

    id: NodeId
    address: str
    x_us: int
    alpha: float
    during_failure: Policy
    during_stabilization: Policy
    reconcile: Reconcile = Reconcile.CHECKPOINT
    checkpoints: Checkpoints = Checkpoints()
    spare: bool = False
    capacity: float = CAPACITY
    memory: int | None = None

    @property
    def alpha_x_us(self) -> int:
        return round(self.alpha * self.x_us)

    @property
    def hard_us(self) -> int:
        """(1 + α)/2·X: past this age a bucket is released whatever its inputs say (rule T3)."""
        return round((1 + self.alpha) / 2 * self.x_us)
