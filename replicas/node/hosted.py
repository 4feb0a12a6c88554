"""A replica with what a node keeps beside it: signals, room for input, and which of its consumers live."""

from __future__ import annotations

from collections.abc import Sequence

import trio

from replicas.consumer.feed import Action
from replicas.link.signal import Signal
from replicas.node.replica import Replica
from spe.runtime.spill import Handle, Shelf, SpillNotLoaded
from spe.stream.ids import Channel
from spe.stream.names import StreamId
from spe.wire.messages import Ack


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
        #: Spilled pieces that the replica needs: those on the way, and those that are there, the oldest first.
        self._loading: dict[Handle, SpillNotLoaded] = {}
        self._loaded: dict[Handle, SpillNotLoaded] = {}
        #: When each consumer acknowledged last, and after how long it was to do so again.
        self._heard: dict[str, tuple[int, int]] = {}
        #: Start time, used for consumers that were never heard.
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

    def load(self, piece: SpillNotLoaded, nursery: trio.Nursery) -> None:
        """Loads a piece that the replica needs; it is called again when that is there."""
        if piece.handle not in self._loading:
            self._loading[piece.handle] = piece
            nursery.start_soon(self._load, piece)

    async def _load(self, piece: SpillNotLoaded) -> None:
        await piece.load()
        del self._loading[piece.handle]
        self._loaded[piece.handle] = piece
        self.work.wake()

    def release_loaded(self, keep: int) -> None:
        """The replica has advanced: but for the last ``keep``, pieces that were loaded need not stay in memory."""
        while len(self._loaded) > keep:
            self._loaded.pop(next(iter(self._loaded))).release()

    def advanced(self) -> None:
        self._room.wake()

    def acknowledged(self, ack: Ack, incarnation: int, period_us: int, now: int) -> None:
        """A consumer needs an output up to an id no more.

        An id that no replica of the partition is known to have made is not counted; the consumer repeats it.  Where the
        output is full it counts as all that was made: after a restart the consumer may be ahead of all replicas, and a
        full output makes nothing more until it is acknowledged.
        """
        self._heard[ack.consumer] = now, period_us
        channel = Channel(StreamId(ack.stream), ack.partition)
        log, made = self.replica.log(channel), self.replica.made(channel)
        full = log.full
        if ack.id > made and not full:
            return
        log.acknowledge(ack.consumer, incarnation, min(ack.id, made))
        if full:
            self.work.wake()

    def make_room(self, now: int) -> list[str]:
        """At the cap: gives up the places of dead consumers that have a live sibling further on (A2)."""
        given_up: list[str] = []
        for log in self.replica.logs:
            if log.full:
                consumers = self.replica.plan.consumers_of(log.channel)
                dead = {name for name in consumers if self._is_dead(name, now)}
                for name in log.evictable(dead):
                    if log.full:
                        log.evict(name)
                        given_up.append(name)
        return given_up

    def _is_dead(self, consumer: str, now: int) -> bool:
        """Has it not acknowledged for as long as makes a process count as gone, by its own pace? (F3)"""
        timing = self.replica.plan.timing
        at, period_us = self._heard.get(consumer, (self._since, timing.heartbeat_us))
        return now - at > timing.gone_us(period_us)

    def shift(self, gap_us: int, now: int) -> None:
        """We were frozen for the last ``gap_us``: that was no silence of anybody's (T1)."""
        self.replica.shift(gap_us, now)
        self._since = min(self._since + gap_us, now)
        for consumer, (at, period_us) in self._heard.items():
            self._heard[consumer] = min(at + gap_us, now), period_us
