"""Chooses partitions to recover exactly, with the room of each node: a mixed-integer program (rule O3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from replicas.planning.program import solver
from replicas.planning.recovery.choosing import Shortage
from replicas.planning.topology import Bools, Floats


@dataclass(frozen=True, eq=False)
class ProvedChoice:
    """A choice with a proof.

    Attributes: the chosen partitions, and an upper bound of all choices.
    """

    partitions: Bools
    bound: float


def best_choice(short: Shortage, rooms: Sequence[float], seconds: float = 10.0) -> ProvedChoice:
    """Maximises the priorities of whole queries: y_i <= sum_n x_pn <= 1, and sum_p c_p x_pn <= room_n.

    x_pn: partition p runs on node n.  y_i: query i is whole; it needs no integrality, because the x have it.

    Args:
      rooms: of each node; ``short.room`` is ignored.
      seconds: time limit; the best choice so far is returned, with its bound.

    Raises:
      ConfigError: SciPy is not installed.
    """
    optimize = solver()
    used = np.flatnonzero(short.needs.any(axis=0))
    queries, parts, nodes = len(short.needs), len(used), len(rooms)
    nothing = np.zeros(len(short.cost), np.bool_)
    if not queries or not nodes:
        return ProvedChoice(nothing, 0.0)
    matrix, limits = _constraints(short.needs[:, used], short.cost[used], rooms)
    result = optimize.milp(
        np.r_[-short.priority, np.zeros(parts * nodes)],
        integrality=np.r_[np.zeros(queries), np.ones(parts * nodes)],
        bounds=optimize.Bounds(0, 1),
        constraints=optimize.LinearConstraint(matrix, ub=limits),
        options={"time_limit": max(seconds, 0.01), "mip_rel_gap": 0.0},
    )
    dual = getattr(result, "mip_dual_bound", None)
    bound = -float(dual) if dual is not None and np.isfinite(dual) else float(short.priority.sum())
    if result.x is None:
        return ProvedChoice(nothing, bound)
    chosen = nothing.copy()
    chosen[used] = result.x[queries:].reshape(parts, nodes).sum(axis=1) > 0.5
    return ProvedChoice(chosen, max(bound, short.value(chosen)))


def _constraints(needs: Bools, cost: Floats, rooms: Sequence[float]) -> tuple[Any, Floats]:
    """Returns the matrix over all y_i, then all x_pn, and the upper limit of each of its rows."""
    from scipy.sparse import block_array, csr_array, eye_array, kron

    (queries, parts), nodes = needs.shape, len(rooms)
    who, what = np.nonzero(needs)
    rows = np.arange(len(who))
    y_of = csr_array((np.ones(len(who)), (rows, who)), shape=(len(who), queries))
    p_of = csr_array((np.ones(len(who)), (rows, what)), shape=(len(who), parts))
    anywhere = kron(eye_array(parts), np.ones((1, nodes)))
    matrix = block_array(
        [[y_of, -(p_of @ anywhere)], [None, anywhere], [None, kron(cost[None, :], eye_array(nodes))]], format="csr"
    )
    return matrix, np.r_[np.zeros(len(who)), np.ones(parts), np.maximum(rooms, 0.0)]
