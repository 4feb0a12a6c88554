"""Nodes of tasks, domains that fail together, and nodes for replicas."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from replicas.planning.fidelity import fidelity
from replicas.planning.search import Failure, PlanningProblem
from spe.errors import ConfigError

#: Domains that nodes share, from the narrowest to the widest.
LEVELS: Final = ("host", "rack", "zone")
#: The worst case: every task without a replica fails.
ALL: Final = "all"
_LITTLE: Final = 1e-9


@dataclass(frozen=True)
class Place:
    """A node.

    Attributes:
      capacity: total cost that it can host; None: no limit.
      domains: its domain at each level.
    """

    capacity: float | None = None
    domains: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Placement:
    """Nodes, and the tasks on them.

    Attributes:
      homes: node of each task; None: it is on none of them (a source proxy).
      likely: by level ("node", those of ``LEVELS``, "all"), relative probability that one domain fails.
    """

    nodes: Mapping[str, Place]
    homes: Sequence[str | None]
    likely: Mapping[str, float]

    def check(self, cost: Sequence[float]) -> None:
        """Raises ConfigError if a node offers less than it hosts."""
        problems = [
            f"node {name} offers {place.capacity:g}, but the tasks on it cost {hosted:g}"
            for name, place in self.nodes.items()
            if place.capacity is not None
            and (hosted := sum(c for c, home in zip(cost, self.homes, strict=True) if home == name))
            > place.capacity + _LITTLE
        ]
        if problems:
            raise ConfigError(problems)

    def failing(self) -> list[tuple[str, frozenset[str], float]]:
        """Returns (domain, its nodes, probability) of each failure.  The worst case leaves nodes of replicas alone."""
        failing = []
        for level, probability in self.likely.items():
            if level == ALL:
                failing.append((ALL, frozenset[str](), probability))
                continue
            for domain in sorted({self._domain(n, level) for n in self.nodes}):
                nodes = frozenset(n for n in self.nodes if self._domain(n, level) == domain)
                failing.append((f"{level} {domain}", nodes, probability))
        return failing

    def failures(self) -> tuple[Failure, ...]:
        """Returns the failures to plan for; domains without tasks are left out."""
        failures = []
        for domain, nodes, probability in self.failing():
            tasks = frozenset(t for t, home in enumerate(self.homes) if domain == ALL or home in nodes)
            if tasks:
                failures.append(Failure(tasks, probability))
        return tuple(failures)

    def place(self, tasks: Sequence[int], cost: Sequence[float]) -> dict[int, str]:
        """Chooses a node for the replica of each task: never its own, in other domains if there is room, widest first.

        Raises:
          ConfigError: there is no room.
        """
        free = {n: np.inf if p.capacity is None else p.capacity for n, p in self.nodes.items()}
        for task, home in enumerate(self.homes):
            if home is not None:
                free[home] -= cost[task]
        placed: dict[int, str] = {}
        lost = []
        for task in sorted(tasks, key=lambda t: (-cost[t], t)):
            node = self._free_place(task, cost[task], free) or self._made_room(task, cost, free, placed)
            if node is None:
                lost.append(task)
                continue
            placed[task] = node
            free[node] -= cost[task]
        if lost:
            room = sum(max(0.0, f) for f in free.values())
            raise ConfigError(
                [
                    f"there is no room for the replicas of {len(lost)} tasks (cost {sum(cost[t] for t in lost):g}) on "
                    f"nodes other than their own: {room:g} is free after all others have their places"
                ]
            )
        return placed

    def value(self, problem: PlanningProblem, placed: Mapping[int, str]) -> float:
        """Returns the expected fidelity if a failing domain takes its replicas along."""
        total, value = 0.0, 0.0
        for domain, nodes, probability in self.failing():
            failed = np.array([domain == ALL or home in nodes for home in self.homes]) & problem.topology.fails
            if not failed.any():
                continue
            for task, node in placed.items():
                failed[task] &= node in nodes
            value += probability * float(fidelity(problem.topology, ~failed[None, :])[0])
            total += probability
        return value / total

    def _domain(self, node: str, level: str) -> str:
        return node if level == "node" else self.nodes[node].domains.get(level, node)

    def _apart(self, node: str, home: str | None) -> tuple[bool, ...]:
        """Returns, widest first, whether a domain is shared."""
        if home is None:
            return ()
        return tuple(self._domain(node, level) == self._domain(home, level) for level in reversed(LEVELS))

    def _free_place(self, task: int, cost: float, free: Mapping[str, float], but: Iterable[str] = ()) -> str | None:
        home = self.homes[task]
        near = [n for n in self.nodes if n != home and n not in but and free[n] >= cost - _LITTLE]
        return min(near, key=lambda n: (self._apart(n, home), -free[n], n), default=None)

    def _made_room(
        self, task: int, cost: Sequence[float], free: dict[str, float], placed: dict[int, str]
    ) -> str | None:
        """Moves one replica elsewhere so that this one has a place."""
        for other, node in sorted(placed.items()):
            if node == self.homes[task] or free[node] + cost[other] < cost[task] - _LITTLE:
                continue
            if (elsewhere := self._free_place(other, cost[other], free, (node,))) is not None:
                placed[other] = elsewhere
                free[elsewhere] -= cost[other]
                free[node] += cost[other]
                return node
        return None
