"""The cost of a failure at a client: how late new results come, and how many of them are tentative."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from spe.plan.directory import Directory
from spe.plan.plan import Plan
from spe.plan.timing import origins
from spe.stream.batch import Batch, Boundary
from spe.stream.history import Delivered, History, Sent
from spe.stream.ids import Channel
from spe.stream.names import Kind
from spe.stream.times import BEFORE_TIME


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost at one client, over all channels that it reads.

    Attributes:
      delays_us: for each progress of a source, the time until something at the client covered it (a
        result with its t_max or a boundary of either kind); sorted.
      never: number that were never covered.
      tentative, stable: number of tuples delivered.
    """

    delays_us: tuple[int, ...]
    never: int
    tentative: int
    stable: int

    def quantile_us(self, share: float) -> int:
        """Returns the delay that ``share`` of all do not exceed; 0 without any."""
        return self.delays_us[min(len(self.delays_us) - 1, int(share * len(self.delays_us)))] if self.delays_us else 0


def cost(history: History, plan: Plan, directory: Directory, client: str) -> Cost:
    """Returns the cost of a run for a client of the plan."""
    channels = [Channel(s, p) for s in directory.clients[client].reads for p in range(plan.partitions_of(s))]
    delivered: dict[Channel, list[Delivered]] = {channel: [] for channel in channels}
    sent: dict[Channel, list[Sent]] = {}
    for event in history:
        if isinstance(event, Delivered) and event.consumer == f"client:{client}" and event.channel in delivered:
            delivered[event.channel].append(event)
        elif isinstance(event, Sent) and event.high_us > BEFORE_TIME:
            sent.setdefault(event.channel, []).append(event)
    delays: list[int] = []
    never = 0
    for channel, events in delivered.items():
        at, high = _covered(events)
        for source in origins(plan, channel.stream):
            for made in sent.get(Channel(source.stream, 0), ()):
                place = bisect_left(high, made.high_us)
                if place == len(high):
                    never += 1
                else:
                    delays.append(max(0, at[place] - made.at_us))
    everything = [e for events in delivered.values() for e in events]
    tentative, stable = (_tuples(everything, kind) for kind in (Kind.TENTATIVE, Kind.STABLE))
    return Cost(tuple(sorted(delays)), never, tentative, stable)


def _covered(events: Iterable[Delivered]) -> tuple[list[int], list[int]]:
    """Returns (time, progress) at each advance of a client on a channel."""
    at: list[int] = []
    high: list[int] = []
    for event in events:
        element = event.element
        if isinstance(element, Batch) and len(element):
            reach = int(np.maximum.reduce(element.rows.t_max))
        elif isinstance(element, Boundary):
            reach = element.time
        else:
            continue
        if not high or reach > high[-1]:
            at.append(event.at_us)
            high.append(reach)
    return at, high


def _tuples(events: Iterable[Delivered], kind: Kind) -> int:
    return sum(len(e.element) for e in events if isinstance(e.element, Batch) and e.element.kind is kind)
