"""A view of a cluster made by hand, for the deciders of a coordinator."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace

from replicas.placement.deciders.install import Goals, InstallDecider, LostPartition
from replicas.placement.deciders.replay import Decision
from replicas.placement.view import ClusterView
from spe.plan.directory import Directory
from spe.plan.plan import Plan
from spe.status import PartitionStatus
from spe.stream.ids import PartitionId, ReplicaId
from spe.stream.names import NodeId, NodeState
from spe.wire.messages.feeds import HeartbeatAnswer, Held, OutputStatus


def answer(outputs: Iterable[OutputStatus], held: Mapping[PartitionId, int] | None = None) -> HeartbeatAnswer:
    """A heartbeat answer with these outputs and checkpoints."""
    return HeartbeatAnswer(1, 1, list(outputs), [Held(*id, many) for id, many in (held or {}).items()])


class Installing:
    """A view, and the decider that orders standbys to run, with the goals that others set."""

    def __init__(self, plan: Plan, directory: Directory, now: int, *, patience_us: int, recovery_us: int) -> None:
        self.view = ClusterView(plan, directory, now, recovery_us=recovery_us)
        self.install = InstallDecider(self.view, patience_us=patience_us)
        self.goals = Goals()

    # --- news ---

    def heard(self, node: NodeId, outputs: Iterable[OutputStatus], now: int) -> None:
        self.view.heard(node, answer(outputs), now)

    def heard_source(self, output: OutputStatus) -> None:
        self.view.heard(f"source:{output.stream}", answer([output]), 0)

    def lost(self, node: NodeId, now: int) -> None:
        self.view.lost(node, now)

    def lost_source(self, source: str) -> None:
        self.view.lost(f"source:{source}", 0)

    def redirect(self, directory: Directory, now: int) -> None:
        """Another directory counts; what it has no role for is no goal."""
        self.view.redirect(directory, now)
        chosen = {
            id: {*n} & {*directory.standbys[id].nodes}
            for id, n in self.goals.chosen.items()
            if id in directory.standbys
        }
        self._aim(replace(self.goals, chosen=chosen), now)

    # --- goals ---

    def want(self, partition: PartitionId, standbys: Iterable[NodeId], now: int) -> None:
        self._aim(replace(self.goals, chosen={**self.goals.chosen, partition: list(standbys)}), now)

    def bring(
        self,
        coming: Mapping[PartitionId, Collection[NodeId]],
        restoring: Collection[PartitionId] = (),
        leaving: Mapping[PartitionId, tuple[NodeId, NodeId]] | None = None,
    ) -> None:
        self.goals = replace(self.goals, coming=coming, restoring=restoring, leaving=leaving or {})

    def hold(self, held: Mapping[PartitionId, NodeId | None]) -> None:
        self.goals = replace(self.goals, held=held)

    def _aim(self, goals: Goals, now: int) -> None:
        self.goals = goals
        self.install.aim(goals, now)

    # --- decisions ---

    def decide(self, now: int) -> list[Decision]:
        self.install.aim(self.goals, now)
        return self.install.decide(now)

    def refused(self, replica: ReplicaId, now: int) -> None:
        self.install.refused(replica, now)

    def helper(self, standby: ReplicaId, now: int) -> NodeState | None:
        return self.install.helper(standby, now)

    @property
    def spared(self) -> Callable[..., bool]:
        return self.install.spared

    @property
    def unable(self) -> Callable[..., frozenset[PartitionId]]:
        return self.install.unable

    @property
    def unserved(self) -> Callable[..., dict[PartitionId, LostPartition]]:
        return self.install.unserved

    @property
    def status(self) -> Callable[..., list[PartitionStatus]]:
        return self.install.status
