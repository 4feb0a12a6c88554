"""Recovery while things change (rule O6): news comes in, installs to order come out."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

import numpy as np

from replicas.planning.recovery.goals import RecoveryGoal
from replicas.planning.recovery.placing import PlannedInstall, RecoveryPlan, RecoveryProblem, plan_recovery
from replicas.planning.topology import Bools, Floats

#: A load that has moved by this part of what was planned with makes a new plan.
MOVED: Final = 0.2
#: Loads below are noise, shares of a core.
NOISE: Final = 0.01


class RecoverySchedule:
    """What to install next, where, and what waits for what.

    A plan is made again whenever something has changed that it depends on.  What runs or is being installed is never
    taken back, nor ordered again while its node is there; what is not ordered yet follows the newest plan.  A partition
    that comes back as ordered changes nothing: the plan counted on it.

    Partitions are numbers, as in the goal.

    Args:
      loads: of each partition, shares of a core, as last measured.
      work: of each, seconds that it takes to load its checkpoint and to catch up.
      cap: the share of a node's capacity that may be filled.
      always: what runs on none of the nodes and cannot be lost.
      reads: [partition, partition]; which ones each reads; None: that does not matter.
      partial_after: seconds after which a partition gives results though not all that it reads runs (αX).
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
        #: What has been ordered and is not back, with its node.
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
        """A node answers for the first time, or again after it was started anew; it may be filled from now on.

        Args:
          capacity: cores.
          runs: what it runs.
          shadows: what it runs without results of its own; that takes room, and is worth nothing.
          restores: what it installs, by an order of somebody before us.
        """
        self._forget(node)
        self._capacity[node] = capacity
        self._running[node], self._shadows[node] = set(runs), set(shadows)
        self.ordered |= dict.fromkeys(restores, node)
        self._stale = True

    def went(self, node: str) -> None:
        """A node answers no more: what it ran or was to run must run elsewhere."""
        self._forget(node)
        self._stale = True

    def back(self, partition: int, node: str) -> None:
        """A node that is there runs a partition."""
        self._running[node].add(partition)
        if self.ordered.get(partition) == node:
            del self.ordered[partition]
        else:
            self._stale = True

    def measured(self, loads: Mapping[int, float]) -> None:
        """Loads of some partitions; of the others the last ones stay, also of those that are silent."""
        for partition, load in loads.items():
            self._load[partition] = load
        known = np.maximum(self._planned_with, NOISE)
        self._stale |= bool((np.abs(self._load - self._planned_with) > MOVED * known).any())

    def revalue(self, goal: RecoveryGoal) -> None:
        """The same partitions are worth something else."""
        self.goal = goal
        self._stale = True

    def holds(self, partition: int, node: str, position: int) -> None:
        """A node has a checkpoint; the greater the position, the newer.  It keeps it while it is away."""
        held = self._checkpoints.setdefault(partition, {})
        self._stale |= held.get(node) != position
        held[node] = position

    def may_run(self, where: Mapping[int, Collection[str]]) -> None:
        """By partition that does not run, the nodes that may run it.  All may run what was never in it."""
        for partition, nodes in where.items():
            self._stale |= self._where.get(partition) != frozenset(nodes)
            self._where[partition] = frozenset(nodes)

    # --- what follows from it ---

    def step(self) -> list[PlannedInstall]:
        """Plans anew if need be; returns installs to order now, each once."""
        if self._stale:
            self.adopt(plan_recovery(self.problem()))
        return self.dispatch()

    @property
    def stale(self) -> bool:
        """Has something changed that the plan depends on?"""
        return self._stale

    def problem(self) -> RecoveryProblem:
        """What is to be planned now; nothing is ordered until there is a plan for it."""
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
        """The plan for the last problem."""
        self._plan = plan

    def dispatch(self) -> list[PlannedInstall]:
        """Installs to order now by the plan, each once; none if it is out of date.

        A node restores one after the other.  What reads a partition that does not run can only wait: behind it the node
        goes on.
        """
        if self._stale:
            return []
        found, later = [], []
        running = self.running
        busy = {node for partition, node in self.ordered.items() if not (self._reads[partition] & ~running).any()}
        for install in self._plan.installs:
            if install.node not in busy:
                busy.add(install.node)
                self.ordered[install.partition] = install.node
                found.append(install)
            else:
                later.append(install)
        self._plan = RecoveryPlan(tuple(later), self._plan.waits)
        return found

    @property
    def nodes(self) -> Collection[str]:
        """That are there."""
        return self._capacity.keys()

    def runs_on(self, node: str) -> tuple[frozenset[int], frozenset[int]] | None:
        """What a node runs, and what of that without results of its own; None: it is not there."""
        if node not in self._capacity:
            return None
        return frozenset(self._running[node]), frozenset(self._shadows[node])

    @property
    def planned(self) -> tuple[PlannedInstall, ...]:
        """What has a place, and is ordered when its node has finished what comes before."""
        return self._plan.installs

    @property
    def waits(self) -> Mapping[int, str]:
        """By partition that has no place, the reason."""
        return self._plan.waits

    @property
    def running(self) -> Bools:
        """[partitions]; those that run somewhere."""
        return self._mask([*self._always, *(p for runs in self._running.values() for p in runs)])

    @property
    def value(self) -> float:
        """Of what runs."""
        return float(self.goal.values(self.running[None, :])[0])

    def room(self) -> dict[str, float]:
        """By node, shares of a core that may still be filled; what is being installed there counts."""
        found = {}
        for node, capacity in self._capacity.items():
            coming = {p for p, where in self.ordered.items() if where == node}
            here = self._running[node] | self._shadows[node] | coming
            found[node] = self._cap * capacity - float(self._load[sorted(here)].sum())
        return found

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
        """Nodes that answer and have the newest checkpoint of those that can be had."""
        held = {n: at for n, at in self._checkpoints.get(partition, {}).items() if n in self._capacity}
        return frozenset(n for n, at in held.items() if at == max(held.values()))

    def _mask(self, partitions: Iterable[int]) -> Bools:
        found = np.zeros(len(self._load), np.bool_)
        found[list(partitions)] = True
        return found
