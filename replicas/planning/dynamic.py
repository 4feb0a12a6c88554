"""Tries all unions of minimal complete trees within the budget (PPA algorithm 1): the optimum, for few trees only.

In the worst case only whole trees give output, so no other plan is better.  The paper lists the same candidates by
size; here each tree is added to all existing candidates, which makes each of them once.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from replicas.planning.fidelity import as_masks
from replicas.planning.search import PlanningProblem, ReplicationPlan
from replicas.planning.trees import count_trees, trees
from spe.errors import ConfigError

#: Number of candidates beyond which another planner must be used.
MOST_CANDIDATES: Final = 2_000_000
_BLOCK: Final = 4096


def dynamic(problem: PlanningProblem, *, most: int = MOST_CANDIDATES) -> ReplicationPlan:
    """Returns the best plan.

    Raises:
      ConfigError: there are too many trees or candidates, or failures other than the worst case are planned for.
    """
    if problem.failures:
        raise ConfigError(["dynamic programming knows the worst case only: use the exact planner, or structure-aware"])
    topology = problem.topology
    if (count := count_trees(topology)) > most:
        raise ConfigError([f"{count:,} trees are too many for dynamic programming ({most:,} at most)"])
    candidates = {frozenset[int]()}
    for tree in set(trees(topology)):
        for plan in list(candidates):
            union = plan | tree
            if sum(problem.cost[list(union)]) <= problem.budget:
                candidates.add(union)
        if len(candidates) > most:
            raise ConfigError([f"more than {most:,} candidates are too many for dynamic programming"])
    ordered = sorted(candidates, key=lambda plan: (len(plan), sorted(plan)))
    best, value = ordered[0], -1.0
    for first in range(0, len(ordered), _BLOCK):
        block = ordered[first : first + _BLOCK]
        values = problem.values(as_masks(block, topology.tasks))
        at = int(np.argmax(values))
        if values[at] > value + 1e-12:
            best, value = block[at], float(values[at])
    return ReplicationPlan.of("dynamic", problem, as_masks([best], topology.tasks)[0], value)
