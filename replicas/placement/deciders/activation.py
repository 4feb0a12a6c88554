"""Which standbys run all the time, and how one choice of them is replaced by another (rule H7).  Pure.

A budget says how many partitions may have an active replica; the planner chooses them under the rates that are known,
and again when measured rates say that others would do more for the results of a correlated failure (PPA, section V;
changing the plan while it runs is what the paper leaves open).
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
from spe.wire.messages import OutputStatus


@dataclass(frozen=True, slots=True)
class Choice:
    """Partitions of which a standby is to run.

    Attributes:
      value: OF while every partition with a single replica has failed.
      before: the same for the standbys that run now, under the same rates.
    """

    active: frozenset[PartitionId]
    value: float
    before: float


def _no_clock() -> float:
    raise AssertionError("only the exact planner looks at a clock")


@dataclass(slots=True)
class _Count:
    """Ids of one channel.

    Attributes:
      first: at the beginning of the period.
      high: the largest heard in it; 0: nothing.
      skip: periods that must not be measured: it began in the middle of one, or catches up after a failure.
    """

    first: int
    high: int
    skip: int = 1

    def take(self) -> int | None:
        """Tuples of the period that ends; None if that is not known."""
        before, high, self.high = self.first, self.high, 0
        if not high:
            self.skip = max(self.skip, 1)  # tuples that were not heard of will come all at once later
            return None
        self.first = high
        if high < before:  # the ids began anew, as those of a source with a new log
            return None
        if self.skip:
            self.skip -= 1
            return None
        return high - before


class RateMeter:
    """Tuples per second of each source and unit partition, from the ids that heartbeats tell."""

    def __init__(self, plan: Plan, now: int) -> None:
        self._plan = plan
        self._since = now
        self._counts: dict[Channel, _Count] = {}
        self._rates: dict[str, list[float]] = {}

    def heard(self, outputs: Iterable[OutputStatus]) -> None:
        """A heartbeat answer of whoever makes a channel; replicas tell the same ids, so the largest counts."""
        for output in outputs:
            channel = Channel(output.stream, output.partition)  # type: ignore[arg-type]
            count = self._counts.setdefault(channel, _Count(output.last_id, output.last_id))
            count.high = max(count.high, output.last_id)
            if output.state is not NodeState.STABLE:
                count.skip = 2

    def take(self, now: int) -> dict[str, list[float]]:
        """The rates as last measured, between two calls; silences are left out, since a failure is no lower rate."""
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
    """See the module.

    Args:
      budget: partitions that may have their first standby run.
      algorithm: of the planner.
      margin: by how much, relative to what runs, a plan must be better to take its place.
      active: the standbys that were wanted when the coordinator ended.

    Attributes:
      first: of each partition the standby that runs where it is chosen: its first one that stays.
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
        """Follows the directory: partitions without a standby that stays have none that runs.

        Args:
          passing: standbys that are so for a while only, because of a move or a recovery.
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
        """The best plan under these rates.  Takes up to a second for a thousand partitions.

        Args:
          unable: partitions whose standby cannot run now.

        Raises:
          ConfigError: the planner cannot do it; it says why.
        """
        directory = self._view.directory  # another one may count while this thread works
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
        """Makes a choice the target: better by the margin, or at all where there is room; or more runs than may."""
        assert len(choice.active) <= self.budget, "H7: no more partitions are chosen than the budget allows"
        room = len(self.active) < self.budget
        better = choice.value > choice.before * (1.0 if room else 1 + self._margin) + 1e-9
        if len(self.active) <= self.budget and not better:
            return False
        self.choice, self.target = choice, choice.active.intersection(self.first)
        return True

    @property
    def settled(self) -> bool:
        """Do the standbys that are wanted equal the choice?"""
        return self.active == self.target

    def step(self, state: Callable[[ReplicaId], NodeState | None]) -> PartitionId | None:
        """Takes one step towards the target: first a new standby runs, then an old one retires.

        Args:
          state: of a standby that is to run: RECOVERING also before it does; None: it does not come, and nobody waits
            for it.

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
