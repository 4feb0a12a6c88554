"""Feeds take turns, so that heartbeats are answered between long pulls."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, cast

import pytest
import trio

from replicas.link.connection import Connection
from replicas.link.signal import Signal
from replicas.producer.feed import LONG_NS, Accepted, Feeds
from replicas.producer.subscription import Subscription
from spe.runtime.env import Clock
from spe.stream.batch import Boundary
from spe.stream.names import Kind
from spe.stream.schema import Schema
from spe.wire.messages.feeds import Subscribed

PULLS = 20


class Producer:
    """A clock, subscriptions whose pulls take a time on it, and connections that take anything."""

    def __init__(self, pull_ns: int) -> None:
        self.events: list[str] = []
        self._pull_ns = pull_ns
        self._now_ns = 0

    def step_ns(self) -> int:
        return self._now_ns

    def pull(self, max_bytes: int) -> list[Boundary]:
        self.events.append("pull")
        self._now_ns += self._pull_ns
        return [Boundary(Kind.STABLE, len(self.events), 0)]

    async def send_bytes(self, data: bytes) -> None:
        await trio.lowlevel.checkpoint()


class Turns(trio.abc.Instrument):
    """Notes each turn of the loop: heartbeats that have arrived are answered in the next one."""

    def __init__(self, events: list[str]) -> None:
        self._events = events

    def before_io_wait(self, timeout: float) -> None:
        self._events.append("turn")


@pytest.mark.parametrize("count", [1, 4, 30])
async def test_heartbeats_are_answered_between_long_pulls(count: int) -> None:
    producer: Any = Producer(10 * LONG_NS)
    feeds = Feeds(cast("Clock", producer), 1 << 20)
    opened = Accepted(cast("Subscribed", None), cast("Subscription", producer), Schema.of(n="int64"), Signal())
    async with trio.open_nursery() as nursery:
        for _ in range(count):
            nursery.start_soon(feeds.run, cast("Connection", producer), opened)
        trio.lowlevel.add_instrument(turns := Turns(producer.events))
        while producer.events.count("pull") < PULLS:
            await trio.lowlevel.checkpoint()
        trio.lowlevel.remove_instrument(turns)
        nursery.cancel_scope.cancel()
    events = producer.events
    assert ("pull", "pull") not in set(pairwise(events))


async def test_each_feed_has_its_turn() -> None:
    pulls: list[int] = []

    class Numbered(Producer):
        def __init__(self, number: int) -> None:
            super().__init__(0)
            self._number = number

        def pull(self, max_bytes: int) -> list[Boundary]:
            pulls.append(self._number)
            clock._now_ns += 10 * LONG_NS
            return super().pull(max_bytes)

    clock: Any = Producer(0)
    feeds = Feeds(cast("Clock", clock), 1 << 20)
    async with trio.open_nursery() as nursery:
        for number in range(4):
            one: Any = Numbered(number)
            opened = Accepted(cast("Subscribed", None), cast("Subscription", one), Schema.of(n="int64"), Signal())
            nursery.start_soon(feeds.run, cast("Connection", one), opened)
        while len(pulls) < 4 * PULLS:
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    assert min(map(pulls.count, range(4))) >= PULLS // 2
