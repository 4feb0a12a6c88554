"""Origins of streams, the pace of their time, and the waits of units and feeds that follow from it (T7).  Pure."""

from __future__ import annotations

import math
from typing import Final

from spe.plan.plan import Plan, Source, Unit
from spe.stream.ids import Channel
from spe.stream.names import StreamId

#: Usual wall time from the reading of a tuple to its first SUnion, and again per further unit: batching, syncing the
#: log, the network.
NORMAL_DELAY_US: Final = 100_000


def speed_of(source: Source) -> float | None:
    """Tuple time per wall time; ∞ at full speed, None if the source is paced by rows, so that it is unknown."""
    replay = source.replay
    if replay.get("max"):
        return math.inf
    if replay.get("rate") is not None:
        return None
    return float(replay.get("speed") or 1.0)


def rows_per_s(source: Source) -> float | None:
    """Rows per second of wall time; None if unknown."""
    if (rate := source.replay.get("rate")) is not None and not source.live:
        return float(rate)
    made, speed = source.reader.get("rate"), speed_of(source)
    return None if made is None or speed is None or math.isinf(speed) else float(made) * speed


def origins(plan: Plan, stream: StreamId) -> tuple[Source, ...]:
    """Sources that a stream is made from, in configuration order."""
    if stream in plan.sources:
        return (plan.sources[stream],)
    names = {s.stream for i in plan.producer[stream].inputs for s in origins(plan, i.stream)}
    return tuple(s for s in plan.sources.values() if s.stream in names)


def depth(plan: Plan, unit: Unit) -> int:
    """Units on the longest path from a source, this one included."""
    return 1 + max((depth(plan, plan.producer[i.stream]) for i in unit.inputs if i.stream in plan.producer), default=0)


def ordinary_lead_us(plan: Plan, unit: Unit) -> int:
    """The furthest that a row of a healthy input is beyond its boundary, microseconds of tuple time (B3).

    The boundary lags behind the tuples (disorder) and is rounded, and the rows of a bucket come before its end does.
    """
    sources = [s for i in unit.inputs for s in origins(plan, i.stream)]
    return plan.bucket_us + max((s.boundary_us + s.disorder_us for s in sources), default=0)


def needed_wait_us(plan: Plan, unit: Unit) -> tuple[int, int]:
    """Shortest αX of a unit: (by tuple time alone, with normal delay), microseconds of wall time (T7).

    A bucket's clock starts with the first tuple in it.  It is complete when a boundary reaches its end: d of tuple
    time later, plus the lag of the boundary behind the tuples (disorder), plus its rounding.
    """
    longest = 0.0
    for i in unit.inputs:
        for source in origins(plan, i.stream):
            speed = speed_of(source)
            if speed is not None:
                longest = max(longest, (plan.bucket_us + source.boundary_us + source.disorder_us) / speed)
    bare = math.ceil(longest)
    return bare, bare + NORMAL_DELAY_US * depth(plan, unit)


def stall_us(plan: Plan, channel: Channel) -> int:
    """Silence after which a feed is suspect (T7): three boundary intervals of wall time, or two heartbeats."""
    longest = 2.0 * plan.timing.heartbeat_us
    for source in origins(plan, channel.stream):
        speed = speed_of(source)
        if speed is not None:
            interval = source.boundary_us
            if channel.stream not in plan.sources:
                interval = max(interval, plan.bucket_us)
            longest = max(longest, 3 * interval / speed)
    return round(longest)
