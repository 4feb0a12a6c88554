"""All unions of minimal complete trees that the budget pays for (PPA algorithm 1): the optimum, for few trees only.

In the worst case only whole trees give output, so no other plan is better.  The paper lists the same candidates by
their size; here a tree at a time is added to all that there are, which makes each of them once.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from replicas.planning.fidelity import as_masks
from replicas.planning.search import PlanningProblem, ReplicationPlan
from replicas.planning.trees import count_trees, trees
from spe.errors import ConfigError

#: Candidates beyond which another planner has to be used.
MOST_CANDIDATES: Final = 2_000_000
_BLOCK: Final = 4096


def dynamic(problem: PlanningProblem, *, most: int = MOST_CANDIDATES) -> ReplicationPlan:
    """The best plan.

    Raises:
      ConfigError: there are too many trees or candidates, or failures other than the worst case are planned for.
    """
    if problem.failures:
        raise ConfigError(["dynamic programming knows the worst case only: use the exact planner, or structure-aware"])
    topology = problem.topology
    if (count := count_trees(topology)) > most:
        raise ConfigError([f"{count:,} trees are too many for dynamic programming ({most:,} at most)"])
    found = {frozenset[int]()}
    for tree in set(trees(topology)):
        for plan in list(found):
            union = plan | tree
            if sum(problem.cost[list(union)]) <= problem.budget:
                found.add(union)
        if len(found) > most:
            raise ConfigError([f"more than {most:,} candidates are too many for dynamic programming"])
    ordered = sorted(found, key=lambda plan: (len(plan), sorted(plan)))
    best, value = ordered[0], -1.0
    for first in range(0, len(ordered), _BLOCK):
        block = ordered[first : first + _BLOCK]
        values = problem.values(as_masks(block, topology.tasks))
        at = int(np.argmax(values))
        if values[at] > value + 1e-12:
            best, value = block[at], float(values[at])
    return ReplicationPlan.of("dynamic", problem, as_masks([best], topology.tasks)[0], value)
