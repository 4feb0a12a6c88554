"""Places partitions: the plan of a recovery (rules O3-O5) is a list of installs in order, and partitions that wait."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from replicas.planning.recovery.choosing import LITTLE
from replicas.planning.recovery.goals import RecoveryGoal
from replicas.planning.recovery.ordering import in_order
from replicas.planning.topology import Bools, Floats


class PlannedInstall(NamedTuple):
    """A partition to be installed on a node.

    Attributes:
      fetch: another node that has its newest checkpoint; None: there is none, or it is this node.
    """

    partition: int
    node: str
    fetch: str | None = None


@dataclass(frozen=True, eq=False)
class RecoveryProblem:
    """Input of the plan.

    Attributes:
      alive: [partitions]; those that run somewhere or are being installed.
      cost: [partitions]; shares of a core.
      work: [partitions]; seconds until it has caught up.
      room: by node, shares of a core.
      holders: by partition, the nodes that answer and have its newest checkpoint.
      where: by partition, the nodes that may run it; partitions not in it may run on all.
      reads: [partition, partition]; the inputs of each; None: they do not matter.
      partial_after: seconds after which a partition gives results although not all of its inputs run.
    """

    goal: RecoveryGoal
    alive: Bools
    cost: Floats
    work: Floats
    room: Mapping[str, float]
    holders: Mapping[int, Collection[str]]
    where: Mapping[int, Collection[str]] = field(default_factory=dict)
    reads: Bools | None = None
    partial_after: float = 0.0


@dataclass(frozen=True)
class RecoveryPlan:
    """A plan.

    Attributes: installs in order; by partition, why it waits.
    """

    installs: tuple[PlannedInstall, ...]
    waits: Mapping[int, str]


def plan_recovery(problem: RecoveryProblem) -> RecoveryPlan:
    """Chooses, orders and places partitions; those that do not fit are left out, and the choice is repeated.

    If no set that completes anything is left, the room goes to the beginning of the next one.
    """
    placing = _Placing(problem)
    able = ~problem.alive
    while placing.choose_and_place(able):
        pass
    placing.begin_next()
    return RecoveryPlan(_fed_first(placing.installs, problem), placing.waits())


def _fed_first(installs: Sequence[PlannedInstall], problem: RecoveryProblem) -> tuple[PlannedInstall, ...]:
    """Puts a partition's inputs before it on its node, if they take less time than it would wait for them."""
    if problem.reads is None:
        return tuple(installs)
    left = dict.fromkeys(installs)
    ordered: list[PlannedInstall] = []
    for install in installs:
        if install not in left:
            continue
        above = _above(problem.reads, install.partition)
        first = [earlier for earlier in left if earlier.node == install.node and above[earlier.partition]]
        if sum(problem.work[earlier.partition] for earlier in first) > problem.partial_after:
            first = []
        for earlier in [*sorted(first, key=lambda i: (problem.goal.depth[i.partition], i.partition)), install]:
            ordered.append(earlier)
            del left[earlier]
    return tuple(ordered)


def _above(reads: Bools, partition: int) -> Bools:
    """Returns [partitions]; direct and indirect inputs of a partition."""
    inputs: Bools = reads[partition]
    while True:
        more = np.asarray(inputs | reads[inputs].any(axis=0))
        if np.array_equal(more, inputs):
            return inputs
        inputs = more


class _Placing:
    """A plan that grows."""

    def __init__(self, problem: RecoveryProblem) -> None:
        self._problem = problem
        self._room = dict(problem.room)
        self._alive = problem.alive.copy()
        self.installs: list[PlannedInstall] = []

    def choose_and_place(self, able: Bools) -> bool:
        """Places the chosen ones of ``able``; removes those without a place from it.  Returns False when done."""
        goal, cost = self._problem.goal, self._problem.cost
        able &= ~self._alive & (cost <= self._most_room() + LITTLE)
        room = sum(max(0.0, r) for n, r in self._room.items() if self._is_of_use(n, able))
        if not able.any():
            return False
        chosen = able if cost[able].sum() <= room + LITTLE else goal.choose(self._alive, able, cost, room)
        for extension in in_order(goal, self._alive, chosen, self._problem.work) if chosen.any() else ():
            if (misfit := self._place_all(extension)) is not None:
                able[misfit] = False
                return True
        return False

    def begin_next(self) -> None:
        """Starts the partitions of the next extension that fit; nothing more after one that does not fit wholly."""
        rest = ~self._alive
        for extension in in_order(self._problem.goal, self._alive, rest, self._problem.work) if rest.any() else ():
            fitted = [self._place(partition) for partition in self._upstream_first(extension)]
            if any(fitted) and not all(fitted):
                return

    def waits(self) -> dict[int, str]:
        """Returns the reasons of partitions without a place."""
        most_of_all = max(self._room, key=lambda n: (self._room[n], n), default=None)
        reasons = {}
        for partition in np.flatnonzero(~self._alive).tolist():
            needs = f"needs {self._problem.cost[partition]:.2f} of a core"
            most = most_of_all
            if partition in self._problem.where:
                most = max(self._able_nodes(partition), key=lambda n: (self._room[n], n), default=None)
            if most is None:
                reasons[partition] = f"{needs}; there is no node" + (" that may run it" if self._room else "")
            elif self._problem.cost[partition] > self._room[most] + LITTLE:
                reasons[partition] = f"{needs}; the most room is {max(0.0, self._room[most]):.2f}, on {most}"
            else:
                reasons[partition] = f"{needs}; it completes nothing until others have room as well"
        return reasons

    def _place_all(self, extension: Bools) -> int | None:
        """Places all of it or nothing; returns a partition without a place."""
        before = dict(self._room), self._alive.copy(), len(self.installs)
        # The largest first: that leaves room on one node rather than a little on each.
        for partition in sorted(np.flatnonzero(extension).tolist(), key=lambda p: (-self._problem.cost[p], p)):
            if not self._place(partition):
                self._room, self._alive = before[0], before[1]
                del self.installs[before[2] :]
                return int(partition)
        depth = self._problem.goal.depth
        self.installs[before[2] :] = sorted(self.installs[before[2] :], key=lambda i: (depth[i.partition], i.partition))
        return None

    def _place(self, partition: int) -> bool:
        """Places it on the node with most room among those with the newest checkpoint, else with most room (O5)."""
        cost = float(self._problem.cost[partition])
        holders = self._problem.holders.get(partition, ())
        fits = [n for n in self._able_nodes(partition) if self._room[n] >= cost - LITTLE]
        near = [n for n in fits if n in holders] or fits
        node = min(near, key=lambda n: (-round(self._room[n], 9), n), default=None)
        if node is None:
            return False
        fetch = None if node in holders else min(holders, default=None)
        self.installs.append(PlannedInstall(partition, node, fetch))
        self._room[node] -= cost
        self._alive[partition] = True
        return True

    def _able_nodes(self, partition: int) -> list[str]:
        where = self._problem.where.get(partition)
        return [n for n in self._room if where is None or n in where]

    def _most_room(self) -> Floats:
        """Returns [partitions]; the most room of the nodes that may run each."""
        rooms = np.full(len(self._alive), max(self._room.values(), default=-1.0))
        for partition in self._problem.where:
            rooms[partition] = max((self._room[n] for n in self._able_nodes(partition)), default=-1.0)
        return rooms

    def _is_of_use(self, node: str, able: Bools) -> bool:
        """May a node run any of these partitions?"""
        where = self._problem.where
        anywhere = able.copy()
        anywhere[list(where)] = False
        return bool(anywhere.any()) or any(able[p] and node in nodes for p, nodes in where.items())

    def _upstream_first(self, extension: Bools) -> list[int]:
        depth = self._problem.goal.depth
        return sorted(np.flatnonzero(extension).tolist(), key=lambda p: (depth[p], p))
