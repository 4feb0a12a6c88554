"""Placements of checkpoints that ours is compared with (CIKM 2015): at random, evenly, and the best."""

from __future__ import annotations

import numpy as np

from replicas.planning.placement_problem import NO_NODE, CheckpointProblem
from replicas.planning.program import solver
from replicas.planning.topology import Ints


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
