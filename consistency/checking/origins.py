"""Origins of results: when sources sent what, which replicas it reaches, and how far back operators look."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from consistency.checking.schedule import Paths
from spe.plan.plan import Plan
from spe.plan.timing import origins
from spe.stream.batch import Int64Array
from spe.stream.history import History, Sent
from spe.stream.ids import Channel, PartitionId
from spe.stream.names import StreamId
from spe.stream.times import BEFORE_TIME, END_OF_TIME


@dataclass(slots=True)
class SourceTimes:
    """Times of one source, per event: when, last id, times of its new rows, and the last promise before them.

    Attributes:
      reach: largest time or promise so far.
      over: the last one before the source ended, if it did: nothing advances time behind it.
    """

    at: Int64Array
    upto: Int64Array
    low: Int64Array
    reach: Int64Array
    over: int

    def high_at(self, at_us: int) -> int:
        """Returns the largest time that may have been sent up to a time, promises included."""
        place = int(np.searchsorted(self.at, at_us, side="right"))
        return int(self.reach[place - 1]) if place else BEFORE_TIME

    def first_at(self, times: Int64Array) -> Int64Array:
        """Returns when a row at or past each time was first sent; END_OF_TIME if none was."""
        place = np.searchsorted(self.reach, times)
        return np.where(place < len(self.at), self.at.take(place, mode="clip"), END_OF_TIME)


def source_times(history: History) -> dict[StreamId, SourceTimes]:
    events: dict[StreamId, list[Sent]] = {}
    for event in history:
        if isinstance(event, Sent):
            events.setdefault(event.channel.stream, []).append(event)
    times = {}
    for stream, ones in events.items():
        promised = np.array([BEFORE_TIME, *(e.frontier_us for e in ones)], np.int64)
        promised = np.maximum.accumulate(np.minimum(promised, END_OF_TIME - 1))
        high = np.array([e.high_us for e in ones], np.int64)
        reach = np.maximum.accumulate(np.maximum(high, promised[1:]))
        ended = reach[-1] == END_OF_TIME - 1
        times[stream] = SourceTimes(
            np.array([e.at_us for e in ones], np.int64),
            np.maximum.accumulate(np.array([e.upto_id for e in ones], np.int64)),
            promised[:-1],
            reach,
            int(reach[reach < END_OF_TIME - 1].max(initial=BEFORE_TIME)) if ended else END_OF_TIME,
        )
    return times


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of a channel's results.

    Attributes:
      sure: sources whose rows reach all replicas that the results may come from.
      some: sources whose rows reach some replica.
      makers: these replicas.
    """

    sure: frozenset[StreamId] = frozenset()
    some: frozenset[StreamId] = frozenset()
    makers: frozenset[str] = frozenset()


class Origins:
    """The origins in one world."""

    def __init__(self, plan: Plan, paths: Paths) -> None:
        self._plan = plan
        self._paths = paths
        self._known: dict[tuple[PartitionId, str], Origin] = {}

    def channel(self, host: str, channel: Channel) -> Origin:
        producers = [p for p in self._paths.producers(channel) if self._paths.through(host, channel, p)]
        if channel.stream in self._plan.sources:
            sources = frozenset([channel.stream] if producers else [])
            return Origin(sources, sources)
        partition = self._plan.maker_of(channel)
        origins = [self._replica(partition, p) for p in producers]
        if not origins:
            return Origin()
        return Origin(
            frozenset.intersection(*(origin.sure for origin in origins)),
            frozenset.union(*(origin.some for origin in origins)),
            frozenset.union(*(origin.makers for origin in origins)),
        )

    def _replica(self, partition: PartitionId, node: str) -> Origin:
        if (known := self._known.get((partition, node))) is not None:
            return known
        inputs = [(c, self.channel(node, c)) for c in self._plan.unit[partition.unit].channels_in(partition.partition)]
        lacking = {
            source.stream
            for channel, origin in inputs
            for source in origins(self._plan, channel.stream)
            if source.stream not in origin.sure
        }
        made = Origin(
            frozenset.union(*(origin.sure for _, origin in inputs)) - lacking,
            frozenset.union(*(origin.some for _, origin in inputs)),
            frozenset([f"{partition}@{node}"]).union(*(origin.makers for _, origin in inputs)),
        )
        self._known[partition, node] = made
        return made


def reaches_back_us(plan: Plan, stream: StreamId) -> int | None:
    """Returns how far before a result its contributing rows lie; None: unknown."""
    made_by = {o.name: o.spec for o in plan.query.operators}
    spec = made_by.get(stream)
    if spec is None:
        return 0
    own = spec.reach_us
    before = [reaches_back_us(plan, s) for s in spec.inputs]
    if own is None or any(us is None for us in before):
        return None
    return own + max(us for us in before if us is not None)
