"""Which lost partitions come back first, and where, while nodes have too little room (rules O1-O6).  Pure.

As long as the first standby of each has room, or nothing is known of what a partition needs, all of them are restored
at once (H5) and nothing here has a say.  Else the plan has: each of them runs on the node that it names, when it is its
turn, or waits.  That may be any node which X, its capacity and its memory allow: it becomes a standby for the time.
To plan takes a while, so what is to be planned goes out, and the plan comes in.
:class:`replicas.placement.deciders.install.InstallDecider` gives the orders.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Set
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from types import MappingProxyType

import numpy as np

from replicas.placement.deciders.install import LostPartition
from replicas.placement.deciders.lending import Lending, Lent
from replicas.placement.deciders.move import IN_VAIN_US, RoleChange
from replicas.placement.view import ClusterView
from replicas.planning.cluster_topology import partitions_of, topology_of
from replicas.planning.recovery.choosing import LITTLE
from replicas.planning.recovery.cluster import UNKNOWN_WORK, partial_after
from replicas.planning.recovery.forecast import outlook
from replicas.planning.recovery.goals import RecoveryGoal, goal_named
from replicas.planning.recovery.placing import RecoveryPlan, RecoveryProblem, plan_recovery
from replicas.planning.recovery.schedule import MOVED, NOISE, RecoverySchedule
from replicas.planning.shares import SharesOfX
from replicas.planning.topology import Topology
from spe.plan.directory import ExpectedLoad
from spe.plan.plan import Plan
from spe.status import PlannedInstallStatus, RecoveryStatus, ValueStatus
from spe.stream.ids import PartitionId, ReplicaId
from spe.stream.names import NodeId, NodeState
from spe.stream.times import SECOND

#: By partition that must not simply run on its first standby: where it is to run; None: it waits.
Held = Mapping[PartitionId, NodeId | None]


@dataclass(frozen=True, slots=True)
class PlannedRecovery:
    """A plan, and what it is worth over time: (seconds, value from then on), if nothing comes or goes."""

    plan: RecoveryPlan
    values: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class PlanningTask:
    """What is to be planned; :meth:`run` may take a second or two, in a thread."""

    problem: RecoveryProblem
    under_way: Mapping[int, str]

    def run(self) -> PlannedRecovery:
        plan = plan_recovery(self.problem)
        return PlannedRecovery(plan, outlook(self.problem, plan, self.under_way))


class RecoveryOrder:
    """See the module.

    Args:
      known: what the coordinator before this one knew that partitions need, shares of a core.
      memory: the same of memory, bytes.

    Attributes:
      lending: which roles are lent now.
      without_role: what the last look began on nodes that must get a role first.
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
        self._shares = SharesOfX(plan, directory)
        #: May a node have a role for a partition, by its X?
        self._may_wait: dict[tuple[PartitionId, NodeId], bool] = {}
        #: Bytes that partitions were measured to need.
        self._memory: dict[PartitionId, float] = {id: size for id, size in memory.items() if id in directory.roles}
        self._kept_memory: Mapping[PartitionId, float] = dict(self._memory)
        self._expected = directory.expected_cores
        expected = {id: directory.recovery.loads.get(id.unit, ExpectedLoad()) for id in directory.roles}
        #: Shares of a core, of partitions of which that is known: what is expected, or measured if that is more.
        self._load = dict(self._expected)
        #: Seconds that an install takes.
        self._work = {
            id: one.install_us[id.partition % len(one.install_us)] / SECOND
            for id, one in expected.items()
            if one.install_us
        }
        #: What has been ordered, and its node does not tell of yet.
        self._pending: dict[PartitionId, NodeId] = {}
        #: Of replicas that restore something: how far they were at most, and since when they have got no further.
        self._restoring: dict[ReplicaId, tuple[int, int]] = {}
        self._reads = {id: _read_by(plan, id) for id in directory.roles}
        self._schedule: RecoverySchedule | None = None
        self._held: dict[PartitionId, NodeId | None] = {}
        #: Why some wait that no node has the memory for.
        self._no_memory: dict[PartitionId, str] = {}
        self._planned: PlannedRecovery | None = None
        self._planning: RecoverySchedule | None = None
        self._settled = True
        self._measured: dict[PartitionId, float] = {}
        #: Tuples per second of each source, as measured last, and as the goal has them.
        self._rates: dict[str, float] = {}
        self._weighed: dict[str, float] = {}
        self._sources = {id: _sources_of(plan, id) for id in directory.roles}
        #: What the sources of each partition gave together when its load was measured.
        self._fed: dict[PartitionId, float] = {}
        self._topology = self._weigh()
        self._kept: Mapping[PartitionId, float] = {id: load for id, load in known.items() if id in directory.roles}
        self.measured(self._kept)

    # --- news ---

    def redirect(self) -> None:
        """Another directory counts."""
        self._shares, self._may_wait = SharesOfX(self._plan, self._view.directory), {}

    def measured(self, loads: Mapping[PartitionId, float]) -> None:
        """What some partitions need, shares of a core; of the others the last ones stay.

        What the configuration expects is kept free for them, also if they need less now.
        """
        self._measured |= loads
        self._fed |= {id: fed for id in loads if (fed := self._input_of(id)) is not None}
        loads = {id: max(load, self._expected.get(id, 0.0)) for id, load in loads.items()}
        if loads.keys() - self._load.keys():
            self._schedule = None  # it counts what nothing was known of as if it ran
        self._load |= loads
        if self._schedule is not None:
            self._schedule.measured({self._task[id]: load for id, load in loads.items()})

    def measured_memory(self, memory: Mapping[PartitionId, float]) -> None:
        """The same of memory, bytes."""
        self._memory |= memory

    def fed(self, rates: Mapping[str, float]) -> None:
        """Tuples per second of sources; of the others the last ones stay.

        What is lost cannot be measured, and will need as much more as its sources give more than when it was.
        """
        self._rates |= rates
        loads = {}
        for id, fed in self._fed.items():
            if fed > 0 and (now := self._input_of(id)) is not None:
                times = now / fed if abs(now - fed) > MOVED * fed else 1.0
                loads[id] = max(self._measured[id] * times, self._expected.get(id, 0.0))
        self._load |= loads
        known = self._weighed
        moved = any(n not in known or abs(rate - known[n]) > MOVED * known[n] for n, rate in self._rates.items())
        if moved:
            self._weighed = dict(self._rates)
            self._topology = self._weigh()
        if self._schedule is not None:
            self._schedule.measured({self._task[id]: load for id, load in loads.items()})
            if moved:
                self._schedule.revalue(self._goal())

    def _input_of(self, id: PartitionId) -> float | None:
        """Tuples per second of all its sources; None: not all are known."""
        sources = self._sources[id]
        return sum(self._rates[s] for s in sources) if sources <= self._rates.keys() else None

    def to_keep(self) -> tuple[Mapping[PartitionId, float], Mapping[PartitionId, float]] | None:
        """Loads and memory that the next coordinator should know; None: little else than what was asked for last.

        It hears nothing of what is lost when it begins.
        """
        if not (_moved(self._measured, self._kept, NOISE) or _moved(self._memory, self._kept_memory, 0.0)):
            return None
        self._kept, self._kept_memory = dict(self._measured), dict(self._memory)
        return self._kept, self._kept_memory

    def ordered(self, replica: ReplicaId) -> None:
        """A node has been told to run a partition."""
        self._pending[replica.of] = replica.node

    def refused(self, replica: ReplicaId) -> None:
        """It does not."""
        if self._pending.get(replica.of) == replica.node:
            del self._pending[replica.of]

    # --- what follows from it ---

    def look(
        self,
        unserved: Mapping[PartitionId, LostPartition],
        now: int,
        soon_us: int,
    ) -> Held:
        """What of these partitions is to run where, and what waits; call it at every heartbeat.

        Args:
          unserved: partitions that nobody serves.
          soon_us: what is due within this time is waited for before a plan is made, for it failed together.
        """
        self._pending = {
            id: node
            for id, node in self._pending.items()
            if id in unserved and node in self._view.runs and id not in self._view.runs[node]
        }
        # Where a node runs it, and lacks a state, a standby has one and helps for a moment: else all begins anew (H8).
        known = {id: one for id, one in unserved.items() if id in self._load and not one.lacking}
        self._note_restoring(known, now)
        if self._schedule is not None:
            given_up = {id: self._given_up(id, one, now) for id, one in known.items()}
            known, unserved = given_up, {**unserved, **given_up}
        may = {id: self._may_run(id, one) for id, one in known.items()}
        near = {id: one for id, one in known.items() if (one.able or may[id]) and one.due_us <= now + soon_us}
        due = {id: one for id, one in near.items() if not one.recovering and one.due_us <= now}
        soon = any(not one.recovering and one.due_us > now for one in near.values())
        if self._schedule is None and not self._fits(near):
            self._schedule = self._begin()
        elif not any(one.recovering for one in known.values()) and not due and not soon:
            self._schedule, self._planned = None, None
        self._held = {}
        if self._schedule is None:
            return self._held
        self._settled = not soon
        self._no_memory = {id: self._memory_short(id, one.able) for id, one in due.items() if one.able and not may[id]}
        self._tell(self._schedule, unserved, {id: may[id] for id in due})
        self.without_role = []
        for install in self._schedule.dispatch() if self._settled else ():
            id = self._id(install.partition)
            self._pending[id] = NodeId(install.node)
            if install.node not in self._view.directory.hosts(id):
                self.without_role.append(ReplicaId(*id, NodeId(install.node)))
        for id, one in known.items():
            if one.recovering:
                self._held[id] = one.recovering[0]
            elif one.able or may[id]:
                self._held[id] = None
                if (where := self._schedule.ordered.get(self._task[id])) in self._view.directory.hosts(id):
                    replica = ReplicaId(*id, NodeId(where))
                    self._held[id] = (
                        None if replica in self.lending.lent and not self._view.know(id, replica.node) else replica.node
                    )
        return self._held

    def role_change(
        self, moving: Collection[PartitionId], spared: Callable[[ReplicaId], bool]
    ) -> Lent | RoleChange | None:
        """Which node is to have another role, so that it may restore something, or because it has done so."""
        return self.lending.step(self._pending, spared, moving)

    @property
    def in_force(self) -> bool:
        """Is there too little room for what is lost?"""
        return self._schedule is not None

    def task(self) -> PlanningTask | None:
        """What is to be planned; None: there is nothing, or it is not time."""
        if self._schedule is None or not self._schedule.stale or not self._settled:
            return None
        self._planning = self._schedule
        problem = self._schedule.problem()
        return PlanningTask(problem, dict(self._schedule.ordered))

    def adopt(self, planned: PlannedRecovery) -> None:
        """The plan for the last task."""
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

    def _fits(self, lost: Mapping[PartitionId, LostPartition]) -> bool:
        """Has the first standby of each room, with all that it runs and was told to run?

        Also the second one of what recovers somewhere: it would be told to help after a while (H5).
        """
        more: dict[NodeId, list[PartitionId]] = {}
        for id, one in lost.items():
            if not one.able:
                return False
            if id not in self._pending:
                more.setdefault(one.able[0], []).append(id)
        return all(self._has_room(node, ids) for node, ids in more.items())

    def _has_room(self, node: NodeId, more: Collection[PartitionId]) -> bool:
        """For these as well; what needs next to nothing always has room."""
        load = sum(self._load[id] for id in more)
        return self._has_memory(node, more) and (load <= LITTLE or load <= self._room(node) + LITTLE)

    def _room(self, node: NodeId) -> float:
        return self._capacity(node) * self._view.directory.coordinator.cap - sum(
            self._load.get(id, 0.0) for id in self._here(node)
        )

    def _here(self, node: NodeId) -> set[PartitionId]:
        """What a node runs and was told to run."""
        return {*self._view.runs.get(node, ()), *(id for id, where in self._pending.items() if where == node)}

    def _has_memory(self, node: NodeId, more: Collection[PartitionId]) -> bool:
        return self._memory_left(node, more) >= 0

    def _memory_left(self, node: NodeId, more: Collection[PartitionId] = ()) -> float:
        """Bytes, with these as well; infinite where nobody says what the node has."""
        if (memory := self._view.directory.nodes[node].memory) is None:
            return inf
        needed = sum(self._memory.get(id, 0.0) for id in {*self._here(node), *more})
        return memory * self._view.directory.coordinator.cap - needed

    def _memory_short(self, id: PartitionId, standbys: Collection[NodeId]) -> str:
        """Why none of these may run a partition, for people."""
        left, node = max((max(0.0, self._memory_left(n)), n) for n in standbys)
        needed = self._memory.get(id, 0.0)
        return f"needs {needed / 1e6:.0f} MB; of its standbys {node} has most memory left, {left / 1e6:.0f} MB"

    def _may_run(self, id: PartitionId, one: LostPartition) -> frozenset[NodeId]:
        """Nodes that answer and may restore a partition, standbys or not; whether they have the cores is not asked."""
        others = () if one.recovering else one.others
        nodes = [*one.able, *(n for n in others if n in self._view.runs and self._may_have(id, n))]
        return frozenset(n for n in nodes if self._has_memory(n, [id]))

    def _note_restoring(self, lost: Mapping[PartitionId, LostPartition], now: int) -> None:
        """Since when each node gets no further with what it restores.

        Time in which nobody serves what that reads, or a source of it does not answer, does not count.
        """
        before, served = self._restoring, self._served()
        self._restoring = {}
        for id, one in lost.items():
            waits = not self._reads[id] <= served or not all(map(self._view.answers, self._sources[id]))
            for replica in (ReplicaId(*id, node) for node in one.recovering):
                frontier = self._view.frontier(id, replica.node)
                furthest, since = before.get(replica, (frontier, now))
                since = now if waits or frontier > furthest else since
                self._restoring[replica] = max(frontier, furthest), since

    def _given_up(self, id: PartitionId, one: LostPartition, now: int) -> LostPartition:
        """Without the nodes that restore it in vain, if another one may: two at most, for each takes room (O6)."""
        patience_us = max(IN_VAIN_US, round(10 * SECOND * self._work.get(id, 0.0)))
        since = {node: self._restoring[ReplicaId(*id, node)][1] for node in one.recovering}
        left = replace(one, recovering=tuple(n for n in one.recovering if now - since[n] < patience_us))
        another = len(one.recovering) < 2 and self._may_run(id, left)
        return left if left.recovering or another else one

    def _served(self) -> Set[PartitionId]:
        runs = self._view.runs.values()
        return {id for run in runs for id, output in run.items() if output.state is not NodeState.RECOVERING}

    def _may_have(self, id: PartitionId, node: NodeId) -> bool:
        """Would its X be enough with a role for this partition as well, and is known what it needs for what it runs?"""
        if any(other not in self._load for other in self._here(node)):
            return False
        if (id, node) not in self._may_wait:
            self._may_wait[id, node] = self._shares.refused(self._view.directory.placement, id, node) is None
        return self._may_wait[id, node]

    def _capacity(self, node: NodeId) -> float:
        return self._view.directory.nodes[node].capacity

    def _begin(self) -> RecoverySchedule:
        loads = np.zeros(self._topology.tasks)
        for id, load in self._load.items():
            loads[self._task[id]] = load
        # What nothing is known of comes back by itself: it counts as if it ran.
        always = [task for task, id in enumerate(self._ids) if id is None or id not in self._load]
        work = [UNKNOWN_WORK if id is None else self._work.get(id, UNKNOWN_WORK) for id in self._ids]
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
        """Gives the schedule the news: who came and went, what is back, and what may run where."""
        for node in set(schedule.nodes).difference(self._view.runs):
            schedule.went(node)
        served = self._served()
        #: Of what nobody serves, the one node that counts as restoring it.
        restores = {id: node for node, runs in self._view.runs.items() for id in runs if id not in unserved}
        restores |= self._pending
        restores |= {id: one.recovering[0] for id, one in unserved.items() if one.recovering}
        for node, runs in self._view.runs.items():
            here = {*runs, *(id for id, where in self._pending.items() if where == node)}
            comes = {id for id in here - served if restores.get(id) == node}
            self._come(schedule, node, runs.keys() & served, comes, here - served - comes)
        missing = [id for id in self._task if id not in served and id in self._load]
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
        """What a node runs that somebody serves, what it restores, and what it runs in vain, as a schedule has it."""
        runs, ordered, shadows = ({self._task[id] for id in ids} for ids in (serves, comes, others))
        before, ordered_before = schedule.runs_on(node), {p for p, where in schedule.ordered.items() if where == node}
        if before is not None and before[1] == shadows and ordered_before >= ordered:
            back = ordered_before - ordered
            if before[0] | back == runs:
                for partition in sorted(back):
                    schedule.back(partition, node)
                return
        schedule.came(node, self._capacity(node), runs, shadows, ordered)

    def _id(self, task: int) -> PartitionId:
        id = self._ids[task]
        assert id is not None, "a source is never lost"
        return id

    # --- for people ---

    def summary(self) -> dict[str, str]:
        """The plan in words without spaces."""
        if self._schedule is None:
            return {}
        name = self._topology.name_of
        return {
            "installs": ",".join(f"{name(i.partition)}@{i.node}" for i in self._schedule.planned),
            "waits": ",".join(name(task) for task in self._schedule.waits),
        }

    def status(self) -> RecoveryStatus | None:
        """None: there is room for all."""
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


def _moved(after: Mapping[PartitionId, float], before: Mapping[PartitionId, float], noise: float) -> bool:
    """Is one of them much else than before?"""
    return any(abs(now - before.get(id, 0.0)) > MOVED * max(before.get(id, 0.0), noise) for id, now in after.items())


def _read_by(plan: Plan, id: PartitionId) -> frozenset[PartitionId]:
    """The partitions that one reads."""
    channels = plan.unit[id.unit].channels_in(id.partition)
    return frozenset(plan.maker_of(c) for c in channels if c.stream not in plan.sources)


def _sources_of(plan: Plan, id: PartitionId) -> frozenset[str]:
    """Names of the sources that a partition reads, directly or through others."""
    found: set[str] = set()
    waiting, seen = [id], {id}
    while waiting:
        of = waiting.pop()
        for channel in plan.unit[of.unit].channels_in(of.partition):
            if channel.stream in plan.sources:
                found.add(str(channel.stream))
            elif (maker := plan.maker_of(channel)) not in seen:
                seen.add(maker)
                waiting.append(maker)
    return frozenset(found)
