"""Tasks one by one, by what the loss of each alone would do (PPA algorithm 2).

Cheap, but it ignores what tasks are worth together: it may spend a whole budget without completing one tree.
"""

from __future__ import annotations

import numpy as np

from replicas.planning.fidelity import Running
from replicas.planning.search import PlanningProblem, ReplicationPlan


def greedy(problem: PlanningProblem) -> ReplicationPlan:
    """See the module.  With costs: what does not fit any more is left out."""
    candidates = problem.candidates
    alone = Running(problem.topology, np.ones(problem.topology.tasks, np.bool_))
    values = alone.values([[task] for task in candidates.tolist()], alive=False)
    plan, left = np.zeros(problem.topology.tasks, np.bool_), problem.budget
    for task in candidates[np.argsort(values, kind="stable")]:
        if problem.cost[task] <= left:
            plan[task] = True
            left -= float(problem.cost[task])
    return ReplicationPlan.of("greedy", problem, plan)
