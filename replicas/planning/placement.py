"""Which node keeps which checkpoint (rules L2, L3): at random, evenly, by correlated loads, and the best."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from replicas.planning.placement_problem import NO_NODE, CheckpointProblem
from replicas.planning.program import solver
from replicas.planning.topology import Ints

_LITTLE: Final = 1e-9


def baseline(problem: CheckpointProblem, random: np.random.Generator) -> Ints:
    """Each checkpoint on any node where it may be: what others are compared with."""
    return _drawn(problem, random, len(problem.load))


def even(problem: CheckpointProblem, random: np.random.Generator) -> Ints:
    """The same, with equally many on each node as far as that is possible."""
    return _drawn(problem, random, -(-len(problem.load) // problem.cost.shape[1]))


def _drawn(problem: CheckpointProblem, random: np.random.Generator, most: int) -> Ints:
    """Drawn one by one; where all nodes have ``most``, one that is there goes elsewhere if it can."""
    places = np.full(len(problem.load), NO_NODE)

    def able(checkpoint: int) -> list[int]:
        taken = places[problem.neighbours[checkpoint]]
        return [n for n in random.permutation(len(problem.allowed[checkpoint])).tolist() if may(checkpoint, n, taken)]

    def may(checkpoint: int, node: int, taken: Ints) -> bool:
        return bool(problem.allowed[checkpoint, node]) and node not in taken

    def room(checkpoint: int) -> list[int]:
        return [n for n in able(checkpoint) if (places == n).sum() < most]

    for checkpoint in random.permutation(len(places)).tolist():
        nodes = able(checkpoint)
        if not nodes:
            continue
        if not (free := room(checkpoint)):
            there = [(n, other) for n in nodes for other in np.flatnonzero(places == n).tolist()]
            elsewhere = next(((n, other, to[0]) for n, other in there if (to := room(other))), None)
            if elsewhere is not None:
                node, other, places[other] = elsewhere
                free = [node]
        places[checkpoint] = free[0] if free else min(nodes, key=lambda n: int((places == n).sum()))
    return places


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
    """Moves of checkpoints, the best gain first, until the score is at most ``epsilon`` above the heuristic's (L3).

    First come those that lie where they may not, or nowhere.
    """
    goal = correlated(problem)
    places = now.copy()
    for checkpoint in np.flatnonzero(places != NO_NODE).tolist():
        if not problem.allowed[checkpoint, places[checkpoint]]:
            places[checkpoint] = NO_NODE
    goal = _alike(problem, places, goal)
    found: list[Relocation] = []
    while True:
        differ = np.flatnonzero((places != goal) & (goal != NO_NODE))
        # Two that may not meet change places in two steps: the second waits until the first has gone.
        free = [k for k in differ.tolist() if not (places[problem.neighbours[k]] == goal[k]).any()] or differ.tolist()
        lost = [k for k in free if places[k] == NO_NODE]
        if not lost and (not free or problem.score(places) <= problem.score(goal) + epsilon + _LITTLE):
            return found
        gains = [
            (np.inf if places[k] == NO_NODE else problem.cost[k, places[k]]) - problem.cost[k, goal[k]] for k in free
        ]
        moved = free[int(np.argmax(gains))]
        found.append(Relocation(moved, int(now[moved]), int(goal[moved])))
        places[moved] = goal[moved]


def _alike(problem: CheckpointProblem, places: Ints, goal: Ints) -> Ints:
    """The goal, with copies of one partition exchanged so that as many as possible stay: a copy is like the other."""
    goal = goal.copy()
    for checkpoint in range(len(goal)):
        for other in problem.neighbours[checkpoint].tolist():
            if problem.of[checkpoint] == problem.of[other] and goal[other] == places[checkpoint] != goal[checkpoint]:
                goal[checkpoint], goal[other] = goal[other], goal[checkpoint]
    return goal


def best(problem: CheckpointProblem, seconds: float = 10.0) -> Ints | None:
    """The placement with the least score, or the best that is found in time.

    None: no placement of all keeps to ``delta``.

    Raises:
      ConfigError: SciPy is not installed.
    """
    from scipy.sparse import csr_array

    optimize = solver()
    many, nodes = problem.cost.shape
    loads, mean = problem.load, problem.load.sum() / nodes
    rows: list[tuple[list[int], list[float], float, float]] = []  # variables, factors, from, to
    for checkpoint in range(many):
        own = [checkpoint * nodes + n for n in range(nodes)]
        rows.append((own, [1.0] * nodes, *((1.0, 1.0) if problem.allowed[checkpoint].any() else (0.0, 0.0))))
    for node in range(nodes):
        own = [k * nodes + node for k in range(many)]
        if np.isfinite(problem.delta):
            rows.append((own, loads.tolist(), mean - problem.delta, mean + problem.delta))
        pairs = zip(*np.nonzero(np.triu(problem.apart)), strict=True)
        rows += [([int(k) * nodes + node, int(j) * nodes + node], [1.0, 1.0], 0.0, 1.0) for k, j in pairs]
    at = np.repeat(np.arange(len(rows)), [len(row[0]) for row in rows])
    matrix = csr_array(
        (np.concatenate([row[1] for row in rows]), (at, np.concatenate([row[0] for row in rows]))),
        shape=(len(rows), many * nodes),
    )
    result = optimize.milp(
        problem.cost.ravel(),
        integrality=np.ones(many * nodes),
        bounds=optimize.Bounds(0, problem.allowed.ravel().astype(float)),
        constraints=optimize.LinearConstraint(matrix, [row[2] for row in rows], [row[3] for row in rows]),
        options={"time_limit": seconds, "mip_rel_gap": 0.0},
    )
    if result.x is None:
        return None
    chosen = result.x.reshape(many, nodes)
    return np.where(chosen.max(axis=1) > 0.5, chosen.argmax(axis=1), NO_NODE)
