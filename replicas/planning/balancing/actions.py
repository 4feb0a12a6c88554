"""Settings and actions of a balancer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf

from replicas.planning.prediction import Speeds, StateSource
from replicas.planning.shares import Running
from spe.stream.ids import PartitionId
from spe.stream.names import NodeId
from spe.stream.times import SECOND


@dataclass(frozen=True, slots=True)
class NodeRoom:
    """Capacity of a node.

    Attributes:
      capacity: cores.
      memory: bytes.
      spare: it runs nothing until others are full.
    """

    capacity: float = 1.0
    memory: float = inf
    spare: bool = False


@dataclass(frozen=True, slots=True)
class BalanceSettings:
    """Conditions of a move.

    Attributes:
      period_us: between two evaluations of the loads, monotonic microseconds.
      cap: share of a node's capacity and memory that may be used.
      idle: share of the cluster's capacity below which the balancer tries to drain a node.
    """

    period_us: int = 30 * SECOND
    cap: float = 0.8
    idle: float = 0.3
    speeds: Speeds = field(default_factory=Speeds)


@dataclass(frozen=True, slots=True)
class MovePartition:
    """Action: ``target`` shall run a partition in the place of ``source``.

    Attributes:
      seconds: predicted, until the target has caught up.
      state: where its state comes from.
      reason: for people.
    """

    partition: PartitionId
    source: NodeId
    target: NodeId
    seconds: float
    state: StateSource
    reason: str


@dataclass(frozen=True, slots=True)
class JoinSpare:
    """Action: a spare becomes an ordinary node."""

    node: NodeId
    reason: str


@dataclass(frozen=True, slots=True)
class DrainNode:
    """Action: everything that a node runs moves off it, by the orders that follow; then it is a spare."""

    node: NodeId
    reason: str


@dataclass(frozen=True, slots=True)
class StillFull:
    """Action: report that a node cannot be brought within its caps, and why."""

    node: NodeId
    reason: str


Action = MovePartition | JoinSpare | DrainNode | StillFull
#: Returns why a node may not run a partition too, under a distribution of partitions; None: it may.
Refusal = Callable[[Running, PartitionId, NodeId], str | None]
