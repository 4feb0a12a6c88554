"""Checkpoints to be placed, nodes where they may lie, and the cost of each there (rule L2).

A partition that gets more load is moved off a full node.  A node that holds its checkpoint takes it soonest; so a
checkpoint belongs where load falls while its partition's rises.  The *cost* of a checkpoint on a node is the mean load
of its partition times the correlation of that load with the node's; the sum over all checkpoints should be small
(Madsen and Zhou, CIKM 2015).  A standby is a holder of checkpoints of a partition on a node.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np

from replicas.planning.layout import LEVELS, Place
from replicas.planning.load import LoadHistory, correlations
from replicas.planning.shares import Running, SharesOfX
from replicas.planning.topology import Bools, Floats, Ints
from spe.stream.ids import PartitionId
from spe.stream.names import NodeId

#: In the place of a node: the checkpoint has none.
NO_NODE: Final = -1


@dataclass(frozen=True)
class CheckpointProblem:
    """The checkpoints to be placed, and the allowed nodes.

    Attributes:
      cost: of each checkpoint on each node, [checkpoints, nodes].
      allowed: where each may be, [checkpoints, nodes].
      load: mean load of each checkpoint's partition, [checkpoints].
      partition: partition of each, [checkpoints].
      apart: pairs not allowed on one node, [checkpoints, checkpoints], symmetric: those of one partition, and more.
      delta: allowed difference of the load of a node's checkpoints from the mean over nodes.
    """

    cost: Floats
    allowed: Bools
    load: Floats
    partition: Ints
    apart: Bools
    delta: float = np.inf

    @property
    def most(self) -> float:
        """Maximum load of a node's checkpoints."""
        return float(self.load.sum() / self.cost.shape[1] + self.delta)

    @cached_property
    def neighbours(self) -> Sequence[Ints]:
        """Per checkpoint, those not allowed on its node."""
        return [np.flatnonzero(row) for row in self.apart]

    def score(self, places: Ints) -> float:
        """Returns the sum of costs; the lower the better."""
        placed = np.flatnonzero(places != NO_NODE)
        return float(self.cost[placed, places[placed]].sum())

    def bounded(self, spread: float) -> CheckpointProblem:
        """Returns the same with a ``delta`` of ``spread`` times the mean load per node; infinite: no bound."""
        return replace(
            self, delta=spread * float(self.load.sum()) / self.cost.shape[1] if np.isfinite(spread) else np.inf
        )

    def loads(self, places: Ints) -> Floats:
        """Returns the load of the checkpoints of each node."""
        placed = places != NO_NODE
        return np.bincount(places[placed], self.load[placed], self.cost.shape[1]).astype(np.float64)

    def holds(self, places: Ints) -> bool:
        """Is every checkpoint where it may be?  Ignores ``delta``."""
        placed = np.flatnonzero(places != NO_NODE)
        same = places[:, None] == places[None, :]
        met = (self.apart & same)[np.ix_(placed, placed)].any()
        return bool(self.allowed[placed, places[placed]].all() and not met)


def checkpoint_problem(
    history: LoadHistory,
    now: int,
    checkpoints: Sequence[PartitionId],
    running: Mapping[PartitionId, Collection[NodeId]],
    nodes: Mapping[NodeId, Place],
    *,
    delta: float = np.inf,
    shares: SharesOfX | None = None,
) -> CheckpointProblem:
    """Returns the problem under the measured loads.

    Args:
      now: monotonic microseconds.
      checkpoints: the partition of each; one that occurs twice gets two, on two nodes.
      running: nodes that run each partition; they may not hold its checkpoints.
      nodes: all nodes, and the domains that fail together; a checkpoint shares as few as possible with the nodes that
        run its partition, the widest first.
      shares: of X.  No checkpoint, and no two, may be where they would make a share too short (M5).
    """
    names = list(nodes)
    on = {n: [p for p, hosts in running.items() if n in hosts] for n in names}
    partitions = list(dict.fromkeys(checkpoints))
    means = {p: history.mean(p, now) for p in partitions}
    load = np.array([0.0 if (mean := means[p]) is None else mean.cpu for p in checkpoints])
    own = np.array([history.series(p, now) for p in checkpoints])
    of_nodes = np.array([history.together(on[n], now) for n in names])
    hosts = {p: tuple(n) for p, n in running.items()}
    may = {p: _may(p, hosts, nodes, shares) for p in partitions}
    apart = {p: {p} if shares is None else {p, *_divide(p, partitions, hosts, names, shares)} for p in partitions}
    not_together = np.array([[q in apart[p] for q in checkpoints] for p in checkpoints])
    return CheckpointProblem(
        cost=load[:, None] * correlations(own, of_nodes),
        allowed=np.array([may[p] for p in checkpoints]),
        load=load,
        partition=np.array([partitions.index(p) for p in checkpoints]),
        apart=(not_together | not_together.T) & ~np.eye(len(checkpoints), dtype=np.bool_),
        delta=delta,
    )


def _may(
    partition: PartitionId, running: Running, nodes: Mapping[NodeId, Place], shares: SharesOfX | None
) -> list[bool]:
    """Returns, per node, whether a checkpoint may lie there."""
    hosts = running.get(partition, ())
    able = [n for n in nodes if n not in hosts]
    if shares is not None:
        able = [n for n in able if shares.refused(running, partition, n) is None]
    shared = {n: _shared(n, hosts, nodes) for n in able}
    least = min(shared.values(), default=())
    return [shared.get(n) == least for n in nodes]


def _divide(
    partition: PartitionId, others: Sequence[PartitionId], running: Running, nodes: Sequence[NodeId], shares: SharesOfX
) -> list[PartitionId]:
    """Returns partitions that make a share of X too short on some node only together with this one."""
    conflicting = []
    for other in shares.neighbours(partition) & set(others):
        for node in nodes:
            extended = {**running, other: (*running.get(other, ()), node)}
            if not shares.refused(running, partition, node) and shares.refused(extended, partition, node):
                conflicting.append(other)
                break
    return conflicting


def _shared(node: NodeId, hosts: Collection[NodeId], nodes: Mapping[NodeId, Place]) -> tuple[int, ...]:
    """Returns how many hosts are in a node's domain, the widest domain first."""

    def domain(host: NodeId, level: str) -> str:
        return nodes[host].domains.get(level, host) if host in nodes else host

    return tuple(sum(domain(node, level) == domain(h, level) for h in hosts) for level in reversed(LEVELS))
