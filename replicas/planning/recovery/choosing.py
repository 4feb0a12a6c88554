"""Which partitions to recover so that complete queries are worth most (rule O3): three ways without a solver.

A query counts when all of it runs (Su and Zhou, DEBS 2021, section 5).  To choose is a knapsack whose items share
parts: a partition is paid for once, whatever number of queries needs it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from replicas.planning.topology import Bools, Floats, Ints
from spe.errors import ConfigError

#: Failed queries of which all unions are looked at: 2^20 of them take about a second.
MOST_UNIONS: Final = 20
#: Starts times queries squared, at most; all pairs of up to 24 queries are within it.
_MOST_WORK: Final = 200_000
#: Queries that are chosen anew, exactly, among those that are nearest to being chosen or not.
_CORE: Final = 16
#: Loads are shares of a core: what lies so near is equal.
LITTLE: Final = 1e-9


@dataclass(frozen=True, eq=False)
class Shortage:
    """What queries lack, and the room for it.

    Attributes:
      needs: [queries, partitions]; what each query lacks, at least one partition.
      priority: [queries]; what each is worth when it is whole.
      cost: [partitions]; shares of a core.
      depth: [partitions]; of the longest way from a source.
      room: shares of a core, of all nodes together.
    """

    needs: Bools
    priority: Floats
    cost: Floats
    depth: Ints
    room: float

    def value(self, chosen: Bools) -> float:
        """What the queries are worth that are whole with these partitions.  ``chosen``: [partitions]."""
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
    """Every union of what queries lack: row ``i`` is that of the queries whose bits are set in ``i``.

    Attributes:
      value: [2^queries]; priorities of these queries.
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
        """[2^queries]; sum of an amount of each partition over each union, a shared partition counting once."""
        queries = len(self.needs)
        who = self.needs.T.astype(np.int64) @ (1 << np.arange(queries))
        inside = np.bincount(who, amount, 1 << queries)
        for bit in range(queries):  # [set]: of partitions that nobody outside the set needs
            halves = inside.reshape(-1, 2, 1 << bit)
            halves[:, 1] += halves[:, 0]
        return np.asarray(inside[-1] - inside[::-1])

    def members(self, row: int) -> Bools:
        """[partitions]"""
        chosen = (row >> np.arange(len(self.needs))) & 1 == 1
        return np.asarray(self.needs[chosen].any(axis=0))


def dp(short: Shortage) -> Bools:
    """The best choice, from all unions of queries: O(2^queries).

    The paper's algorithm 3 grows the same sets by cost.  Its line 8 intersects what a query needs; that is a misprint.

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
    """The densest queries, and then the best choice among the 16 of which that is least sure, until that gains nothing.

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
        found = fixed | dp(Shortage(short.needs[core] & ~fixed, short.priority[core], short.cost, short.depth, left))
        if short.value(found) <= short.value(best) + LITTLE:
            return best
        best = found


def densest(short: Shortage) -> Bools:
    """From every feasible query and every feasible pair, always the densest query that still fits (algorithm 4).

    The paper starts from the densest single query only.  Density is priority by ``shares`` of what is not chosen.
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
    """In topological order, the cheapest first, each that fits: the paper's comparison."""
    chosen = np.zeros(len(short.cost), np.bool_)
    left = short.room
    for partition in np.lexsort((short.cost, short.depth)).tolist():
        if short.needs[:, partition].any() and short.cost[partition] <= left + LITTLE:
            chosen[partition] = True
            left -= float(short.cost[partition])
    return chosen


def _starts(short: Shortage) -> Bools:
    """[starts, partitions]: nothing, single queries and pairs that fit; of too many the densest, single ones first."""
    queries = len(short.needs)
    most = max(1, _MOST_WORK // max(1, queries) ** 2)
    order = np.argsort(-short.priority / np.maximum(short.needs @ short.shares, LITTLE), kind="stable")
    singles = short.needs[order]
    one, other = np.triu_indices(queries, 1)
    nearest = np.argsort(one + other, kind="stable")[: max(0, most - queries)]
    pairs = singles[one[nearest]] | singles[other[nearest]]
    found = np.vstack([np.zeros((1, len(short.cost)), np.bool_), singles, pairs])[: most + 1]
    return np.asarray(found[found @ short.cost <= short.room + LITTLE])
