"""Simulates a recovery in which nodes arrive as expected."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from replicas.planning.recovery.placing import PlannedInstall, RecoveryPlan, RecoveryProblem
from replicas.planning.recovery.schedule import RecoverySchedule


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
    """A simulated recovery.

    Attributes:
      points: (seconds, value from then on), ascending.
      installs: in the order in which they are ordered.
      rooms: (seconds, room of all nodes together, number of nodes) from the start, whenever a node came; the load of
        recovered partitions is not subtracted.
    """

    points: tuple[tuple[float, float], ...]
    installs: tuple[ForecastInstall, ...]
    rooms: tuple[tuple[float, float, int], ...]

    def area(self, until: float) -> float:
        """Integrates the value over time, from 0 to ``until`` seconds."""
        return _area(self.points, until)


def forecast(schedule: RecoverySchedule, arrivals: Iterable[NodeArrival]) -> RecoveryForecast:
    """Simulates a schedule until nothing more happens.

    A node works on one partition after the other; loads stay as they are.  The schedule is used up.
    """
    events: list[tuple[float, int, str, NodeArrival | ForecastInstall]] = [
        (a.after, 1, a.node, a) for a in arrivals
    ]  # partitions that are back at the moment of an arrival come first
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
        if (value := schedule.value) != points[-1][1]:
            if points[-1][0] == now:
                points.pop()
            points.append((now, value))


def outlook(
    problem: RecoveryProblem, plan: RecoveryPlan, under_way: Mapping[int, str]
) -> tuple[tuple[float, float], ...]:
    """Returns (seconds, value from then on), ascending, if nothing comes or goes; a node does one install at a time.

    Args:
      under_way: partitions that are being installed, and where.
    """
    free: dict[str, float] = {}
    ends: list[tuple[float, int]] = []
    for partition, node in [*under_way.items(), *((i.partition, i.node) for i in plan.installs)]:
        free[node] = free.get(node, 0.0) + float(problem.work[partition])
        ends.append((free[node], partition))
    ends.sort()
    rows = np.repeat(problem.alive[None, :], len(ends) + 1, axis=0)
    rows[0, list(under_way)] = False
    for at, (_, partition) in enumerate(ends, 1):
        rows[at] = rows[at - 1]
        rows[at, partition] = True
    points: list[tuple[float, float]] = []
    for seconds, value in zip([0.0, *(end for end, _ in ends)], problem.goal.values(rows).tolist(), strict=True):
        if points and (points[-1][0] == seconds or points[-1][1] == value):
            points[-1] = points[-1][0], value
        else:
            points.append((seconds, value))
    return tuple(points)


def _area(points: Sequence[tuple[float, float]], until: float) -> float:
    ends = [at for at, _ in points[1:]] + [until]
    return sum(
        value * max(0.0, min(end, until) - min(at, until)) for (at, value), end in zip(points, ends, strict=True)
    )
