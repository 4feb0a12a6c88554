"""Moves that bring every node within its caps, with the fewest predicted seconds (rule L5).

For up to 60 partitions on 12 nodes a mixed-integer program finds them, if SciPy is installed.  Otherwise they are found
one by one: the move off the fullest node that relieves it most per second.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from replicas.planning.program import solver
from replicas.planning.topology import Bools, Floats, Ints
from spe.errors import ConfigError

#: Maximum number of partitions and nodes for the program.
MOST_PARTITIONS: Final = 60
MOST_NODES: Final = 12
#: Maximum number of branches of the solver: a number, not a time, so that equal problems have equal answers.
_BRANCHES: Final = 10_000
#: Differences of loads, relative to a cap, that are ignored: the solver's tolerance.
_LITTLE: Final = 1e-6


@dataclass(frozen=True)
class ReliefProblem:
    """Replicas on nodes, their needs, and the nodes where they could run.

    Attributes:
      home: node of each replica, [replicas].
      partition: partition of each replica; two of one are never on one node, and only one of them moves.
      need: of CPU and memory, [measures, replicas].
      cap: limit of each node, [measures, nodes]; infinite: no limit.
      seconds: duration of the move of each replica to each node, above 0, [replicas, nodes]; infinite: impossible.
      together: sets of moves (replica, node) that cannot all be made.
    """

    home: Ints
    partition: Ints
    need: Floats
    cap: Floats
    seconds: Floats
    together: tuple[frozenset[tuple[int, int]], ...] = ()

    @cached_property
    def may(self) -> Bools:
        """Allowed nodes of each replica at the end, [replicas, nodes]."""
        may = np.isfinite(self.seconds)
        may[np.arange(len(self.home)), self.home] = True
        return may

    @cached_property
    def costs(self) -> Floats:
        """Seconds of each move, and 0 for a replica that stays."""
        costs = np.where(np.isfinite(self.seconds), self.seconds, 0.0)
        costs[np.arange(len(self.home)), self.home] = 0.0
        return costs

    def load(self, where: Ints) -> Floats:
        """Returns the load of each node, [measures, nodes]."""
        return np.array([np.bincount(where, need, self.cap.shape[1]) for need in self.need])

    def excess(self, where: Ints) -> Floats:
        """Returns the load of each node beyond its cap, relative to the cap, [measures, nodes]; 0: none."""
        over = np.maximum((self.load(where) - self.cap) / self.unit, 0.0)
        return np.where(over > _LITTLE, over, 0.0)

    def beyond(self, where: Ints) -> list[int]:
        """Returns nodes that are beyond a cap."""
        return [n for n, over in enumerate(self.excess(where).T) if over.any()]

    def fill(self, where: Ints) -> Floats:
        """Returns the fullest measure of each node, relative to its cap, [nodes]."""
        return np.asarray((self.load(where) / np.maximum(self.cap, _LITTLE)).max(axis=0))

    def moves(self, where: Ints) -> list[tuple[int, int]]:
        """Returns (replica, node) of the moves."""
        return [(r, int(where[r])) for r in np.flatnonzero(where != self.home).tolist()]

    def total(self, where: Ints) -> float:
        """Returns the seconds of all moves."""
        return float(self.costs[np.arange(len(where)), where].sum())

    def valid(self, where: Ints) -> bool:
        """Can these moves be made?  Ignores caps."""
        pairs = set(zip(self.partition.tolist(), where.tolist(), strict=True))
        moves = set(self.moves(where))
        moved = [int(self.partition[r]) for r, _ in moves]
        apart = len(pairs) == len(where) and len(set(moved)) == len(moved)
        may = bool(self.may[np.arange(len(where)), where].all())
        return may and apart and not any(not_all <= moves for not_all in self.together)

    @property
    def unit(self) -> Floats:
        """Unit of each load, [measures, nodes]: the cap, or 1 if that is 0 or infinite."""
        return np.where(np.isfinite(self.cap) & (self.cap > 0), self.cap, 1.0)


def relieve(problem: ReliefProblem, *, exact: bool | None = None) -> Ints:
    """Returns the node of each replica at the end.  Nodes that cannot be brought within their caps come close.

    No node goes beyond a cap, or further beyond it.

    Args:
      exact: solve the program; None: if it is small enough and SciPy is there.

    Raises:
      ConfigError: ``exact`` is true, and SciPy is not installed.
    """
    if exact is None:
        exact = _installed() and len(set(problem.partition.tolist())) <= MOST_PARTITIONS
        exact = exact and problem.cap.shape[1] <= MOST_NODES
    if not problem.beyond(problem.home):
        return problem.home.copy()
    solution = _Program(problem).run() if exact else None
    return _greedy(problem) if solution is None else solution


def _installed() -> bool:
    try:
        solver()
    except ConfigError:
        return False
    return True


class _Program:
    """Binary variables: a replica ends on a node; after them the remaining excess of each full node over each cap."""

    def __init__(self, problem: ReliefProblem) -> None:
        self._problem = problem
        self._at = {(int(r), int(n)): v for v, (r, n) in enumerate(zip(*np.nonzero(problem.may), strict=True))}
        over = problem.excess(problem.home)
        self._over = [(int(m), int(n), float(over[m, n])) for m, n in zip(*np.nonzero(over), strict=True)]
        self._rows = [*self._each_once(), *self._apart(), *self._caps()]

    def run(self) -> Ints | None:
        """Returns the final nodes; None: the solver gives up."""
        seconds = np.array([self._problem.costs[pair] for pair in self._at] + [0.0] * len(self._over))
        none = [0.0] * len(self._over)
        solution, impossible = self._solve(seconds, none)
        if not impossible:
            return solution
        left = np.array([0.0] * len(self._at) + [1.0] * len(self._over))
        least, _ = self._solve(left, [most for *_, most in self._over])
        if least is None:
            return None
        excess = self._problem.excess(least)
        solution, _ = self._solve(seconds, [float(excess[m, n]) for m, n, _ in self._over])
        return least if solution is None else solution

    def _solve(self, cost: Floats, excess: list[float]) -> tuple[Ints | None, bool]:
        """Returns the final node of each replica, if found; and whether it is known that there is no solution."""
        from scipy.sparse import csr_array

        optimize = solver()
        entries = [(row, v, f) for row, (terms, _, _) in enumerate(self._rows) for v, f in terms.items()]
        rows, columns, values = zip(*entries, strict=True)
        shape = (len(self._rows), len(cost))
        result = optimize.milp(
            cost,
            integrality=np.array([1] * len(self._at) + [0] * len(self._over)),
            bounds=optimize.Bounds(0, np.array([1.0] * len(self._at) + excess)),
            constraints=optimize.LinearConstraint(
                csr_array((values, (rows, columns)), shape=shape),
                [least for _, least, _ in self._rows],
                [most for _, _, most in self._rows],
            ),
            options={"node_limit": _BRANCHES, "mip_rel_gap": 0.0},
        )
        if result.x is None:
            return None, result.status == 2
        where = self._problem.home.copy()
        for (replica, node), variable in self._at.items():
            if result.x[variable] > 0.5:
                where[replica] = node
        return where, False

    def _each_once(self) -> Iterator[tuple[dict[int, float], float, float]]:
        for replica in range(len(self._problem.home)):
            yield {v: 1.0 for (r, _), v in self._at.items() if r == replica}, 1.0, 1.0

    def _apart(self) -> Iterator[tuple[dict[int, float], float, float]]:
        moving_to: dict[tuple[int, int], dict[int, float]] = {}
        for (replica, node), variable in self._at.items():
            moving_to.setdefault((int(self._problem.partition[replica]), node), {})[variable] = 1.0
        moving: dict[int, dict[int, float]] = {}
        for (replica, node), variable in self._at.items():
            if node != self._problem.home[replica]:
                moving.setdefault(int(self._problem.partition[replica]), {})[variable] = 1.0
        for terms in (*moving_to.values(), *moving.values()):
            if len(terms) > 1:
                yield terms, 0.0, 1.0
        for moves in self._problem.together:
            if all(move in self._at for move in moves):
                yield {self._at[move]: 1.0 for move in moves}, 0.0, len(moves) - 1.0

    def _caps(self) -> Iterator[tuple[dict[int, float], float, float]]:
        problem = self._problem
        extra = {(m, n): len(self._at) + at for at, (m, n, _) in enumerate(self._over)}
        for measure, caps in enumerate(problem.cap):
            for node, cap in enumerate(caps.tolist()):
                if not np.isfinite(cap):
                    continue
                unit = cap if cap > 0 else 1.0
                terms = {v: float(problem.need[measure, r]) / unit for (r, n), v in self._at.items() if n == node}
                if (measure, node) in extra:
                    terms[extra[measure, node]] = -1.0
                yield terms, -np.inf, cap / unit


def _greedy(problem: ReliefProblem) -> Ints:
    """Moves, from the fullest node, what relieves it most per second; of equals to the emptiest node."""
    where = problem.home.copy()
    nodes = problem.cap.shape[1]
    runs = np.zeros((int(problem.partition.max()) + 1, nodes), np.bool_)
    runs[problem.partition, problem.home] = True
    moved = np.zeros(len(runs), np.bool_)
    while True:
        fill = problem.fill(where)
        for node in sorted(problem.beyond(where), key=lambda n: (-fill[n], n)):
            replicas = np.flatnonzero((where == node) & ~moved[problem.partition])
            score = _scores(problem, where, node, replicas)
            score[runs[problem.partition[replicas]]] = 0.0
            _forbid(problem, where, replicas, score)
            if score.size and score.max() > 0:
                equal = zip(*np.nonzero(score == score.max()), strict=True)
                at, target = min(equal, key=lambda option: (fill[option[1]], option))
                chosen = replicas[at]
                where[chosen] = target
                runs[problem.partition[chosen], [node, target]] = False, True
                moved[problem.partition[chosen]] = True
                break
        else:
            return where


def _scores(problem: ReliefProblem, where: Ints, node: int, replicas: Ints) -> Floats:
    """Returns how much each move of a node's replica relieves it per second; 0: it does not fit."""
    load, unit = problem.load(where), problem.unit
    need = problem.need[:, replicas]
    over = (load - problem.cap) / unit
    left = over[:, node, None] - need / unit[:, node, None]
    relief = (np.maximum(over[:, node, None], 0.0) - np.maximum(left, 0.0)).sum(axis=0)
    filled = (load[:, None, :] + need[:, :, None] - problem.cap[:, None, :]) / unit[:, None, :]
    fits = (filled <= _LITTLE).all(axis=0) & np.isfinite(problem.seconds[replicas])
    return np.where(fits, relief[:, None] / problem.seconds[replicas], 0.0)


def _forbid(problem: ReliefProblem, where: Ints, replicas: Ints, score: Floats) -> None:
    """Sets the scores of moves to 0 that cannot be made together with those made."""
    made = set(problem.moves(where))
    for moves in problem.together:
        if len(last := moves - made) == 1:
            (replica, node) = next(iter(last))
            score[replicas == replica, node] = 0.0
