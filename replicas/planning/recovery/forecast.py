"""How a recovery goes if nodes arrive as expected, and how much better any other could be."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from replicas.planning.recovery.choosing import LITTLE, MOST_UNIONS, Unions
from replicas.planning.recovery.goals import CompleteQueries, RecoveryGoal
from replicas.planning.recovery.placing import PlannedInstall
from replicas.planning.recovery.schedule import RecoverySchedule
from replicas.planning.topology import Bools, Floats

#: Partitions of which all sets are looked at.
_MOST_SETS: Final = 14


class NodeArrival(NamedTuple):
    """A node that can be used after some seconds; capacity in cores."""

    after: float
    node: str
    capacity: float = 1.0


class ForecastInstall(NamedTuple):
    """An install, when it is ordered, and when the partition runs; seconds."""

    ordered: float
    back: float
    install: PlannedInstall


@dataclass(frozen=True)
class RecoveryForecast:
    """A recovery played ahead.

    Attributes:
      points: (seconds, value from then on), ascending.
      installs: in the order in which they are ordered.
      rooms: (seconds, room of all nodes together, number of nodes) from the start, whenever a node came; what
        recovered partitions take is not taken off.
    """

    points: tuple[tuple[float, float], ...]
    installs: tuple[ForecastInstall, ...]
    rooms: tuple[tuple[float, float, int], ...]

    def area(self, until: float) -> float:
        """Value integrated over time, from 0 to ``until`` seconds."""
        return _area(self.points, until)


def forecast(schedule: RecoverySchedule, arrivals: Iterable[NodeArrival]) -> RecoveryForecast:
    """Plays a schedule until nothing more happens.

    A node works on one partition after the other; loads stay as they are.  The schedule is used up.
    """
    events: list[tuple[float, int, str, NodeArrival | ForecastInstall]] = [
        (a.after, 1, a.node, a) for a in arrivals
    ]  # what is back at the moment of an arrival comes first
    heapq.heapify(events)
    points, installs = [(0.0, schedule.value)], []
    start = [r for r in schedule.room().values() if r > 0]
    rooms = [(0.0, sum(start), len(start))]
    free: dict[str, float] = {}
    now = 0.0
    while True:
        for install in schedule.step():
            begins = max(now, free.get(install.node, now))
            free[install.node] = begins + float(schedule.work[install.partition])
            installs.append(ForecastInstall(now, free[install.node], install))
            heapq.heappush(events, (free[install.node], 0, f"{len(installs):09d}", installs[-1]))
        if not events:
            return RecoveryForecast(tuple(points), tuple(installs), tuple(rooms))
        now, _, _, event = heapq.heappop(events)
        if isinstance(event, NodeArrival):
            before = sum(schedule.room().values())
            schedule.came(event.node, event.capacity)
            added = sum(schedule.room().values()) - before
            rooms.append((now, rooms[-1][1] + added, rooms[-1][2] + 1))
        else:
            schedule.back(event.install.partition, event.install.node)
        if schedule.value != points[-1][1]:
            points.append((now, schedule.value))


def best_area(
    goal: RecoveryGoal,
    running: Bools,
    cost: Floats,
    work: Floats,
    rooms: Sequence[tuple[float, float, int]],
    until: float,
) -> float | None:
    """What no order of recovery can exceed, however well it knows what comes; None: too many to look at.

    At each moment the best set that fits into the room of that moment, nodes taken together, and that all nodes
    together could have worked through by then.

    Args:
      running: [partitions]; before the recovery.
      rooms: as in ``RecoveryForecast``.
    """
    found = _sets(goal, running, cost, work)
    if found is None:
        return None
    value, costs, works = found
    area = 0.0
    done = 0.0
    for at, (begin, room, nodes) in enumerate(rooms):
        end = min(until, rooms[at + 1][0] if at + 1 < len(rooms) else until)
        if end <= begin:
            continue
        fits = np.flatnonzero(costs <= room + LITTLE)
        order = fits[np.argsort(works[fits], kind="stable")]
        best = np.maximum.accumulate(value[order])
        #: From when on each set could be done.
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
    """Value, cost and work of each set that may be the best."""
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


def _area(points: Sequence[tuple[float, float]], until: float) -> float:
    ends = [at for at, _ in points[1:]] + [until]
    return sum(
        value * max(0.0, min(end, until) - min(at, until)) for (at, value), end in zip(points, ends, strict=True)
    )
