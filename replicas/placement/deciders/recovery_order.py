"""Orders the recovery of lost partitions while nodes have too little room (rules O1-O6).  Pure.

While the first standby of each has room, or the needs of a partition are unknown, all are restored at once (H5) and
this module does nothing.  Otherwise a plan decides: each partition runs on the node that the plan names, in its turn,
or waits.  That may be any node which X, its capacity and its memory allow: it becomes a standby for the time.  Planning
takes a while, so the planning task goes out and the plan comes in.
:class:`replicas.placement.deciders.install.InstallDecider` gives the orders.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Set
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType

import numpy as np

from replicas.placement.deciders.install import LostPartition
from replicas.placement.deciders.lending import Lending, Lent
from replicas.placement.deciders.move import IN_VAIN_US, RoleChange
from replicas.placement.deciders.needs import PartitionNeeds
from replicas.placement.deciders.room import RestoringRoom
from replicas.placement.view import ClusterView
from replicas.planning.cluster_topology import partitions_of, topology_of
from replicas.planning.recovery.cluster import UNKNOWN_WORK, partial_after
from replicas.planning.recovery.forecast import outlook
from replicas.planning.recovery.goals import RecoveryGoal, goal_named
from replicas.planning.recovery.placing import RecoveryPlan, RecoveryProblem, plan_recovery
from replicas.planning.recovery.schedule import MOVED, RecoverySchedule
from replicas.planning.topology import Topology
from spe.plan.plan import Plan
from spe.status import PlannedInstallStatus, RecoveryStatus, ValueStatus
from spe.stream.ids import PartitionId, ReplicaId
from spe.stream.names import NodeId, NodeState
from spe.stream.times import SECOND

#: Node that each held partition is to run on; None: it waits.
Held = Mapping[PartitionId, NodeId | None]


@dataclass(frozen=True, slots=True)
class PlannedRecovery:
    """A plan with its value over time, (seconds, value from then on), if nothing changes."""

    plan: RecoveryPlan
    values: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class PlanningTask:
    """A planning problem; :meth:`run` may take a second or two, in a thread."""

    problem: RecoveryProblem
    under_way: Mapping[int, str]

    def run(self) -> PlannedRecovery:
        plan = plan_recovery(self.problem)
        return PlannedRecovery(plan, outlook(self.problem, plan, self.under_way))


class RecoveryOrder:
    """Decides which lost partitions are restored where and when.

    Args:
      known: needs stored by the previous coordinator, shares of a core.
      memory: memory stored by the previous coordinator, bytes.

    Attributes:
      lending: the roles that are lent now.
      without_role: partitions that the last look started on nodes that must get a role first.
    """

    def __init__(
        self,
        view: ClusterView,
        known: Mapping[PartitionId, float] = MappingProxyType({}),
        memory: Mapping[PartitionId, float] = MappingProxyType({}),
    ) -> None:
        self._view = view
        plan, directory = view.plan, view.directory
        self._plan = plan
        self.lending = Lending(view)
        self.without_role: list[ReplicaId] = []
        self._needs = PartitionNeeds(plan, directory, known, memory)
        self._room = RestoringRoom(view, self._needs)
        #: Largest progress of each restoring replica, and since when it has made none.
        self._restoring: dict[ReplicaId, tuple[int, int]] = {}
        self._reads = {id: _read_by(plan, id) for id in directory.roles}
        self._schedule: RecoverySchedule | None = None
        self._held: dict[PartitionId, NodeId | None] = {}
        #: Reasons of partitions that wait because no node has enough memory.
        self._no_memory: dict[PartitionId, str] = {}
        self._planned: PlannedRecovery | None = None
        self._planning: RecoverySchedule | None = None
        self._settled = True
        #: Tuples per second of each source that the goal was made with.
        self._weighed: dict[str, float] = {}
        self._topology = self._weigh()

    # --- news ---

    def redirect(self) -> None:
        """Follows a changed directory."""
        self._room.redirect()

    def measured(self, loads: Mapping[PartitionId, float]) -> None:
        """Takes measured loads of some partitions, shares of a core; those of others stay."""
        if loads.keys() - self._needs.load.keys():
            self._schedule = None  # it assumes that unknown partitions run
        self._reschedule(self._needs.measured(loads))

    def measured_memory(self, memory: Mapping[PartitionId, float]) -> None:
        """Takes measured memory of some partitions, bytes."""
        self._needs.memory |= memory

    def fed(self, rates: Mapping[str, float]) -> None:
        """Takes tuples per second of sources; rates of others stay."""
        loads, known = self._needs.fed(rates), self._weighed
        rates = self._needs.rates
        moved = any(n not in known or abs(rate - known[n]) > MOVED * known[n] for n, rate in rates.items())
        if moved:
            self._weighed = dict(rates)
            self._topology = self._weigh()
        self._reschedule(loads)
        if moved and self._schedule is not None:
            self._schedule.revalue(self._goal())

    def _reschedule(self, loads: Mapping[PartitionId, float]) -> None:
        if self._schedule is not None:
            self._schedule.measured({self._task[id]: load for id, load in loads.items()})

    def to_keep(self) -> tuple[Mapping[PartitionId, float], Mapping[PartitionId, float]] | None:
        """Returns loads and memory for the next coordinator; None: little has changed since the last call."""
        return self._needs.to_keep()

    def ordered(self, replica: ReplicaId) -> None:
        """Notes an order to run a partition."""
        assert replica.node in self._view.directory.hosts(replica.of), "O5: a node gets a role before it restores"
        self._room.pending[replica.of] = replica.node

    def refused(self, replica: ReplicaId) -> None:
        """Notes that a node refused the order."""
        if self._room.pending.get(replica.of) == replica.node:
            del self._room.pending[replica.of]

    # --- decisions ---

    def look(self, unserved: Mapping[PartitionId, LostPartition], now: int, soon_us: int) -> Held:
        """Returns where these partitions are to run, or that they wait; call it at every heartbeat.

        Args:
          unserved: partitions that no node serves.
          soon_us: a plan waits for partitions that are due within this time, for they failed together.
        """
        self._room.pending = {
            id: node
            for id, node in self._room.pending.items()
            if id in unserved and node in self._view.runs and id not in self._view.runs[node]
        }
        # Where a node runs a partition and lacks a state, a standby with one helps at once: else all would replay (H8).
        known = {
            id: partition for id, partition in unserved.items() if id in self._needs.load and not partition.lacking
        }
        self._note_restoring(known, now)
        if self._schedule is not None:
            given_up = {id: self._given_up(id, partition, now) for id, partition in known.items()}
            known, unserved = given_up, {**unserved, **given_up}
        may = {id: self._room.may_run(id, partition) for id, partition in known.items()}
        near = {
            id: partition
            for id, partition in known.items()
            if (partition.able or may[id]) and partition.due_us <= now + soon_us
        }
        due = {id: partition for id, partition in near.items() if not partition.recovering and partition.due_us <= now}
        soon = any(not partition.recovering and partition.due_us > now for partition in near.values())
        if self._schedule is None and not self._room.fits(near):
            self._schedule = self._begin()
        elif not any(partition.recovering for partition in known.values()) and not due and not soon:
            self._schedule, self._planned = None, None
        self._held = {}
        if self._schedule is None:
            return self._held
        self._settled = not soon
        self._no_memory = {
            id: self._room.memory_short(id, partition.able)
            for id, partition in due.items()
            if partition.able and not may[id]
        }
        self._tell(self._schedule, unserved, {id: may[id] for id in due})
        self._dispatch(self._schedule)
        self._hold(self._schedule, known, may)
        return self._held

    def _dispatch(self, schedule: RecoverySchedule) -> None:
        """Starts the partitions that the schedule has room for."""
        self.without_role = []
        for install in schedule.dispatch() if self._settled else ():
            id = self._id(install.partition)
            self._room.pending[id] = NodeId(install.node)
            if install.node not in self._view.directory.hosts(id):
                self.without_role.append(ReplicaId(*id, NodeId(install.node)))

    def _hold(
        self,
        schedule: RecoverySchedule,
        lost: Mapping[PartitionId, LostPartition],
        may: Mapping[PartitionId, Collection[NodeId]],
    ) -> None:
        """Sets where each lost partition runs, or that it waits."""
        for id, partition in lost.items():
            if partition.recovering:
                self._held[id] = partition.recovering[0]
            elif partition.able or may[id]:
                self._held[id] = None
                if (where := schedule.ordered.get(self._task[id])) in self._view.directory.hosts(id):
                    replica = ReplicaId(*id, NodeId(where))
                    self._held[id] = (
                        None if replica in self.lending.lent and not self._view.know(id, replica.node) else replica.node
                    )

    def role_change(
        self, moving: Collection[PartitionId], spared: Callable[[ReplicaId], bool]
    ) -> Lent | RoleChange | None:
        """Returns a role to lend for a restore, or to take back after one; None: there is none."""
        return self.lending.step(self._room.pending, spared, moving)

    @property
    def in_force(self) -> bool:
        """Is there too little room for the lost partitions?"""
        return self._schedule is not None

    def task(self) -> PlanningTask | None:
        """Returns the next planning task; None: there is none, or it is not time."""
        if self._schedule is None or not self._schedule.stale or not self._settled:
            return None
        self._planning = self._schedule
        problem = self._schedule.problem()
        return PlanningTask(problem, dict(self._schedule.ordered))

    def adopt(self, planned: PlannedRecovery) -> None:
        """Takes the plan for the last task."""
        if self._schedule is not None and self._schedule is self._planning:
            self._planned = planned
            self._schedule.adopt(planned.plan)

    # --- how ---

    def _weigh(self) -> Topology:
        rates = {name: [rate] for name, rate in self._weighed.items()}
        return topology_of(self._plan, self._view.directory, rates, self._view.directory.recovery.priorities)

    @cached_property
    def _ids(self) -> list[PartitionId | None]:
        return partitions_of(self._plan, self._topology)

    @cached_property
    def _task(self) -> dict[PartitionId, int]:
        return {id: task for task, id in enumerate(self._ids) if id is not None}

    def _note_restoring(self, lost: Mapping[PartitionId, LostPartition], now: int) -> None:
        """Notes since when each restoring replica makes no progress.

        Time does not count while an input of the partition is unserved, or one of its sources does not answer.
        """
        before, served = self._restoring, self._served()
        self._restoring = {}
        for id, partition in lost.items():
            waits = not self._reads[id] <= served or not all(map(self._view.answers, self._needs.sources[id]))
            for replica in (ReplicaId(*id, node) for node in partition.recovering):
                frontier = self._view.frontier(id, replica.node)
                furthest, since = before.get(replica, (frontier, now))
                since = now if waits or frontier > furthest else since
                self._restoring[replica] = max(frontier, furthest), since

    def _given_up(self, id: PartitionId, partition: LostPartition, now: int) -> LostPartition:
        """Removes nodes that restore it without progress, if another may: two at most, for each takes room (O6)."""
        patience_us = max(IN_VAIN_US, round(10 * SECOND * self._needs.work.get(id, 0.0)))
        since = {node: self._restoring[ReplicaId(*id, node)][1] for node in partition.recovering}
        left = replace(partition, recovering=tuple(n for n in partition.recovering if now - since[n] < patience_us))
        another = len(partition.recovering) < 2 and self._room.may_run(id, left)
        return left if left.recovering or another else partition

    def _served(self) -> Set[PartitionId]:
        runs = self._view.runs.values()
        return {id for run in runs for id, output in run.items() if output.state is not NodeState.RECOVERING}

    def _begin(self) -> RecoverySchedule:
        loads = np.zeros(self._topology.tasks)
        for id, load in self._needs.load.items():
            loads[self._task[id]] = load
        # Partitions with unknown needs are restored without a plan: they count as running.
        always = [task for task, id in enumerate(self._ids) if id is None or id not in self._needs.load]
        work = [UNKNOWN_WORK if id is None else self._needs.work.get(id, UNKNOWN_WORK) for id in self._ids]
        schedule = RecoverySchedule(
            self._goal(),
            loads,
            work,
            cap=self._view.directory.coordinator.cap,
            always=always,
            reads=self._topology.reads,
            partial_after=partial_after(self._plan, self._view.directory),
        )
        for id, task in self._task.items():
            for node in self._view.directory.hosts(id):
                if self._view.directory.disk_us(ReplicaId(*id, node)) is not None:
                    schedule.holds(task, node, 0)
        return schedule

    def _goal(self) -> RecoveryGoal:
        return goal_named(self._view.directory.recovery.value, self._topology)

    def _tell(
        self,
        schedule: RecoverySchedule,
        unserved: Mapping[PartitionId, LostPartition],
        due: Mapping[PartitionId, frozenset[NodeId]],
    ) -> None:
        """Updates the schedule: nodes that came or went, restored partitions, and where others may run."""
        for node in set(schedule.nodes).difference(self._view.runs):
            schedule.went(node)
        served = self._served()
        #: The node that counts as running or restoring each partition.
        restores = {id: node for node, runs in self._view.runs.items() for id in runs if id not in unserved}
        restores |= self._room.pending
        restores |= {id: partition.recovering[0] for id, partition in unserved.items() if partition.recovering}
        for node, runs in self._view.runs.items():
            here = {*runs, *(id for id, where in self._room.pending.items() if where == node)}
            comes = {id for id in here - served if restores.get(id) == node}
            self._come(schedule, node, runs.keys() & served, comes, here - served - comes)
        missing = [id for id in self._task if id not in served and id in self._needs.load]
        schedule.may_run(
            {self._task[id]: due.get(id, frozenset()) for id in missing if self._task[id] not in schedule.ordered}
        )

    def _come(
        self,
        schedule: RecoverySchedule,
        node: NodeId,
        serves: Set[PartitionId],
        comes: Set[PartitionId],
        others: Set[PartitionId],
    ) -> None:
        """Adds a node to the schedule, with the partitions that it serves, restores, and runs in vain."""
        runs, ordered, shadows = ({self._task[id] for id in ids} for ids in (serves, comes, others))
        before, ordered_before = schedule.runs_on(node), {p for p, where in schedule.ordered.items() if where == node}
        if before is not None and before[1] == shadows and ordered_before >= ordered:
            back = ordered_before - ordered
            if before[0] | back == runs:
                for partition in sorted(back):
                    schedule.back(partition, node)
                return
        schedule.came(node, self._room.capacity(node), runs, shadows, ordered)

    def _id(self, task: int) -> PartitionId:
        id = self._ids[task]
        assert id is not None, "a source is never lost"
        return id

    # --- for people ---

    def summary(self) -> dict[str, str]:
        """Summarises the plan in words without spaces."""
        if self._schedule is None:
            return {}
        name = self._topology.name_of
        return {
            "installs": ",".join(f"{name(i.partition)}@{i.node}" for i in self._schedule.planned),
            "waits": ",".join(name(task) for task in self._schedule.waits),
        }

    def status(self) -> RecoveryStatus | None:
        """Returns the status of the recovery; None: there is room for all."""
        schedule, planned = self._schedule, self._planned
        if schedule is None:
            return None
        name = self._topology.name_of
        return RecoveryStatus(
            goal=self._view.directory.recovery.value,
            value=schedule.value,
            under_way={name(task): node for task, node in schedule.ordered.items()},
            planned=tuple(PlannedInstallStatus(partition=name(i.partition), node=i.node) for i in schedule.planned),
            waits={name(task): self._no_memory.get(self._id(task), why) for task, why in schedule.waits.items()},
            values=tuple(ValueStatus(after_s=s, value=v) for s, v in (planned.values if planned is not None else ())),
            room=dict(schedule.room()),
        )


def _read_by(plan: Plan, id: PartitionId) -> frozenset[PartitionId]:
    """Returns the partitions that a partition reads."""
    channels = plan.unit[id.unit].channels_in(id.partition)
    return frozenset(plan.maker_of(c) for c in channels if c.stream not in plan.sources)
