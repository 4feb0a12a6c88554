"""The best plan with a proof, or the best one found in time with how much better another could be.

The topology is taken apart into modules (``modules``).  Each gets a *frontier*: what it is worth at most for every
cost, each point from a mixed-integer program (``program``).  Frontiers are combined along the gates; because the value
of the whole never falls when that of a module rises, the best combination is the best plan.  When time is up, frontiers
have upper points for what was not proved, and the same combination gives the bound.
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

#: Points of a frontier; costs that are no whole numbers make many.
_MOST_POINTS: Final = 1000
_LITTLE: Final = 1e-9
#: How far apart points of a frontier are in cost, against the cheapest task, where costs are no whole numbers; well
#: above the solver's tolerance.
_STEP: Final = 1e-3


@dataclass(frozen=True)
class SearchPoint:
    """What can be had for a cost; ``tasks`` are those of a plan, or nothing where the value is only a bound."""

    cost: float
    value: float
    tasks: tuple[int, ...] = ()


@dataclass(frozen=True)
class Frontier:
    """By cost: what is found, and what nothing exceeds."""

    found: tuple[SearchPoint, ...]
    bounds: tuple[SearchPoint, ...]


def exact(problem: PlanningProblem, *, now: Callable[[], float], seconds: float = 10.0) -> ReplicationPlan:
    """See the module.

    Args:
      now: a clock, seconds.
      seconds: after which the best so far is given, with the bound that is proved.

    Raises:
      ConfigError: SciPy is not installed.
    """
    solver()
    end = now() + seconds
    guess = structure_aware(problem)
    found, bound = _by_modules(problem, now, end) if not problem.failures else _whole(problem, end - now())
    value = float(problem.values(found[None, :])[0])
    if guess.value > value:
        found, value = np.isin(np.arange(len(found)), guess.tasks), guess.value
    return ReplicationPlan.of("exact", problem, found, max(bound, value))


def _whole(problem: PlanningProblem, seconds: float) -> tuple[np.ndarray, float]:
    """Several failures: what helps in one may not in another, so nothing falls apart."""
    program = LinearProgram(
        problem.topology,
        problem.topology.goal,
        given=(),
        failed=problem.failed,
        weights=problem.weights,
        cost=problem.cost,
    )
    solution = program.solve(problem.budget, seconds)
    return _nothing(problem) if solution.tasks is None else solution.tasks, solution.bound


def _by_modules(problem: PlanningProblem, now: Callable[[], float], end: float) -> tuple[np.ndarray, float]:
    modules = modules_of(problem.topology)
    given = {module.root: at for at, module in enumerate(modules)}
    frontiers: list[Frontier] = []
    for at, module in enumerate(modules):
        own = _frontier(problem, module, now, now() + (end - now()) / (len(modules) - at))
        entering = [[frontiers[given[gate]] for gate, _ in entry.gates] for entry in module.entries]
        frontiers.append(
            Frontier(
                _combined(problem, module, own.found, [[f.found for f in e] for e in entering], above=False),
                _combined(problem, module, own.bounds, [[f.bounds for f in e] for e in entering], above=True),
            )
        )
    plan = _nothing(problem)
    plan[list(frontiers[-1].found[-1].tasks)] = True
    return plan, frontiers[-1].bounds[-1].value


def _frontier(problem: PlanningProblem, module: Module, now: Callable[[], float], end: float) -> Frontier:
    """Of a module whose input is whole.  Without entries only the whole budget matters to the last one."""
    topology = problem.topology
    outside = {gate for entry in module.entries for gate, _ in entry.gates}
    goal = {module.root: 1.0} if module.root is not None else topology.goal
    program = LinearProgram(
        topology, goal, given=outside, failed=problem.failed, weights=problem.weights, cost=problem.cost
    )
    worth = _Worth(topology, module, goal)
    found = [SearchPoint(0.0, worth.of(()))]
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
        found.append(SearchPoint(cost, value, tasks))
        bounds.append(SearchPoint(cost if whole else max(0.0, cost - step), max(bound, value)))
        budget = cost - step
        if module.root is None and not module.entries:
            break
    bounds.append(SearchPoint(0.0, bound if budget >= 0 else bounds[-1].value))
    return Frontier(_best(found, problem.budget, above=False), _best(bounds, problem.budget, above=True))


class _Worth:
    """What a module gives with some tasks, all others in front of it alive."""

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
    """Own points with what comes in at each entry: the best for every cost."""
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
    found = []
    for a in left:
        for b in right:
            if a.cost + b.cost <= problem.budget + _LITTLE:
                value = a.value * b.value if times else a.value + b.value
                found.append(SearchPoint(a.cost + b.cost, value, a.tasks + b.tasks))
    return _best(found, problem.budget, above=above)


def _best(points: Sequence[SearchPoint], budget: float, *, above: bool) -> tuple[SearchPoint, ...]:
    """Those that give more than all that cost no more; of too many some, so that bounds stay above and plans below."""
    kept: list[SearchPoint] = []
    for point in sorted(points, key=lambda p: (p.cost, -p.value)):
        if point.cost <= budget + _LITTLE and (not kept or point.value > kept[-1].value):
            kept.append(point)
    if len(kept) <= _MOST_POINTS:
        return tuple(kept)
    at = np.unique(np.linspace(0, len(kept) - 1, _MOST_POINTS).round().astype(int)).tolist()
    if not above:
        return tuple(kept[i] for i in at)
    return tuple(SearchPoint(kept[i].cost, kept[j - 1].value) for i, j in zip(at, [*at[1:], len(kept)], strict=True))


def _nothing(problem: PlanningProblem) -> np.ndarray:
    return np.zeros(problem.topology.tasks, np.bool_)
