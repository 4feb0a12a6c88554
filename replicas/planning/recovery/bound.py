"""Upper bound of a recovery's value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from replicas.planning.exact import exact
from replicas.planning.recovery.choosing import LITTLE, MOST_UNIONS, Unions
from replicas.planning.recovery.goals import CompleteQueries, OutputFidelity, RecoveryGoal
from replicas.planning.recovery.program import best_choice
from replicas.planning.topology import Bools, Floats

#: Number of partitions up to which all sets are tried.
_MOST_SETS: Final = 14


def best_area(
    goal: RecoveryGoal,
    running: Bools,
    cost: Floats,
    work: Floats,
    rooms: Sequence[tuple[float, float, int]],
    until: float,
    *,
    now: Callable[[], float],
    seconds: float,
) -> float:
    """Returns an upper bound for every order of recovery, with any knowledge of the future.

    At each moment the best set that fits into the room of that moment, nodes taken together, and that all nodes
    together could have completed by then.  If there are too many sets to try, the bound for all that fit,
    as if installs took no time.

    Args:
      running: [partitions]; before the recovery.
      rooms: as in ``RecoveryForecast``.
      now, seconds: a clock, and the time limit of proofs.

    Raises:
      ConfigError: there are too many sets, and SciPy is not installed.
    """
    sets = _sets(goal, running, cost, work)
    if sets is None:
        stages = [(room, _length(rooms, at, until)) for at, (_, room, _) in enumerate(rooms)]
        share = seconds / len(stages)
        return sum(_bound(goal, running, cost, room, now, share) * length for room, length in stages if length)
    return _area_of_sets(sets, rooms, until)


def _area_of_sets(
    sets: tuple[Floats, Floats, Floats], rooms: Sequence[tuple[float, float, int]], until: float
) -> float:
    """Returns the bound, where each set was tried: the best that fits and can be complete, at each moment."""
    value, costs, works = sets
    area = done = 0.0
    for at, (begin, room, nodes) in enumerate(rooms):
        end = begin + _length(rooms, at, until)
        if end <= begin:
            continue
        fits = np.flatnonzero(costs <= room + LITTLE)
        order = fits[np.argsort(works[fits], kind="stable")]
        best = np.maximum.accumulate(value[order])
        #: Earliest time of each set.
        since = (
            begin + np.maximum(0.0, works[order] - done) / nodes
            if nodes
            else np.where(works[order] <= done + LITTLE, begin, np.inf)
        )
        since = np.clip(since, begin, end)
        area += float((best * np.diff(np.r_[since, end])).sum())
        done += nodes * (end - begin)
    return area


def _sets(goal: RecoveryGoal, running: Bools, cost: Floats, work: Floats) -> tuple[Floats, Floats, Floats] | None:
    """Returns value, cost and work of each set that may be the best."""
    missing = np.flatnonzero(~running)
    if isinstance(goal, CompleteQueries):
        short = goal.shortage(running, ~running, cost, 0.0)
        if len(short.needs) <= MOST_UNIONS:
            unions = Unions.of(short.needs, short.priority)
            base = float(goal.values(running[None, :])[0])
            return base + unions.value, unions.sums(cost), unions.sums(work)
    if len(missing) > _MOST_SETS:
        return None
    rows = (np.arange(1 << len(missing))[:, None] >> np.arange(len(missing))) & 1 == 1
    alive = np.repeat(running[None, :], len(rows), axis=0)
    alive[:, missing] = rows
    return goal.values(alive), rows @ cost[missing], rows @ work[missing]


def _length(rooms: Sequence[tuple[float, float, int]], at: int, until: float) -> float:
    """Returns the seconds from one change of the room to the next."""
    return max(0.0, min(until, rooms[at + 1][0] if at + 1 < len(rooms) else until) - rooms[at][0])


def _bound(
    goal: RecoveryGoal, running: Bools, cost: Floats, room: float, now: Callable[[], float], seconds: float
) -> float:
    """Returns an upper bound of the value of all sets that fit into a room."""
    if isinstance(goal, CompleteQueries):
        short = goal.shortage(running, ~running, cost, room)
        return float(goal.values(running[None, :])[0]) + best_choice(short, [room], seconds).bound
    assert isinstance(goal, OutputFidelity)
    proved = exact(goal.problem(running, ~running, cost, room), now=now, seconds=seconds)
    return proved.value if proved.bound is None else proved.bound
