"""Which standbys run beside the replicas that they back, and how one plan becomes another (docs/rules.md H7).  Pure.

A budget says how many partitions may have an active replica; the planner chooses them under the rates that are known,
and again when measured rates say that others would do more for the results of a correlated failure (PPA, section V;
changing the plan while it runs is what the paper leaves open).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from replicas.planning.configured import topology_of
from replicas.planning.planners import Algorithm, make_plan
from replicas.planning.search import Failure, Problem
from spe.plan import Channel, PartitionId, Plan
from spe.states import NodeId
from spe.times import SECOND
from spe.wire.messages import OutputStatus

#: Cost of a replica that nobody could run.
_NOWHERE = 1e9


@dataclass(frozen=True, slots=True)
class Choice:
    """Partitions whose first standby is to run.

    Attributes:
      value: OF while everything has failed that runs alone.
      before: the same of what runs now, under the same rates.
    """

    active: frozenset[PartitionId]
    value: float
    before: float


class RateMeter:
    """Tuples per second of each source and unit partition, from the ids that heartbeats tell."""

    def __init__(self, plan: Plan, now: int) -> None:
        self._plan = plan
        self._since = now
        self._before: dict[Channel, int] = {}
        self._last: dict[Channel, int] = {}
        self._rates: dict[str, list[float]] = {}

    def heard(self, outputs: Iterable[OutputStatus]) -> None:
        """A heartbeat answer of whoever makes a channel; replicas tell the same ids, so the largest counts."""
        for told in outputs:
            channel = Channel(told.stream, told.partition)  # type: ignore[arg-type]
            self._last[channel] = max(self._last.get(channel, 0), told.last_id)

    def take(self, now: int) -> dict[str, list[float]]:
        """As last measured, between two calls; a silence counts for nothing, for a failure is no lower rate."""
        seconds = (now - self._since) / SECOND
        moved = {c: last - self._before.get(c, 0) for c, last in self._last.items()}
        self._since, self._before = now, dict(self._last)
        if seconds <= 0:
            return dict(self._rates)
        self._rates |= {
            str(name): [moved[Channel(name, 0)] / seconds]
            for name in self._plan.sources
            if moved.get(Channel(name, 0), 0) > 0
        }
        for unit in self._plan.units:
            made = [sum(moved.get(Channel(s, p), 0) for s in unit.outputs) for p in range(unit.partitions)]
            if all(made):
                self._rates[str(unit.id)] = [count / seconds for count in made]
        return dict(self._rates)


class Activation:
    """See the module.

    Args:
      plan: the cluster.
      budget: partitions that may have their first standby run.
      algorithm: of the planner.
      margin: by how much, relative to what runs, a plan must be better to take its place.
      active: what was wanted when the coordinator ended.
    """

    def __init__(
        self, plan: Plan, budget: int, *, algorithm: str, margin: float, active: Iterable[PartitionId] = ()
    ) -> None:
        self._plan = plan
        self._algorithm = Algorithm(algorithm)
        self._margin = margin
        self._ids = [None] * len(plan.sources) + [PartitionId(u.id, p) for u in plan.units for p in range(u.partitions)]
        self.budget = budget
        self.active = {id for id in active if id in plan.standbys}
        self.target = frozenset(self.active)
        self.choice: Choice | None = None

    def choose(self, rates: Mapping[str, Sequence[float]], now: Callable[[], float]) -> Choice:
        """The best plan under these rates.  Takes up to a second for a thousand partitions."""
        topology = topology_of(self._plan, rates)
        alone = {at for at, id in enumerate(self._ids) if id is not None and len(self._plan.placement[id]) < 2}
        costs = [1.0 if id in self._plan.standbys and at in alone else _NOWHERE for at, id in enumerate(self._ids)]
        failures = (Failure(frozenset(alone)),) if alone else ()
        problem = Problem(topology, self.budget, costs, failures)
        found = make_plan(problem, self._algorithm, now=now)
        mask = np.array([[id in self.active for id in self._ids]])
        before = float(problem.values(mask)[0])
        chosen = frozenset(id for at, id in enumerate(self._ids) if at in set(found.tasks) and id is not None)
        return Choice(chosen, float(found.value), before)

    def adopt(self, choice: Choice) -> bool:
        """Makes a choice the target if it is better by the margin, or what runs is not what the budget says."""
        filled = len(self.active) == min(self.budget, len(choice.active))
        if filled and choice.value <= choice.before * (1 + self._margin) + 1e-9:
            return False
        self.choice, self.target = choice, choice.active
        return True

    def step(self, runs: Callable[[PartitionId], bool]) -> PartitionId | None:
        """Comes a little nearer to the target: first a new one runs, then an old one goes.

        Args:
          runs: whether a partition's first standby runs, and is STABLE.

        Returns:
          The partition that joined or left ``active``; None: nothing can be done now.
        """
        if not all(map(runs, self.active)):
            return None  # one is on its way
        leaving = sorted(self.active - self.target)
        coming = sorted(self.target - self.active)
        if leaving and (len(self.active) > self.budget or not coming):
            self.active.remove(leaving[0])
            return leaving[0]
        if coming:
            self.active.add(coming[0])
            return coming[0]
        return None

    def wanted(self) -> dict[PartitionId, frozenset[NodeId]]:
        return {id: frozenset(self._plan.standbys[id].nodes[:1]) for id in self.active}

    def status(self) -> dict[str, Any]:
        """For ``spe status``."""
        return {
            "budget": self.budget,
            "active": sorted(map(str, self.active)),
            "target": sorted(map(str, self.target)),
            "of": None if self.choice is None else self.choice.value,
        }
