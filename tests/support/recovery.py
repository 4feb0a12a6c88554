"""Recoveries as text: who reads whom, what things cost, what came back when."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from replicas.planning.recovery.choosing import Shortage
from replicas.planning.recovery.forecast import NodeArrival, RecoveryForecast, forecast
from replicas.planning.recovery.goals import CompleteQueries, QueryChoice, RecoveryGoal
from replicas.planning.recovery.schedule import RecoverySchedule
from replicas.planning.topology import Bools


class Partitions:
    """Partitions with names: ``{"m": "", "x": "m"}``: x reads m.  Upstream ones come first."""

    def __init__(self, reads: Mapping[str, str], priorities: Mapping[str, float]) -> None:
        self.names = list(reads)
        self._above: dict[str, set[str]] = {}
        self._depth: dict[str, int] = {}
        for name, inputs in reads.items():
            self._above[name] = {name}.union(*(self._above[i] for i in inputs.split()))
            self._depth[name] = max((self._depth[i] + 1 for i in inputs.split()), default=0)
        self.reads = np.array([self.mask(inputs.split()) for inputs in reads.values()])
        self._priorities = priorities

    def queries(self, algorithm: QueryChoice = QueryChoice.BEST_DENSITY) -> CompleteQueries:
        members = np.array([self.mask(self._above[q]) for q in self._priorities])
        depth = np.array([self._depth[n] for n in self.names])
        return CompleteQueries(members, np.array(list(self._priorities.values()), np.float64), depth, algorithm)

    def mask(self, names: Iterable[str]) -> Bools:
        given = set(names)
        assert given <= set(self.names)
        return np.array([n in given for n in self.names])

    def text(self, mask: Bools) -> str:
        return " ".join(n for n, chosen in zip(self.names, mask, strict=True) if chosen)

    def shortage(self, loads: Mapping[str, float], room: float) -> Shortage:
        """All of them have failed."""
        everything = np.ones(len(self.names), np.bool_)
        return self.queries().shortage(~everything, everything, self.amounts(loads), room)

    def amounts(self, given: Mapping[str, float], default: float = 1.0) -> np.ndarray:
        return np.array([given.get(n, default) for n in self.names], np.float64)

    def schedule(
        self,
        goal: RecoveryGoal | None = None,
        loads: Mapping[str, float] | None = None,
        work: Mapping[str, float] | None = None,
        cap: float = 1.0,
        partial_after: float = 0.0,
    ) -> RecoverySchedule:
        """All have failed; a load is 1, work 0 where it is not given."""
        return RecoverySchedule(
            goal or self.queries(),
            self.amounts(loads or {}),
            self.amounts(work or {}, 0.0),
            cap=cap,
            reads=self.reads,
            partial_after=partial_after,
        )

    def played(self, schedule: RecoverySchedule, arrivals: Iterable[tuple[float, str, float]]) -> RecoveryForecast:
        return forecast(schedule, [NodeArrival(*a) for a in arrivals])

    def by_node(self, played: RecoveryForecast) -> dict[str, str]:
        """What each node was told to run, in order."""
        found: dict[str, str] = {}
        for one in played.installs:
            found[one.install.node] = f"{found.get(one.install.node, '')} {self.names[one.install.partition]}".strip()
        return found
