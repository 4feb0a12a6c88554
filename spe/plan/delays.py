"""How tuple time runs against the wall clock in a run, and how late a result may be.  Pure."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Final

from spe.plan.directory import Directory
from spe.plan.plan import Plan, Source, Watermark
from spe.plan.timing import origins
from spe.stream.ids import PartitionId
from spe.stream.names import StreamId, UnitId


@dataclass(frozen=True, slots=True)
class ReplayEpoch:
    """The relation of tuple time to wall time.  In the default, for live sources by the clock, they are equal.

    Attributes:
      event_start_us: tuple time at which a replay began.
      wall_start_us: wall time at which the replay began.
      speed: microseconds of tuple time per microsecond of wall time; above 0.
    """

    event_start_us: int = 0
    wall_start_us: int = 0
    speed: float = 1.0

    def created_us(self, time_us: int) -> int:
        """Wall time at which tuple time reached ``time_us``."""
        return self.wall_start_us + round((time_us - self.event_start_us) / self.speed)

    def reached_at(self, wall_us: int) -> int:
        """Tuple time reached at a wall time, rounded up."""
        return self.event_start_us + ceil((wall_us - self.wall_start_us) * self.speed)


_CLOCK: Final = ReplayEpoch()


def source_epoch(source: Source, begun_us: int | None) -> ReplayEpoch | None:
    """The epoch of a source; None if its tuple time does not follow the wall clock (at a rate, at full speed, or live).

    Args:
      begun_us: wall time at which the replay began; None: not known.
    """
    if source.live:
        # S7: with watermark by data, event times may be any distance from the clock.
        return _CLOCK if source.watermark is Watermark.CLOCK or source.idle_to_now else None
    replay = source.replay
    if replay.get("max") or replay.get("rate") is not None or begun_us is None:
        return None
    speed = float(replay.get("speed") or 1.0)
    origin = replay.get("origin_us", source.reader.get("start"))
    if origin is None:
        # A generator without a start begins when the replay does; for a file without an origin it is unknown.
        if source.reader.get("kind") != "generator":
            return None
        origin = begun_us
    if origin == begun_us and speed == 1.0:
        return _CLOCK
    return ReplayEpoch(int(origin), begun_us, speed)


def epochs(plan: Plan, begun_us: int | None) -> dict[str, ReplayEpoch]:
    """Returns the epoch of each output stream whose sources have the same one."""
    by_stream = {}
    for stream in plan.query.outputs:
        its = {source_epoch(s, begun_us) for s in origins(plan, stream)}
        if len(its) == 1 and (epoch := its.pop()) is not None:
            by_stream[str(stream)] = epoch
    return by_stream


def longest_path(plan: Plan, stream: StreamId) -> int:
    """k: SUnions on the longest path from a source to a stream."""
    if stream in plan.sources:
        return 0
    return 1 + max(longest_path(plan, i.stream) for i in plan.producer[stream].inputs)


def delay_bound_us(plan: Plan, directory: Directory, stream: StreamId) -> int:
    """kX: the longest time that a new result of a stream may take; the sum of X along the slowest path."""
    return sum(us for _, us in slowest_way(plan, directory, stream))


def slowest_way(plan: Plan, directory: Directory, stream: StreamId) -> list[tuple[UnitId, int]]:
    """The units on the slowest path to a stream, in order, with the longest share of X among the replicas of each."""
    if stream in plan.sources:
        return []
    unit = plan.producer[stream]
    nodes = [n for p in range(unit.partitions) for n in directory.placement[PartitionId(unit.id, p)]]
    share_us = max(directory.share(plan, unit.id, n).x_us for n in nodes)
    ways = [slowest_way(plan, directory, i.stream) for i in unit.inputs]
    return [*max(ways, key=lambda way: sum(us for _, us in way)), (unit.id, share_us)]
