"""Figures of the coordinator."""

from __future__ import annotations

from collections import Counter
from typing import Final

from spe.figures.figure import Figure
from spe.status import CoordinatorStatus, PartitionStatus


def _open_moves(coordinator: CoordinatorStatus) -> dict[str, float]:
    return dict(sorted(Counter(move.phase for move in coordinator.moves if not move.is_over).items()))


#: Figures of a partition with standbys.
PARTITION: Final[tuple[Figure[PartitionStatus], ...]] = (
    Figure("spe_partition_served", lambda p: p.served,
           "1 when a node runs the partition, answers, and is not recovering."),
    Figure("spe_partition_replicas_running", lambda p: len(p.running), "Nodes that run the partition, and answer."),
)  # fmt: skip

#: Figures of the coordinator.
COORDINATOR: Final[tuple[Figure[CoordinatorStatus], ...]] = (
    Figure("spe_standbys_budget", lambda c: c.activation.budget, "Partitions that may have a standby run by plan."),
    Figure("spe_standbys_active", lambda c: len(c.activation.active), "Partitions that have."),
    Figure("spe_moves_open", _open_moves, "Moves of partitions that are under way, by phase.", labels=("phase",)),
    Figure("spe_recovery_value_ratio", lambda c: 1.0 if c.recovery is None else c.recovery.value,
           "What the results are worth while lost partitions come back, 1 is everything."),
    Figure("spe_recovery_waiting_partitions", lambda c: 0 if c.recovery is None else len(c.recovery.waits),
           "Lost partitions that no node has room for."),
    Figure("spe_nodes_joined", lambda c: len(c.joined), "Nodes that no configuration names."),
)  # fmt: skip
