"""Adds tasks one by one, by the loss that each alone would cause (PPA algorithm 2).

Cheap, but it ignores the value of tasks together: it may spend a whole budget without completing one tree.
"""

from __future__ import annotations

import numpy as np

from replicas.planning.fidelity import Running
from replicas.planning.search import PlanningProblem, ReplicationPlan


def greedy(problem: PlanningProblem) -> ReplicationPlan:
    """Returns the plan.  With costs: tasks that no longer fit are skipped."""
    candidates = problem.candidates
    alone = Running(problem.topology, np.ones(problem.topology.tasks, np.bool_))
    values = alone.values([[task] for task in candidates.tolist()], alive=False)
    plan, left = np.zeros(problem.topology.tasks, np.bool_), problem.budget
    for task in candidates[np.argsort(values, kind="stable")]:
        if problem.cost[task] <= left:
            plan[task] = True
            left -= float(problem.cost[task])
    return ReplicationPlan.of("greedy", problem, plan)
