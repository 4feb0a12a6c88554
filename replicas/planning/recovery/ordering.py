"""Orders chosen partitions (rule O4): one extension at a time, by value per second of work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from replicas.planning.recovery.choosing import LITTLE
from replicas.planning.recovery.goals import RecoveryGoal
from replicas.planning.topology import Bools, Floats

#: Number of partitions, or extensions, up to which all orders are compared.
MOST_EXACT: Final = 14
#: Seconds of an order without work: among equals the one with fewer partitions comes first.
_MOMENT: Final = 1e-3


def in_order(goal: RecoveryGoal, alive: Bools, chosen: Bools, work: Floats) -> list[Bools]:
    """Returns disjoint sets, together all of ``chosen``, in the order with the largest area under the value.

    Exact up to :data:`MOST_EXACT` partitions; beyond them as :func:`by_extensions`.  Sets that complete nothing come
    last.  One worker is assumed that does one partition after the other.
    """
    if chosen.sum() > MOST_EXACT:
        return by_extensions(goal, alive, chosen, work)
    singles = list(np.eye(len(chosen), dtype=np.bool_)[chosen])
    return _raising(goal, alive, best_order(goal, alive, singles, work + _MOMENT))


def by_extensions(goal: RecoveryGoal, alive: Bools, chosen: Bools, work: Floats) -> list[Bools]:
    """Returns the best order of up to :data:`MOST_EXACT` extensions; of more, the most valuable per second come first.

    For complete queries the former is the best of all orders.  For fidelity it is not: an extension has the cheapest of
    the ways to feed a partition.
    """
    work = work + _MOMENT
    sets = goal.extensions(alive, chosen)
    if len(sets) <= MOST_EXACT:
        return _disjoint(best_order(goal, alive, sets, work), chosen)
    running, ordered = alive.copy(), []
    for grown in goal.growth(alive, chosen, work):
        inside = goal.extensions(running, grown) if grown.sum() > 2 else []
        if 1 < len(inside) <= MOST_EXACT:  # the densest may consist of several
            ordered += _disjoint(best_order(goal, running, inside, work), grown)
        else:
            ordered.append(grown)
        running |= grown
    return _disjoint(ordered, chosen)


def area(goal: RecoveryGoal, alive: Bools, ordered: Sequence[Bools], work: Floats) -> float:
    """Returns value times seconds of work while these sets come back one after the other."""
    running = np.vstack([alive, *(alive | row for row in np.logical_or.accumulate(ordered))])
    spent = np.diff(running @ work)
    return float(goal.values(running)[:-1] @ spent)


def _raising(goal: RecoveryGoal, alive: Bools, ordered: Sequence[Bools]) -> list[Bools]:
    """Joins partitions in their order to sets that each raise the value; those that raise nothing are the last set."""
    if not ordered:
        return []
    running = np.vstack([alive, alive | np.logical_or.accumulate(ordered)])
    values = goal.values(running)
    ends = [*(np.flatnonzero(np.diff(values) > LITTLE) + 1).tolist(), len(ordered)]
    starts = [0, *ends[:-1]]
    return [np.logical_or.reduce(ordered[at:end]) for at, end in zip(starts, ends, strict=True) if end > at]


def _disjoint(ordered: Sequence[Bools], whole: Bools) -> list[Bools]:
    """Returns the addition of each to those before it; the rest of the whole at the end."""
    left, additions = whole.copy(), []
    for set_ in [*ordered, whole]:
        if (new := set_ & left).any():
            additions.append(new)
            left &= ~new
    return additions


def best_order(goal: RecoveryGoal, alive: Bools, sets: Sequence[Bools], work: Floats) -> list[Bools]:
    """Returns the order with the largest area under the value: a program over subsets, O(n 2^n).

    Args:
      sets: at most some fifteen; they may overlap, and a partition that two of them share is worked on once.
    """
    many = len(sets)
    unions = np.zeros((1, len(alive)), np.bool_)
    for set_ in sets:
        unions = np.vstack([unions, unions | set_])
    value, spent = goal.values(unions | alive), unions @ work
    members = np.arange(1 << many)
    size = np.bitwise_count(members) if many else np.zeros(1, np.int64)
    area, last = np.full(1 << many, -np.inf), np.zeros(1 << many, np.int64)
    area[0] = 0.0
    for many_in in range(1, many + 1):
        rows = members[size == many_in]
        for bit in range(many):
            mine = rows[rows >> bit & 1 == 1]
            before = mine & ~(1 << bit)
            candidate = area[before] + value[before] * (spent[mine] - spent[before])
            better = candidate >= area[mine]  # of equals the later one comes last
            area[mine[better]], last[mine[better]] = candidate[better], bit
    order = []
    row = (1 << many) - 1
    while row:
        order.append(int(last[row]))
        row &= ~(1 << int(last[row]))
    return [sets[at] for at in reversed(order)]
