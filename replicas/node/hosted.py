"""A replica with what a node keeps beside it: signals, room for input, and which of its consumers live."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from replicas.consumer.feed import Action
from replicas.link.signal import Signal
from replicas.node.replica import Replica
from spe.runtime.spill import Shelf
from spe.stream.ids import Channel
from spe.stream.names import StreamId
from spe.wire.messages import Ack

#: A consumer that has not acknowledged for this long counts as dead when room must be made.
DEAD_US: Final = 2_000_000


class Hosted:
    """A replica with what the shell keeps beside it; an owner of inputs (replicas.upstream)."""

    def __init__(self, replica: Replica, signals: Sequence[Signal], shelves: Sequence[Shelf], now: int) -> None:
        self.replica = replica
        self.shelves = shelves
        self.name = str(replica.id)
        self.inputs = replica.inputs
        self.work = Signal()
        self.outputs = dict(zip((log.channel for log in replica.logs), signals, strict=True))
        self.error: str | None = None
        #: It was said that steps are larger than they should be.
        self.large_told = False
        #: It was said that its state cannot be stored.
        self.state_told = False
        #: It was said that its operators cannot say what they counted.
        self.counters_told = False
        self._room = Signal()
        self._heard_at: dict[str, int] = {}
        #: Nobody is dead before he could have spoken.
        self._since = now

    def choose(self, now: int, peer: str | None) -> list[tuple[int, Action]]:
        return [] if self.error else self.replica.choose(now, peer)

    def acks(self) -> list[tuple[Channel, int]]:
        return self.replica.acks()

    def substream(self, channel: Channel) -> tuple[int, int]:
        unit = self.replica.unit
        keyed = any(i.stream == channel.stream and i.key is not None for i in unit.inputs)
        return (self.replica.id.partition, unit.partitions) if keyed else (0, 1)

    def delivered(self) -> None:
        self.work.wake()

    async def room(self, index: int) -> None:
        """Stops reading while the SUnion holds as much as it may; TCP then holds the producer back.

        The input that all others wait for is read all the same: nothing else could ever make room.
        """
        limit = self.replica.plan.limits.input_bytes
        sunion = self.replica.sunion
        while sunion.stable_bytes > limit and not sunion.needs(index) and self.error is None:
            token = self._room.token()
            await self._room.wait(token)

    def advanced(self) -> None:
        self._room.wake()

    def acknowledged(self, ack: Ack, incarnation: int, now: int) -> None:
        log = self.replica.log(Channel(StreamId(ack.stream), ack.partition))
        full = log.full
        log.acknowledge(ack.consumer, incarnation, ack.id)
        self._heard_at[ack.consumer] = now
        if full:
            self.work.wake()

    def make_room(self, now: int) -> list[str]:
        """At the cap: gives up the places of dead consumers that have a live sibling further on (A2)."""
        given_up: list[str] = []
        for log in self.replica.logs:
            if log.full:
                consumers = self.replica.plan.consumers_of(log.channel)
                dead = {name for name in consumers if now - self._heard_at.get(name, self._since) >= DEAD_US}
                for name in log.evictable(dead):
                    if log.full:
                        log.evict(name)
                        given_up.append(name)
        return given_up
