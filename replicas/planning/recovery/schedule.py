"""Recovery while things change (rule O6): news comes in, orders to install come out."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

import numpy as np

from replicas.planning.recovery.goals import RecoveryGoal
from replicas.planning.recovery.placing import PlannedInstall, RecoveryPlan, RecoveryProblem, plan_recovery
from replicas.planning.topology import Bools, Floats

#: Relative change of a load that leads to a new plan.
MOVED: Final = 0.2
#: Loads below are noise, shares of a core.
NOISE: Final = 0.01


class RecoverySchedule:
    """Decides what to install next, where, and in which order.

    A plan is made again whenever its input has changed.  Running partitions and installs are never revoked, nor ordered
    again while their node is there; partitions not ordered yet follow the newest plan.  A partition that comes back as
    ordered changes nothing: the plan counted on it.

    Partitions are numbers, as in the goal.

    Args:
      loads: of each partition, shares of a core, as last measured.
      work: of each, seconds that it takes to load its checkpoint and to catch up.
      cap: the share of a node's capacity that may be filled.
      always: partitions that run on none of the nodes and cannot be lost.
      reads: [partition, partition]; the inputs of each; None: they do not matter.
      partial_after: seconds after which a partition gives results although not all of its inputs run (αX).
    """

    def __init__(
        self,
        goal: RecoveryGoal,
        loads: Iterable[float],
        work: Iterable[float],
        *,
        cap: float,
        always: Iterable[int] = (),
        reads: Bools | None = None,
        partial_after: float = 0.0,
    ) -> None:
        self.goal = goal
        self._load: Floats = np.array(list(loads), np.float64)
        self._work: Floats = np.array(list(work), np.float64)
        self._cap = cap
        self._always = frozenset(always)
        self._reads = np.zeros((len(self._load),) * 2, np.bool_) if reads is None else reads
        self._partial_after = partial_after
        self._capacity: dict[str, float] = {}
        self._running: dict[str, set[int]] = {}
        self._shadows: dict[str, set[int]] = {}
        self._checkpoints: dict[int, dict[str, int]] = {}
        self._where: dict[int, frozenset[str]] = {}
        #: Partitions that have been ordered and are not back, with their nodes.
        self.ordered: dict[int, str] = {}
        self._plan = RecoveryPlan((), {})
        self._planned_with = self._load.copy()
        self._stale = True

    # --- news ---

    def came(
        self,
        node: str,
        capacity: float = 1.0,
        runs: Iterable[int] = (),
        shadows: Iterable[int] = (),
        restores: Iterable[int] = (),
    ) -> None:
        """Adds a node that answers for the first time, or again after a restart; it may be filled from now on.

        Args:
          capacity: cores.
          runs: partitions that it runs.
          shadows: partitions that it runs without results; they take room, and have no value.
          restores: partitions that it installs, by an order of an earlier coordinator.
        """
        self._forget(node)
        self._capacity[node] = capacity
        self._running[node], self._shadows[node] = set(runs), set(shadows)
        self.ordered |= dict.fromkeys(restores, node)
        self._stale = True

    def went(self, node: str) -> None:
        """Removes a node that no longer answers: its partitions must run elsewhere."""
        self._forget(node)
        self._stale = True

    def back(self, partition: int, node: str) -> None:
        """Notes that a node runs a partition."""
        self._running[node].add(partition)
        if self.ordered.get(partition) == node:
            del self.ordered[partition]
        else:
            self._stale = True

    def measured(self, loads: Mapping[int, float]) -> None:
        """Sets loads of some partitions; others keep their last ones, silent ones included."""
        for partition, load in loads.items():
            self._load[partition] = load
        known = np.maximum(self._planned_with, NOISE)
        self._stale |= bool((np.abs(self._load - self._planned_with) > MOVED * known).any())

    def revalue(self, goal: RecoveryGoal) -> None:
        """Sets another goal for the same partitions."""
        self.goal = goal
        self._stale = True

    def holds(self, partition: int, node: str, position: int) -> None:
        """Notes that a node has a checkpoint; the greater the position, the newer.  It keeps it while it is away."""
        held = self._checkpoints.setdefault(partition, {})
        self._stale |= held.get(node) != position
        held[node] = position

    def may_run(self, where: Mapping[int, Collection[str]]) -> None:
        """Sets, by partition that does not run, the nodes that may run it.  Partitions never in it may run on all."""
        for partition, nodes in where.items():
            self._stale |= self._where.get(partition) != frozenset(nodes)
            self._where[partition] = frozenset(nodes)

    # --- what follows from it ---

    def step(self) -> list[PlannedInstall]:
        """Plans again if necessary; returns installs to order now, each once."""
        if self._stale:
            self.adopt(plan_recovery(self.problem()))
        return self.dispatch()

    @property
    def stale(self) -> bool:
        """Has an input of the plan changed?"""
        return self._stale

    def problem(self) -> RecoveryProblem:
        """Returns the input of a new plan; nothing is ordered until it is adopted."""
        self._stale = False
        self._planned_with = self._load.copy()
        self._plan = RecoveryPlan((), self._plan.waits)
        alive = self.running | self._mask(self.ordered)
        missing = np.flatnonzero(~alive).tolist()
        holders = {p: self._newest(p) for p in missing}
        where = {p: self._where[p] for p in missing if p in self._where}
        return RecoveryProblem(
            self.goal,
            alive,
            self._load.copy(),
            self._work,
            self.room(),
            holders,
            where,
            self._reads,
            self._partial_after,
        )

    def adopt(self, plan: RecoveryPlan) -> None:
        """Takes the plan for the last problem."""
        self._plan = plan

    def dispatch(self) -> list[PlannedInstall]:
        """Returns installs to order now by the plan, each once; none if it is out of date.

        A node restores one after the other.  A partition whose inputs do not run can only wait: the node
        continues with the next.
        """
        if self._stale:
            return []
        due, later = [], []
        running = self.running
        busy = {node for partition, node in self.ordered.items() if not (self._reads[partition] & ~running).any()}
        for install in self._plan.installs:
            if install.node not in busy:
                busy.add(install.node)
                self.ordered[install.partition] = install.node
                due.append(install)
            else:
                later.append(install)
        self._plan = RecoveryPlan(tuple(later), self._plan.waits)
        return due

    @property
    def nodes(self) -> Collection[str]:
        """Nodes that are present."""
        return self._capacity.keys()

    def runs_on(self, node: str) -> tuple[frozenset[int], frozenset[int]] | None:
        """Returns a node's partitions, and those of them without results; None: it is not present."""
        if node not in self._capacity:
            return None
        return frozenset(self._running[node]), frozenset(self._shadows[node])

    @property
    def planned(self) -> tuple[PlannedInstall, ...]:
        """Installs with a place, which are ordered when their node has finished the earlier ones."""
        return self._plan.installs

    @property
    def waits(self) -> Mapping[int, str]:
        """Reasons, by partition without a place."""
        return self._plan.waits

    @property
    def running(self) -> Bools:
        """[partitions]; those that run somewhere."""
        return self._mask([*self._always, *(p for runs in self._running.values() for p in runs)])

    @property
    def value(self) -> float:
        """Value of the running partitions."""
        return float(self.goal.values(self.running[None, :])[0])

    def room(self) -> dict[str, float]:
        """By node, shares of a core that may still be filled; installs under way count."""
        rooms = {}
        for node, capacity in self._capacity.items():
            coming = {p for p, where in self.ordered.items() if where == node}
            here = self._running[node] | self._shadows[node] | coming
            rooms[node] = self._cap * capacity - float(self._load[sorted(here)].sum())
        return rooms

    @property
    def work(self) -> Floats:
        """[partitions]; seconds."""
        return self._work

    @property
    def loads(self) -> Floats:
        """[partitions]; shares of a core."""
        return self._load

    def _forget(self, node: str) -> None:
        for known in (self._capacity, self._running, self._shadows):
            known.pop(node, None)
        self.ordered = {partition: where for partition, where in self.ordered.items() if where != node}

    def _newest(self, partition: int) -> frozenset[str]:
        """Returns nodes that answer and have the newest available checkpoint."""
        held = {n: at for n, at in self._checkpoints.get(partition, {}).items() if n in self._capacity}
        return frozenset(n for n, at in held.items() if at == max(held.values()))

    def _mask(self, partitions: Iterable[int]) -> Bools:
        mask = np.zeros(len(self._load), np.bool_)
        mask[list(partitions)] = True
        return mask
