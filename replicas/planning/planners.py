"""The planners by name."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

from replicas.planning.dynamic import dynamic
from replicas.planning.exact import exact
from replicas.planning.greedy import greedy
from replicas.planning.search import PlanningProblem, ReplicationPlan
from replicas.planning.structure import structure_aware


class Algorithm(StrEnum):
    """Algorithms that choose the tasks to replicate."""

    STRUCTURE_AWARE = "structure-aware"
    EXACT = "exact"
    DYNAMIC = "dynamic"
    GREEDY = "greedy"


def make_plan(
    problem: PlanningProblem, algorithm: Algorithm, *, now: Callable[[], float], seconds: float = 10.0
) -> ReplicationPlan:
    """Returns a plan within the budget.

    Args:
      now, seconds: a clock, and the time limit of the exact planner.

    Raises:
      ConfigError: the algorithm cannot plan this; has the reason.
    """
    if algorithm is Algorithm.EXACT:
        return exact(problem, now=now, seconds=seconds)
    planner = {
        Algorithm.STRUCTURE_AWARE: structure_aware,
        Algorithm.DYNAMIC: dynamic,
        Algorithm.GREEDY: greedy,
    }[algorithm]
    return planner(problem)
