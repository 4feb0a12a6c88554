"""Value of recovered partitions (rule O2): complete queries, or output fidelity, in which partial trees count."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

import numpy as np

from replicas.planning.extensions import Extensions
from replicas.planning.fidelity import fidelity
from replicas.planning.recovery.choosing import LITTLE, Shortage, best_density, dp, operator_centric
from replicas.planning.recovery.program import best_choice
from replicas.planning.search import NOWHERE, Failure, PlanningProblem, ReplicationPlan
from replicas.planning.structure import growth, structure_aware
from replicas.planning.topology import Bools, Floats, Ints, Topology

#: Maximum number of cells of an array.
_CELLS: Final = 4_000_000


class RecoveryGoal(Protocol):
    """Value of a set of running partitions, and the choice of additions.

    Everywhere: ``alive`` are partitions that run or are being installed, ``able`` those of the others that may be
    chosen, ``cost`` shares of a core, ``work`` seconds; arrays have an element per partition.
    """

    @property
    def depth(self) -> Ints:
        """[partitions]; length of the longest path from a source."""
        ...

    def values(self, alive: Bools) -> Floats:
        """Returns [rows], the value of each row of ``alive``, [rows, partitions]."""
        ...

    def choose(self, alive: Bools, able: Bools, cost: Floats, room: float) -> Bools:
        """Returns partitions to add that fit into the room of all nodes together and raise the value most (O3)."""
        ...

    def extensions(self, alive: Bools, able: Bools) -> list[Bools]:
        """Returns different sets of ``able`` partitions that each raise the value (O4)."""
        ...

    def growth(self, alive: Bools, able: Bools, work: Floats) -> Iterator[Bools]:
        """Yields disjoint sets of ``able`` partitions that raise the value one by one, most per second first."""
        ...


class QueryChoice(StrEnum):
    """Algorithms that choose complete queries (O3)."""

    DP = "dp"
    BEST_DENSITY = "best-density"
    OPERATOR_CENTRIC = "operator-centric"
    EXACT = "exact"


_CHOOSE: Final[Mapping[QueryChoice, Callable[[Shortage], Bools]]] = {
    QueryChoice.DP: dp,
    QueryChoice.BEST_DENSITY: best_density,
    QueryChoice.OPERATOR_CENTRIC: operator_centric,
    QueryChoice.EXACT: lambda short: best_choice(short, [short.room]).partitions,
}


@dataclass(frozen=True, eq=False)
class CompleteQueries:
    """The priorities of the complete queries (the paper's value).

    Attributes:
      members: [queries, partitions]; an output partition with all partitions above it each.
      priority: [queries]
      depth: [partitions]
      algorithm: of the choice.
    """

    members: Bools
    priority: Floats
    depth: Ints
    algorithm: QueryChoice = QueryChoice.BEST_DENSITY

    @classmethod
    def of(cls, topology: Topology, algorithm: QueryChoice = QueryChoice.BEST_DENSITY) -> CompleteQueries:
        """Returns the queries of a topology.

        A sink's weight is divided over its partitions by their rates, so that the value of complete queries is never
        above the output fidelity.
        """
        above = np.eye(topology.tasks, dtype=np.bool_)
        depth = np.zeros(topology.tasks, np.int64)
        for operator in topology.operators:
            for stream in operator.inputs:
                before = topology.operators[stream.upstream]
                depth[operator.range] = np.maximum(depth[operator.range], depth[before.range].max() + 1)
                if stream.same:
                    above[operator.range] |= above[before.range].any(axis=0)
                else:
                    np.logical_or.at(above, stream.target + operator.first, above[stream.source + before.first])
        sinks = [(topology.operators[at], worth) for at, worth in topology.goal.items()]
        members = np.vstack([above[o.range] for o, _ in sinks])
        return cls(members, np.concatenate([o.part * worth for o, worth in sinks]), depth, algorithm)

    def values(self, alive: Bools) -> Floats:
        members = self.members.T.astype(np.float32)
        size = max(1, _CELLS // alive.shape[1])
        parts = [((~alive[at : at + size]) @ members == 0) @ self.priority for at in range(0, len(alive), size)]
        return np.concatenate(parts) if parts else np.empty(0)

    def shortage(self, alive: Bools, able: Bools, cost: Floats, room: float) -> Shortage:
        """Returns the missing partitions of the queries that ``able`` ones can complete."""
        lacking = self.members & ~alive
        feasible = lacking.any(axis=1) & ~(lacking & ~able).any(axis=1) & (self.priority > 0)
        return Shortage(lacking[feasible], self.priority[feasible], cost, self.depth, room)

    def choose(self, alive: Bools, able: Bools, cost: Floats, room: float) -> Bools:
        short = self.shortage(alive, able, cost, room)
        if not len(short.needs):
            return np.zeros(len(cost), np.bool_)
        return _CHOOSE[self.algorithm](short)

    def extensions(self, alive: Bools, able: Bools) -> list[Bools]:
        return _different(self.shortage(alive, able, np.zeros(len(alive)), 0.0).needs)

    def growth(self, alive: Bools, able: Bools, work: Floats) -> Iterator[Bools]:
        running = alive.copy()
        while sets := self.extensions(running, able & ~running):
            rows = np.array(sets)
            gain = self.values(rows | running) - float(self.values(running[None, :])[0])
            best = rows[(gain / np.maximum(rows @ work, LITTLE)).argmax()]
            running |= best
            yield best


@dataclass(frozen=True, eq=False)
class OutputFidelity:
    """PPA's OF: partitions of an incomplete tree count as far as they yield results.

    Attributes:
      topology: the weights of its sinks are the priorities.
      planner: chooses within a budget; any of PPA's.
    """

    topology: Topology
    depth: Ints
    planner: Callable[[PlanningProblem], ReplicationPlan] = structure_aware

    @classmethod
    def of(
        cls, topology: Topology, planner: Callable[[PlanningProblem], ReplicationPlan] = structure_aware
    ) -> OutputFidelity:
        return cls(topology, CompleteQueries.of(topology).depth, planner)

    def values(self, alive: Bools) -> Floats:
        size = max(1, _CELLS // alive.shape[1])
        parts = [fidelity(self.topology, alive[at : at + size]) for at in range(0, len(alive), size)]
        return np.concatenate(parts) if parts else np.empty(0)

    def choose(self, alive: Bools, able: Bools, cost: Floats, room: float) -> Bools:
        chosen = np.zeros(len(alive), np.bool_)
        chosen[list(self.planner(self.problem(alive, able, cost, room)).tasks)] = True
        return chosen & able

    def extensions(self, alive: Bools, able: Bools) -> list[Bools]:
        problem = self.problem(alive, able, np.ones(len(alive)), float(able.sum()))
        growing = problem.start()
        finder = Extensions(problem, problem.failed[0])
        (finder.fed,) = growing.fed()
        ways = [finder.through(task) for task in np.flatnonzero(able).tolist()]
        ways = [way for way in ways if len(way) and able[way].all()]
        gains = growing.with_each(ways) - growing.value if ways else ()
        sets = np.zeros((len(ways), len(alive)), np.bool_)
        for row, way in zip(sets, ways, strict=True):
            row[way] = True
        return _different(sets[np.asarray(gains) > LITTLE]) if ways else []

    def growth(self, alive: Bools, able: Bools, work: Floats) -> Iterator[Bools]:
        for tasks in growth(self.problem(alive, able, work, float(work[able].sum()))):
            extension = np.zeros(len(alive), np.bool_)
            extension[tasks] = True
            yield extension

    def problem(self, alive: Bools, able: Bools, cost: Floats, room: float) -> PlanningProblem:
        """Returns a problem for PPA's planners: only failed tasks can fail; forbidden ones cost more than the room."""
        costs = np.where(able, np.maximum(cost, LITTLE), NOWHERE)
        most = float(costs[able].sum())
        failed = Failure(frozenset(np.flatnonzero(~alive).tolist()))
        return PlanningProblem(self.topology, min(room, most), costs.tolist(), (failed,))


def goal_named(name: str, topology: Topology) -> RecoveryGoal:
    """Returns the goal named by ``recovery.value`` of the configuration."""
    return CompleteQueries.of(topology) if name == "complete" else OutputFidelity.of(topology)


def _different(rows: Bools) -> list[Bools]:
    """Returns each set once, in order of first occurrence."""
    distinct = {row.tobytes(): row for row in rows}
    return list(distinct.values())
