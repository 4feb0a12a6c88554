"""Finds the best plan with a proof, or the best one within a time with a bound on the others.

The topology is divided into modules (``modules``).  Each gets a *frontier*: its maximum value for every
cost, each point from a mixed-integer program (``program``).  Frontiers are combined along the gates; because the value
of the whole never falls when that of a module rises, the best combination is the best plan.  When time is up, frontiers
have upper points for unproved costs, and the same combination gives the bound.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from replicas.planning.fidelity import Running
from replicas.planning.modules import Module, modules_of
from replicas.planning.program import LinearProgram, solver
from replicas.planning.search import PlanningProblem, ReplicationPlan
from replicas.planning.structure import structure_aware
from replicas.planning.topology import Topology

#: Maximum number of points of a frontier; fractional costs make many.
_MOST_POINTS: Final = 1000
_LITTLE: Final = 1e-9
#: Distance in cost between points of a frontier, relative to the cheapest task, if costs are fractional; well
#: above the solver's tolerance.
_STEP: Final = 1e-3


@dataclass(frozen=True)
class SearchPoint:
    """A value for a cost; ``tasks`` are those of a plan, or empty where the value is only a bound."""

    cost: float
    value: float
    tasks: tuple[int, ...] = ()


@dataclass(frozen=True)
class Frontier:
    """Points by cost: plans found, and upper bounds."""

    plans: tuple[SearchPoint, ...]
    bounds: tuple[SearchPoint, ...]


def exact(problem: PlanningProblem, *, now: Callable[[], float], seconds: float = 10.0) -> ReplicationPlan:
    """Returns the best plan found.

    Args:
      now: a clock, seconds.
      seconds: time after which the best plan so far is returned, with the proved bound.

    Raises:
      ConfigError: SciPy is not installed.
    """
    solver()
    end = now() + seconds
    guess = structure_aware(problem)
    mask, bound = _by_modules(problem, now, end) if not problem.failures else _whole(problem, end - now())
    value = float(problem.values(mask[None, :])[0])
    if guess.value > value:
        mask, value = np.isin(np.arange(len(mask)), guess.tasks), guess.value
    return ReplicationPlan.of("exact", problem, mask, max(bound, value))


def _whole(problem: PlanningProblem, seconds: float) -> tuple[np.ndarray, float]:
    """Solves the whole problem for several failures: a module's best plan may differ between them."""
    program = LinearProgram(
        problem.topology,
        problem.topology.goal,
        provided=(),
        failed=problem.failed,
        weights=problem.weights,
        cost=problem.cost,
    )
    solution = program.solve(problem.budget, seconds)
    return _nothing(problem) if solution.tasks is None else solution.tasks, solution.bound


def _by_modules(problem: PlanningProblem, now: Callable[[], float], end: float) -> tuple[np.ndarray, float]:
    modules = modules_of(problem.topology)
    place_of = {module.root: at for at, module in enumerate(modules)}
    frontiers: list[Frontier] = []
    for at, module in enumerate(modules):
        own = _frontier(problem, module, now, now() + (end - now()) / (len(modules) - at))
        entering = [[frontiers[place_of[gate]] for gate, _ in entry.gates] for entry in module.entries]
        frontiers.append(
            Frontier(
                _combined(problem, module, own.plans, [[f.plans for f in e] for e in entering], above=False),
                _combined(problem, module, own.bounds, [[f.bounds for f in e] for e in entering], above=True),
            )
        )
    plan = _nothing(problem)
    plan[list(frontiers[-1].plans[-1].tasks)] = True
    return plan, frontiers[-1].bounds[-1].value


def _frontier(problem: PlanningProblem, module: Module, now: Callable[[], float], end: float) -> Frontier:
    """Returns the frontier of a module whose input is whole.  Without entries the last point needs the budget only."""
    topology = problem.topology
    outside = {gate for entry in module.entries for gate, _ in entry.gates}
    goal = {module.root: 1.0} if module.root is not None else topology.goal
    program = LinearProgram(
        topology, goal, provided=outside, failed=problem.failed, weights=problem.weights, cost=problem.cost
    )
    worth = _Worth(topology, module, goal)
    points = [SearchPoint(0.0, worth.of(()))]
    bounds: list[SearchPoint] = []
    budget, bound = problem.budget, 1.0
    whole = bool((problem.cost == np.round(problem.cost)).all())
    step = 0.5 if whole else float(problem.cost.min()) * _STEP
    while budget >= 0:
        if now() >= end and bounds:
            break
        solution = program.solve(budget, end - now())
        bound = min(bound, solution.bound)
        if solution.tasks is None:
            break
        tasks = tuple(np.flatnonzero(solution.tasks).tolist())
        cost, value = float(problem.cost[list(tasks)].sum()), worth.of(tasks)
        points.append(SearchPoint(cost, value, tasks))
        bounds.append(SearchPoint(cost if whole else max(0.0, cost - step), max(bound, value)))
        budget = cost - step
        if module.root is None and not module.entries:
            break
    bounds.append(SearchPoint(0.0, bound if budget >= 0 else bounds[-1].value))
    return Frontier(_best(points, problem.budget, above=False), _best(bounds, problem.budget, above=True))


class _Worth:
    """Computes a module's value with some tasks, all others in front of it alive."""

    def __init__(self, topology: Topology, module: Module, goal: dict[int, float]) -> None:
        self._topology = topology
        self._mine = np.isin(topology.operator_of, list(module.members)) & topology.fails
        self._goal = goal

    def of(self, tasks: Sequence[int]) -> float:
        alive = ~self._mine
        alive[list(tasks)] = True
        means = Running(self._topology, alive).means()
        return float(sum(worth * means[at] for at, worth in self._goal.items()))


def _combined(
    problem: PlanningProblem,
    module: Module,
    own: Sequence[SearchPoint],
    entering: Sequence[Sequence[Sequence[SearchPoint]]],
    *,
    above: bool,
) -> tuple[SearchPoint, ...]:
    """Combines own points with those of each entry: the best for every cost."""
    total = tuple(own)
    for entry, gates in zip(module.entries, entering, strict=True):
        received: tuple[SearchPoint, ...] = (SearchPoint(0.0, 1.0 if entry.joined else 0.0),)
        for points, (_, part) in zip(gates, entry.gates, strict=True):
            weighted = points if entry.joined else [SearchPoint(p.cost, p.value * part, p.tasks) for p in points]
            received = _pairs(problem, received, weighted, times=entry.joined, above=above)
        powered = [SearchPoint(p.cost, p.value**entry.power, p.tasks) for p in received]
        total = _pairs(problem, total, powered, times=True, above=above)
    return total


def _pairs(
    problem: PlanningProblem, left: Sequence[SearchPoint], right: Sequence[SearchPoint], *, times: bool, above: bool
) -> tuple[SearchPoint, ...]:
    points = []
    for a in left:
        for b in right:
            if a.cost + b.cost <= problem.budget + _LITTLE:
                value = a.value * b.value if times else a.value + b.value
                points.append(SearchPoint(a.cost + b.cost, value, a.tasks + b.tasks))
    return _best(points, problem.budget, above=above)


def _best(points: Sequence[SearchPoint], budget: float, *, above: bool) -> tuple[SearchPoint, ...]:
    """Returns points that exceed all cheaper ones; of too many a selection that keeps bounds above, plans below."""
    rising: list[SearchPoint] = []
    for point in sorted(points, key=lambda p: (p.cost, -p.value)):
        if point.cost <= budget + _LITTLE and (not rising or point.value > rising[-1].value):
            rising.append(point)
    if len(rising) <= _MOST_POINTS:
        return tuple(rising)
    at = np.unique(np.linspace(0, len(rising) - 1, _MOST_POINTS).round().astype(int)).tolist()
    if not above:
        return tuple(rising[i] for i in at)
    return tuple(
        SearchPoint(rising[i].cost, rising[j - 1].value) for i, j in zip(at, [*at[1:], len(rising)], strict=True)
    )


def _nothing(problem: PlanningProblem) -> np.ndarray:
    return np.zeros(problem.topology.tasks, np.bool_)
