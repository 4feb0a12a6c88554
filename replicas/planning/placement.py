"""Which node keeps which checkpoint, by correlated loads (rule L2)."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from replicas.planning.placement_problem import NO_NODE, CheckpointProblem
from replicas.planning.topology import Ints

_LITTLE: Final = 1e-9


def correlated(problem: CheckpointProblem) -> Ints:
    """The regret heuristic, about nodes · checkpoints · log checkpoints steps.

    The checkpoint goes next whose second-best node is worse than its best by most.  Of nodes that are equally good for
    it the one with the least checkpoint load takes it, then the one with the fewest checkpoints.  A node that would get
    more than ``most`` is passed over.  What fits nowhere comes last, and goes where the checkpoint load is least.
    """
    return _Regret(problem).run()


class _Regret:
    def __init__(self, problem: CheckpointProblem) -> None:
        many, nodes = problem.cost.shape
        self._problem = problem
        self._places = np.full(many, NO_NODE)
        self._loads = np.zeros(nodes)
        self._counts = [0] * nodes
        #: Where those that have no place yet may still go.
        self._allowed = problem.allowed.copy()
        #: Nodes of each checkpoint, the best first, and how many of them it has passed over.
        self._order = np.argsort(problem.cost, axis=1, kind="stable")
        self._passed = [0] * many
        #: By regret, the largest first; of several entries of a checkpoint the one that is in ``_regret`` counts.
        self._heap: list[tuple[float, int]] = []
        self._regret = [0.0] * many

    def run(self) -> Ints:
        for checkpoint in range(len(self._regret)):
            self._push(checkpoint)
        while self._heap:
            regret, checkpoint = heapq.heappop(self._heap)
            if self._places[checkpoint] != NO_NODE or -regret != self._regret[checkpoint]:
                continue
            equal = self._equal(checkpoint)
            room = [n for n in equal if self._fits(checkpoint, n)]
            if not equal:
                room = self._emptiest(checkpoint)
            if room:
                node = min(room, key=lambda n: (self._loads[n], self._counts[n], n))
                self._places[checkpoint] = node
                self._counts[node] += 1
                self._loads[node] += self._problem.load[checkpoint]
                self._allowed[self._problem.neighbours[checkpoint], node] = False
                for other in self._problem.neighbours[checkpoint].tolist():
                    self._push(other)
            elif equal:
                self._passed[checkpoint] = 1 + int(np.flatnonzero(self._order[checkpoint] == equal[-1])[0])
                self._push(checkpoint)
        return self._places

    def _push(self, checkpoint: int) -> None:
        two = [float(self._problem.cost[checkpoint, n]) for n, _ in zip(self._left(checkpoint), range(2))]
        self._regret[checkpoint] = two[1] - two[0] if len(two) == 2 else np.inf if two else -np.inf
        heapq.heappush(self._heap, (-self._regret[checkpoint], checkpoint))

    def _left(self, checkpoint: int) -> Iterator[int]:
        """Where it may still go, the best first."""
        nodes = self._order[checkpoint, self._passed[checkpoint] :].tolist()
        return (n for n in nodes if self._allowed[checkpoint, n])

    def _equal(self, checkpoint: int) -> list[int]:
        """The best nodes that are left, all equally good."""
        costs, left = self._problem.cost[checkpoint], list(self._left(checkpoint))
        return [n for n in left if costs[n] <= costs[left[0]] + _LITTLE]

    def _fits(self, checkpoint: int, node: int) -> bool:
        return bool(self._loads[node] + self._problem.load[checkpoint] <= self._problem.most + _LITTLE)

    def _emptiest(self, checkpoint: int) -> list[int]:
        able = np.flatnonzero(self._allowed[checkpoint]).tolist()
        return sorted(able, key=lambda n: (self._loads[n], self._problem.cost[checkpoint, n]))[:1]


class Relocation(NamedTuple):
    """A checkpoint that is to lie elsewhere, by indices of the problem; ``source`` may be NO_NODE."""

    checkpoint: int
    source: int
    target: int


def relocations(problem: CheckpointProblem, now: Ints, epsilon: float) -> list[Relocation]:
    """Moves of checkpoints, the best gain first, until the score is at most ``epsilon`` above the heuristic's (L2).

    First come those that lie where they may not, or nowhere.
    """
    goal = correlated(problem)
    places = now.copy()
    for checkpoint in np.flatnonzero(places != NO_NODE).tolist():
        if not problem.allowed[checkpoint, places[checkpoint]]:
            places[checkpoint] = NO_NODE
    goal = _alike(problem, places, goal)
    relocations: list[Relocation] = []
    while True:
        differ = np.flatnonzero((places != goal) & (goal != NO_NODE))
        # Two that may not meet change places in two steps: the second waits until the first has gone.
        free = [k for k in differ.tolist() if not (places[problem.neighbours[k]] == goal[k]).any()] or differ.tolist()
        lost = [k for k in free if places[k] == NO_NODE]
        if not lost and (not free or problem.score(places) <= problem.score(goal) + epsilon + _LITTLE):
            return relocations
        gains = [
            (np.inf if places[k] == NO_NODE else problem.cost[k, places[k]]) - problem.cost[k, goal[k]] for k in free
        ]
        moved = free[int(np.argmax(gains))]
        relocations.append(Relocation(moved, int(now[moved]), int(goal[moved])))
        places[moved] = goal[moved]


def _alike(problem: CheckpointProblem, places: Ints, goal: Ints) -> Ints:
    """The goal, with copies of one partition exchanged so that as many as possible stay: a copy is like the other."""
    goal = goal.copy()
    for checkpoint in range(len(goal)):
        for other in problem.neighbours[checkpoint].tolist():
            if (
                problem.partition[checkpoint] == problem.partition[other]
                and goal[other] == places[checkpoint] != goal[checkpoint]
            ):
                goal[checkpoint], goal[other] = goal[other], goal[checkpoint]
    return goal
