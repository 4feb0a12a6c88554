"""Input and output of every planner, and the value of a plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from replicas.planning.fidelity import Running, completeness, fidelity
from replicas.planning.topology import Bools, Floats, Ints, Topology
from spe.errors import ConfigError

#: Cost of a replica that no node could run.
NOWHERE: Final = 1e9


@dataclass(frozen=True)
class Failure:
    """Tasks that fail together, and the probability relative to the other planned failures."""

    tasks: frozenset[int]
    probability: float = 1.0


@dataclass(frozen=True)
class PlanningProblem:
    """Input of a planner.

    Attributes:
      budget: for active replicas, in the unit of ``costs``.
      costs: of an active replica of each task; 1 each by default.
      failures: to plan for; by default the worst case, everything that can fail at once (PPA definition 2).
    """

    topology: Topology
    budget: float
    costs: Sequence[float] | None = None
    failures: Sequence[Failure] = ()

    def __post_init__(self) -> None:
        tasks = self.topology.tasks
        problems = []
        if self.budget < 0:
            problems.append(f"the budget is at least 0, got {self.budget:g}")
        if self.costs is not None and (len(self.costs) != tasks or min(self.costs) <= 0):
            problems.append(f"costs are {tasks} numbers above 0, one per task")
        elif self.budget > self.most:
            problems.append(
                f"a budget of {self.budget:g} is beyond all tasks, whose replicas cost {self.most:g} together"
            )
        if any(f.probability <= 0 for f in self.failures):
            problems.append("the probability of a failure is above 0")
        if any(not f.tasks <= set(range(tasks)) for f in self.failures):
            problems.append(f"tasks that fail are numbers from 0 to {tasks - 1}")
        if problems:
            raise ConfigError(problems)

    @cached_property
    def cost(self) -> Floats:
        """Cost per task."""
        return np.ones(self.topology.tasks) if self.costs is None else np.asarray(self.costs, np.float64)

    @property
    def most(self) -> float:
        """Total cost of all possible replicas."""
        return float(self.cost[self.topology.fails & (self.cost < NOWHERE)].sum())

    @cached_property
    def candidates(self) -> Ints:
        """Tasks that a replica can help."""
        fails = self.topology.fails.copy()
        if self.failures:
            fails &= self.failed.any(axis=0)
        return np.flatnonzero(fails)

    @cached_property
    def failed(self) -> Bools:
        """Failed tasks, [failures, tasks]."""
        if not self.failures:
            return self.topology.fails[None, :].copy()
        failed = np.zeros((len(self.failures), self.topology.tasks), np.bool_)
        for at, failure in enumerate(self.failures):
            failed[at, list(failure.tasks)] = True
        return failed & self.topology.fails

    @cached_property
    def weights(self) -> Floats:
        """Weights of the failures; 1 together."""
        weights = np.array([f.probability for f in self.failures] or [1.0])
        return np.asarray(weights / weights.sum())

    def alive(self, plan: Bools) -> list[Bools]:
        """Returns, per failure, the tasks that live while it lasts."""
        return [plan | ~failed for failed in self.failed]

    def values(self, plans: Bools) -> Floats:
        """Returns the expected output fidelity during a failure, a row per plan."""
        parts = [w * fidelity(self.topology, plans | ~failed) for w, failed in zip(self.weights, self.failed)]
        return np.asarray(np.sum(parts, axis=0))

    def start(self, plan: Bools | None = None) -> Growing:
        """Returns a plan that grows."""
        return Growing(self, np.zeros(self.topology.tasks, np.bool_) if plan is None else plan)


class Growing:
    """A plan, its cost, and its value with some more tasks."""

    def __init__(self, problem: PlanningProblem, plan: npt.NDArray[np.bool_]) -> None:
        self.problem = problem
        self.plan = plan.copy()
        #: Remaining budget.
        self.left = problem.budget - float(problem.cost[plan].sum())
        self._runs = [Running(problem.topology, alive) for alive in problem.alive(plan)]

    @property
    def value(self) -> float:
        return float(sum(w * r.value for w, r in zip(self.problem.weights, self._runs, strict=True)))

    def with_each(self, additions: Sequence[Ints]) -> Floats:
        """Returns the value with each of several additions alone."""
        weights = self.problem.weights
        return np.asarray(sum(w * r.values(additions) for w, r in zip(weights, self._runs, strict=True)))

    def fed(self) -> list[Bools]:
        """Returns, per failure, the tasks that give output while it lasts."""
        return [run.fed() for run in self._runs]

    def add(self, tasks: Ints) -> None:
        self.left -= float(self.problem.cost[tasks[~self.plan[tasks]]].sum())
        self.plan[tasks] = True
        for run in self._runs:
            run.set(tasks)


@dataclass(frozen=True)
class ReplicationPlan:
    """Tasks with an active replica.

    Attributes:
      algorithm: name of the planner.
      tasks: in ascending order.
      value: expected output fidelity during a failure.
      completeness: IC in the worst case.
      cost: of all its replicas.
      bound: upper bound of the value of all plans; None: nothing is proved.
    """

    algorithm: str
    tasks: tuple[int, ...]
    value: float
    completeness: float
    cost: float
    bound: float | None = None

    @classmethod
    def of(cls, algorithm: str, problem: PlanningProblem, plan: Bools, bound: float | None = None) -> ReplicationPlan:
        tasks = np.flatnonzero(plan)
        assert problem.cost[tasks].sum() <= problem.budget * (1 + 1e-6) + 1e-6, f"{algorithm} keeps the budget"
        alive = (plan | ~problem.topology.fails)[None, :]
        return cls(
            algorithm,
            tuple(tasks.tolist()),
            float(problem.values(plan[None, :])[0]),
            float(completeness(problem.topology, alive)[0]),
            float(problem.cost[tasks].sum()),
            bound,
        )

    @property
    def gap(self) -> float | None:
        """Largest possible improvement by another plan."""
        return None if self.bound is None else max(0.0, self.bound - self.value)
