"""Chooses the standbys that run all the time, and replaces one choice by another (rule H7).  Pure.

A budget says how many partitions may have an active replica.  The planner chooses them under the known rates, and
again when measured rates show that others would help more in a correlated failure (PPA, section V; the paper leaves
open how to change the plan while it runs).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from replicas.placement.view import ClusterView
from replicas.planning.cluster_topology import costs_of, partitions_of, topology_of
from replicas.planning.planners import Algorithm, make_plan
from replicas.planning.search import PlanningProblem
from spe.plan.plan import Plan
from spe.status import ActivationStatus
from spe.stream.ids import Channel, PartitionId, ReplicaId
from spe.stream.names import NodeId, NodeState
from spe.stream.times import SECOND
from spe.wire.messages.feeds import OutputStatus


@dataclass(frozen=True, slots=True)
class Choice:
    """A choice of partitions whose standbys are to run.

    Attributes:
      value: output fidelity (OF) while every partition with a single replica has failed.
      before: OF of the standbys that run now, under the same rates.
    """

    active: frozenset[PartitionId]
    value: float
    before: float


def _no_clock() -> float:
    raise AssertionError("only the exact planner looks at a clock")


@dataclass(slots=True)
class _Count:
    """Counts the ids of one channel in a period.

    Attributes:
      first: last id at the beginning of the period.
      high: largest id heard in the period; 0: none.
      skip: periods that must not be measured: the channel began within one, or catches up after a failure.
    """

    first: int
    high: int
    skip: int = 1

    def take(self) -> int | None:
        """Ends the period and returns its tuples; None if unknown."""
        before, high, self.high = self.first, self.high, 0
        if not high:
            self.skip = max(self.skip, 1)  # unheard tuples will come all at once later
            return None
        self.first = high
        if high < before:  # the ids began again, as after a source got a new log
            return None
        if self.skip:
            self.skip -= 1
            return None
        return high - before


class RateMeter:
    """Measures tuples per second of each source and unit partition, from the ids in heartbeats."""

    def __init__(self, plan: Plan, now: int) -> None:
        self._plan = plan
        self._since = now
        self._counts: dict[Channel, _Count] = {}
        self._rates: dict[str, list[float]] = {}

    def heard(self, outputs: Iterable[OutputStatus]) -> None:
        """Takes the outputs of a producer's heartbeat answer; replicas make the same ids, so the largest counts."""
        for output in outputs:
            channel = Channel(output.stream, output.partition)  # type: ignore[arg-type]
            count = self._counts.setdefault(channel, _Count(output.last_id, output.last_id))
            count.high = max(count.high, output.last_id)
            if output.state is not NodeState.STABLE:
                count.skip = 2

    def take(self, now: int) -> dict[str, list[float]]:
        """Returns the rates between two calls, without periods of silence: a failure does not lower a rate."""
        seconds = max(now - self._since, 1) / SECOND
        self._since = now
        moved = {channel: count.take() or 0 for channel, count in self._counts.items()}
        for name in self._plan.sources:
            if tuples := moved.get(Channel(name, 0)):
                self._rates[str(name)] = [tuples / seconds]
        for unit in self._plan.units:
            made = [sum(moved.get(Channel(s, p), 0) for s in unit.outputs) for p in range(unit.partitions)]
            if all(made):
                self._rates[str(unit.id)] = [count / seconds for count in made]
        return dict(self._rates)


class Activation:
    """Chooses the active standbys, and takes steps towards the choice.

    Args:
      budget: partitions that may have their first standby run.
      algorithm: of the planner.
      margin: relative gain in value that a plan needs to replace the running one.
      active: partitions whose standbys ran by choice when the last coordinator ended.

    Attributes:
      first: the standby of each partition that runs if the partition is chosen: its first permanent one.
    """

    def __init__(
        self,
        view: ClusterView,
        budget: int,
        *,
        algorithm: str,
        margin: float,
        active: Iterable[PartitionId] = (),
    ) -> None:
        self._view = view
        self._plan = view.plan
        self._algorithm = Algorithm(algorithm)
        self._margin = margin
        self.budget = budget
        self.active = set(active)
        self.target = frozenset(self.active)
        self.choice: Choice | None = None
        self.follow()

    def follow(self, passing: Collection[ReplicaId] = ()) -> None:
        """Follows the directory: only partitions with a permanent standby can be chosen.

        Args:
          passing: temporary standbys, because of a move or a recovery.
        """
        self.first = {
            id: node
            for id, standbys in self._view.directory.standbys.items()
            for node in reversed(standbys.nodes)
            if ReplicaId(*id, node) not in passing
        }
        self.active.intersection_update(self.first)
        self.target = self.target.intersection(self.first)

    def choose(self, rates: Mapping[str, Sequence[float]], unable: Collection[PartitionId] = ()) -> Choice:
        """Returns the best plan under these rates.  Takes up to a second for a thousand partitions.

        Args:
          unable: partitions whose standby cannot run now.

        Raises:
          ConfigError: the planner cannot; the message has the reason.
        """
        directory = self._view.directory  # it may be replaced while this thread works
        unable = {*unable, *(directory.standbys.keys() - self.first.keys())}
        topology = topology_of(self._plan, directory, rates)
        costs = costs_of(self._plan, directory, topology, unable)
        most = PlanningProblem(topology, 0, costs).most
        problem = PlanningProblem(topology, min(self.budget, most) if unable else self.budget, costs)
        plan = make_plan(problem, self._algorithm, now=_no_clock)
        ids = partitions_of(self._plan, topology)
        mask = np.array([[id in self.active and id not in unable for id in ids]])
        before = float(problem.values(mask)[0])
        chosen = frozenset(id for task in plan.tasks if (id := ids[task]) is not None)
        return Choice(chosen, float(plan.value), before)

    def adopt(self, choice: Choice) -> bool:
        """Makes a choice the target if it is better by the margin, fills free room, or too many standbys run."""
        assert len(choice.active) <= self.budget, "H7: no more partitions are chosen than the budget allows"
        room = len(self.active) < self.budget
        better = choice.value > choice.before * (1.0 if room else 1 + self._margin) + 1e-9
        if len(self.active) <= self.budget and not better:
            return False
        self.choice, self.target = choice, choice.active.intersection(self.first)
        return True

    @property
    def settled(self) -> bool:
        """Are the wanted standbys those of the choice?"""
        return self.active == self.target

    def step(self, state: Callable[[ReplicaId], NodeState | None]) -> PartitionId | None:
        """Takes one step towards the target: first a new standby runs, then an old one retires.

        Args:
          state: returns the state of a standby that is to run: RECOVERING also before it runs; None: it is given up.

        Returns:
          The partition that joined or left ``active``; None: nothing can be done now.
        """
        assert (self.active | self.target) <= self.first.keys(), "H7: only standbys are activated"
        states = {id: state(ReplicaId(*id, self.first[id])) for id in self.active}
        if NodeState.RECOVERING in states.values():
            return None  # a new one is recovering
        leaving = sorted(self.active - self.target)
        coming = sorted(self.target - self.active)
        if leaving and (len(self.active) > self.budget or not coming):
            if any(states[id] not in (NodeState.STABLE, None) for id in self.active & self.target):
                return None  # its successor is not STABLE yet
            serving = sum(standby_state is NodeState.STABLE for standby_state in states.values())
            first = min(leaving, key=lambda id: (states[id] is NodeState.STABLE, id))
            if states[first] is NodeState.STABLE and serving <= min(self.budget, len(self.target)):
                return None  # too few standbys would be left
            self.active.remove(first)
            return first
        if coming:
            self.active.add(coming[0])
            return coming[0]
        return None

    def wanted(self) -> dict[PartitionId, frozenset[NodeId]]:
        return {id: frozenset({self.first[id]}) for id in self.active}

    def status(self) -> ActivationStatus:
        return ActivationStatus(
            budget=self.budget,
            active=tuple(sorted(map(str, self.active))),
            target=tuple(sorted(map(str, self.target))),
            of=None if self.choice is None else self.choice.value,
        )
