"""Sources that are apart in tuple time though nothing has failed: their results are rightly tentative.

A bucket waits αX for the slowest input (S5).  Sources that are paced by rows, or at different speeds, may be further
apart than that, and so may one that is down when its replay should begin, since it replays from its own start; and
live ones, if one by data is silent (S7), or rows are ahead of the clock by which their source promises.  While they
are, nothing is claimed of the units that read them, as while a fault disturbs them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from consistency.checking.node_settings import InForce
from spe.plan.directory import Directory
from spe.plan.plan import Plan, Unit
from spe.plan.timing import origins, speed_of
from spe.stream.batch import Int64Array
from spe.stream.history import Event, FaultBegan, FaultEnded, History, Sent
from spe.stream.names import StreamId
from spe.stream.times import BEFORE_TIME, END_OF_TIME, floor_to

#: The kind of disturbance.
APART = "apart"

_Span = tuple[int, int]


def apart(history: History, plan: Plan, directory: Directory, in_force: InForce) -> list[Event]:
    """Returns the times in which sources are apart, as faults of them and their readers, sorted by time."""
    faults: list[FaultBegan | FaultEnded] = []
    sent: dict[StreamId, list[Sent]] = {s: [] for s in plan.sources}
    for event in history:
        if isinstance(event, Sent) and event.channel.stream in sent:
            sent[event.channel.stream].append(event)
    for unit in plan.units:
        streams = {s.stream: s for i in unit.inputs for s in origins(plan, i.stream)}
        speeds = {speed_of(s) for s in streams.values()}
        live = any(s.live for s in streams.values())
        tolerated_us = _tolerated_us(directory, in_force, unit)
        if not live and len(speeds) == 1 and (speed := speeds.pop()) is not None and math.isfinite(speed):
            begun_us = [events[0].at_us for events in map(sent.__getitem__, streams) if events]
            if max(begun_us, default=0) - min(begun_us, default=0) <= tolerated_us:
                continue
        nodes = {str(n) for events in directory.placement if events.unit == unit.id for n in directory.hosts(events)}
        hosts = tuple(sorted({f"source:{s}" for s in streams} | nodes))
        spans = _spans([sent[s] for s in streams], plan.bucket_us, tolerated_us, history.end_us)
        for from_us, to_us in _merged(sorted(spans)):
            number = -1 - len(faults)  # a number that no fault of the run has
            faults += [FaultBegan(from_us, number, APART, hosts), FaultEnded(to_us, number)]
    return list(sorted(faults, key=lambda e: e.at_us))


def _tolerated_us(directory: Directory, in_force: InForce, unit: Unit) -> int:
    """Returns half of the time that its replicas wait for a bucket: the rest is for other delays."""
    replicas = [
        (partition, n)
        for partition in directory.placement
        if partition.unit == unit.id
        for n in directory.hosts(partition)
    ]
    return in_force.shortest_alpha_x_us(replicas) // 2


def _spans(sources: list[list[Sent]], bucket_us: int, tolerated_us: int, end_us: int) -> Iterator[_Span]:
    """Yields the times in which a source has not finished a bucket that began longer ago than is tolerated."""
    events = sorted((e for source in sources for e in source), key=lambda e: e.at_us)
    at = [e.at_us for e in events]
    reached: Int64Array = np.maximum.accumulate([max(e.high_us, e.frontier_us) for e in events] or [BEFORE_TIME])
    for source in sources:
        known = [(0, BEFORE_TIME), *((e.at_us, e.frontier_us) for e in source)]
        for (from_us, frontier), (to_us, _) in zip(known, [*known[1:], (end_us, 0)]):
            if frontier >= END_OF_TIME:
                break
            bucket = BEFORE_TIME + 1 if frontier <= BEFORE_TIME else floor_to(frontier, bucket_us)
            begun = int(reached.searchsorted(bucket))
            if begun < len(at) and (late_us := max(from_us, at[begun] + tolerated_us)) < to_us:
                yield late_us, to_us


def _merged(spans: list[_Span]) -> list[_Span]:
    merged: list[_Span] = []
    for from_us, to_us in spans:
        if merged and from_us <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(to_us, merged[-1][1]))
        else:
            merged.append((from_us, to_us))
    return merged
