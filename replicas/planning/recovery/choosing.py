"""Chooses partitions whose recovery completes the most valuable queries (rule O3): three ways without a solver.

A query counts when all of it runs (Su and Zhou, DEBS 2021, section 5).  The choice is a knapsack whose items share
parts: a partition is paid for once, whatever number of queries needs it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from replicas.planning.topology import Bools, Floats, Ints
from spe.errors import ConfigError

#: Number of failed queries up to which all unions are tried: 2^20 of them take about a second.
MOST_UNIONS: Final = 20
#: Maximum of starts times queries squared; all pairs of up to 24 queries are within it.
_MOST_WORK: Final = 200_000
#: Number of queries near the limit of the choice that are chosen again, exactly.
_CORE: Final = 16
#: Loads are shares of a core: smaller differences are ignored.
LITTLE: Final = 1e-9


@dataclass(frozen=True, eq=False)
class Shortage:
    """Missing partitions of queries, and the room for them.

    Attributes:
      needs: [queries, partitions]; missing partitions of each query, at least one.
      priority: [queries]; value of each complete query.
      cost: [partitions]; shares of a core.
      depth: [partitions]; length of the longest path from a source.
      room: shares of a core, of all nodes together.
    """

    needs: Bools
    priority: Floats
    cost: Floats
    depth: Ints
    room: float

    def value(self, chosen: Bools) -> float:
        """Returns the value of the queries that these partitions complete.  ``chosen``: [partitions]."""
        return float(self.priority[~(self.needs & ~chosen).any(axis=1)].sum())

    @cached_property
    def shares(self) -> Floats:
        """[partitions]; cost divided by the number of queries that lack it.

        The paper counts the queries that are not chosen yet.  That is the same number: while a partition is not chosen,
        no query that needs it is.
        """
        return np.asarray(self.cost / np.maximum(self.needs.sum(axis=0), 1))


@dataclass(frozen=True, eq=False)
class Unions:
    """Every union of queries' missing partitions: row ``i`` is that of the queries whose bits are set in ``i``.

    Attributes:
      value: [2^queries]; sum of the queries' priorities.
    """

    needs: Bools
    value: Floats

    @classmethod
    def of(cls, needs: Bools, priority: Floats) -> Unions:
        value = np.zeros(1)
        for worth in priority.tolist():
            value = np.concatenate([value, value + worth])
        return cls(needs, value)

    def sums(self, amount: Floats) -> Floats:
        """Returns [2^queries]; sum of an amount of each partition over each union, a shared partition counting once."""
        queries = len(self.needs)
        who = self.needs.T.astype(np.int64) @ (1 << np.arange(queries))
        inside = np.bincount(who, amount, 1 << queries)
        for bit in range(queries):  # [set]: of partitions that no query outside the set needs
            halves = inside.reshape(-1, 2, 1 << bit)
            halves[:, 1] += halves[:, 0]
        return np.asarray(inside[-1] - inside[::-1])

    def members(self, row: int) -> Bools:
        """Returns [partitions]."""
        chosen = (row >> np.arange(len(self.needs))) & 1 == 1
        return np.asarray(self.needs[chosen].any(axis=0))


def dp(short: Shortage) -> Bools:
    """Returns the best choice, from all unions of queries: O(2^queries).

    The paper's algorithm 3 grows the same sets by cost.  Its line 8 intersects needs; that is a misprint.

    Raises:
      ConfigError: more than ``MOST_UNIONS`` queries.
    """
    queries = len(short.needs)
    if queries > MOST_UNIONS:
        raise ConfigError(
            [f"dp is for at most {MOST_UNIONS} failed queries, here are {queries}; expected best-density"]
        )
    unions = Unions.of(short.needs, short.priority)
    cost = unions.sums(short.cost)
    fits = np.flatnonzero(cost <= short.room + LITTLE)
    best = fits[unions.value[fits] >= unions.value[fits].max() - LITTLE]
    return unions.members(int(best[cost[best].argmin()]))


def best_density(short: Shortage) -> Bools:
    """Takes the densest queries, then improves the choice among the 16 least certain ones until that gains nothing.

    These are the chosen ones of least density and the others of most; all other choices stay.  The paper ends before.
    """
    best = densest(short)
    density = short.priority / np.maximum(short.needs @ short.shares, LITTLE)
    by_density = np.argsort(density, kind="stable")
    while True:
        whole = np.asarray(~(short.needs & ~best).any(axis=1))
        chosen, others = by_density[whole[by_density]], by_density[~whole[by_density]]
        some = max(_CORE // 2, _CORE - len(others))
        core = np.r_[chosen[:some], others[::-1][: _CORE - min(some, len(chosen))]]
        fixed = short.needs[np.setdiff1d(chosen, core)].any(axis=0)
        left = short.room - float(short.cost[fixed].sum())
        improved = fixed | dp(Shortage(short.needs[core] & ~fixed, short.priority[core], short.cost, short.depth, left))
        if short.value(improved) <= short.value(best) + LITTLE:
            return best
        best = improved


def densest(short: Shortage) -> Bools:
    """Extends every feasible query and every feasible pair by the densest query that still fits (algorithm 4).

    The paper starts from the densest single query only.  Density is priority by ``shares`` of partitions not chosen.
    Of very many queries the densest starts are tried.
    """
    needs = short.needs.astype(np.float64)
    chosen = _starts(short)
    while True:
        lacking = (~chosen).astype(np.float64)
        extra = lacking @ (needs * short.cost).T
        share = lacking @ (needs * short.shares).T
        whole = lacking @ needs.T == 0
        left = short.room - chosen @ short.cost
        fits = ~whole & (extra <= left[:, None] + LITTLE)
        density = np.where(fits, short.priority / np.maximum(share, LITTLE), 0.0)
        best = density.argmax(axis=1)
        grows = np.flatnonzero(density[np.arange(len(best)), best] > 0)
        if not len(grows):
            break
        chosen[grows] |= short.needs[best[grows]]
    value, cost = whole @ short.priority, chosen @ short.cost
    return np.asarray(chosen[np.lexsort((cost, -np.round(value, 9)))[0]])


def operator_centric(short: Shortage) -> Bools:
    """Takes partitions in topological order, the cheapest first, each that fits: the paper's comparison."""
    chosen = np.zeros(len(short.cost), np.bool_)
    left = short.room
    for partition in np.lexsort((short.cost, short.depth)).tolist():
        if short.needs[:, partition].any() and short.cost[partition] <= left + LITTLE:
            chosen[partition] = True
            left -= float(short.cost[partition])
    return chosen


def _starts(short: Shortage) -> Bools:
    """Returns [starts, partitions]: nothing, feasible queries and pairs; of too many the densest, single ones first."""
    queries = len(short.needs)
    most = max(1, _MOST_WORK // max(1, queries) ** 2)
    order = np.argsort(-short.priority / np.maximum(short.needs @ short.shares, LITTLE), kind="stable")
    singles = short.needs[order]
    first, second = np.triu_indices(queries, 1)
    nearest = np.argsort(first + second, kind="stable")[: max(0, most - queries)]
    pairs = singles[first[nearest]] | singles[second[nearest]]
    starts = np.vstack([np.zeros((1, len(short.cost)), np.bool_), singles, pairs])[: most + 1]
    return np.asarray(starts[starts @ short.cost <= short.room + LITTLE])
