"""How late a result may be while X and its shares change (rules T7, X5).  Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from spe.plan.plan import Plan
from spe.stream.ids import Channel, PartitionId
from spe.stream.times import BEFORE_TIME, END_OF_TIME

#: (time, share of X from then on), microseconds; None: it has no role for the partition.
ShareStep = tuple[int, int | None]


class SharesInForce:
    """X of the SUnions of each partition, on each node, over time.

    A result is late if it takes longer than kX: the sum, over the units on the slowest path, of the
    longest share of X that was in force at any node of the unit while the result was in transit.

    Args:
      steps: by partition, the share steps of each node that has ever had a role for it, in the order of their times;
        the first step also holds for the time before it.
    """

    def __init__(self, plan: Plan, steps: Mapping[PartitionId, Iterable[Sequence[ShareStep]]]) -> None:
        self._plan = plan
        self._steps = {id: [_merged(each) for each in nodes if each] for id, nodes in steps.items()}
        #: Times at which a share changes.
        self.changes: Final = sorted({at for nodes in self._steps.values() for each in nodes for at, _ in each[1:]})
        self._known: dict[tuple[Channel, int, int], int | None] = {}

    def bound_us(self, channel: Channel, from_us: int = BEFORE_TIME, to_us: int = END_OF_TIME) -> int | None:
        """kX of a channel from all shares in force in an interval; None: no share of a unit on the path is known."""
        if channel.stream in self._plan.sources:
            return 0
        key = channel, bisect_right(self.changes, from_us), bisect_right(self.changes, to_us)
        if key not in self._known:
            self._known[key] = self._bound_us(channel, from_us, to_us)
        return self._known[key]

    def _bound_us(self, channel: Channel, from_us: int, to_us: int) -> int | None:
        partition = self._plan.maker_of(channel)
        own = max(
            (us for steps in self._steps.get(partition, ()) for us in _within(steps, from_us, to_us)), default=None
        )
        ways = [
            self.bound_us(c, from_us, to_us) for c in self._plan.unit[partition.unit].channels_in(partition.partition)
        ]
        before = [us for us in ways if us is not None]
        return None if own is None or len(before) < len(ways) else own + max(before, default=0)

    def entered_us(self, channel: Channel, at_us: int, late_us: Callable[[int], int] = lambda us: us) -> int | None:
        """kX of a tuple that enters at a time: it covers all shares in force while the tuple may be in transit.

        Args:
          late_us: maps kX to the longest transit time; changes within that time count too.
        """
        return self._grown(channel, at_us, late_us)[-1]

    def entries(self, channel: Channel) -> list[tuple[int, int]]:
        """The same as steps: (time, kX of tuples that enter from then on); [] if no share is known."""
        steps: list[tuple[int, int]] = []
        at_us: int | None = BEFORE_TIME
        while at_us is not None:
            grown = self._grown(channel, at_us, lambda us: us)
            if (bound_us := grown[-1]) is not None and (not steps or steps[-1][1] != bound_us):
                steps.append((at_us, bound_us))
            # kX can change at a change of a share, and where such a change comes within the transit time.
            reaches = {0, *(us for us in grown if us is not None)}
            at_us = min((c - us for c in self.changes for us in reaches if c - us > at_us), default=None)
        return steps

    def _grown(self, channel: Channel, at_us: int, late_us: Callable[[int], int]) -> list[int | None]:
        """Bounds, each from the shares in force during the one before, until they no longer grow."""
        bounds = [self.bound_us(channel, at_us, at_us)]
        while (us := bounds[-1]) is not None and (more := self.bound_us(channel, at_us, at_us + late_us(us))) != us:
            bounds.append(more)
        return bounds


def _merged(steps: Sequence[ShareStep]) -> list[ShareStep]:
    merged: list[ShareStep] = []
    for at, us in steps:
        if not merged or merged[-1][1] != us:
            merged.append((at, us))
    return merged


def _within(steps: Sequence[ShareStep], from_us: int, to_us: int) -> Iterable[int]:
    """Shares in force at any moment of an interval, its end included."""
    for place, (at, us) in enumerate(steps):
        begins = BEFORE_TIME if not place else at
        ends = steps[place + 1][0] if place + 1 < len(steps) else END_OF_TIME
        if us is not None and begins <= to_us and ends > from_us:
            yield us
