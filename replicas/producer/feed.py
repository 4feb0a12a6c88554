"""Feeds of subscriptions: send the output of a producer to its consumers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import trio

from replicas.link.connection import Connection
from replicas.link.signal import Signal
from replicas.producer.subscription import Subscription
from spe.runtime.env import Clock
from spe.runtime.spill import SpillNotLoaded
from spe.stream.schema import Schema
from spe.wire.codec import ElementEncoder
from spe.wire.framing import Buffer
from spe.wire.messages.feeds import StateChange, Subscribed

#: Most bytes of one pull, which is encoded and sent in one piece.
PULL_BYTES: Final = 512 << 10
#: After a longer pull, heartbeats are answered before the next feed has its turn.
LONG_NS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Accepted:
    """A subscription that was accepted.

    Attributes:
      sent: called with bytes and nanoseconds of encoding of each portion; None: not called.
    """

    greeting: Subscribed
    subscription: Subscription
    schema: Schema
    signal: Signal
    sent: Callable[[int, int], None] | None = None


class Feeds:
    """The feeds of one process, which take turns: other ready tasks run before the next long pull."""

    def __init__(self, clock: Clock, frame_bytes: int) -> None:
        self._clock = clock
        self._frame_bytes = frame_bytes
        self._turn = trio.Lock()

    async def run(self, connection: Connection, opened: Accepted) -> None:
        """Sends until cancelled.  Raises LinkBroken, LinkClosed, LogError."""
        encoder = ElementEncoder(opened.schema, self._frame_bytes)
        loaded: list[SpillNotLoaded] = []
        while True:
            token = opened.signal.token()
            try:
                data = await self._pulled(opened, encoder)
            except SpillNotLoaded as piece:
                await piece.load()
                loaded.append(piece)
                continue
            while loaded:
                loaded.pop().release()
            if data:
                await connection.send_bytes(data)
            else:
                await opened.signal.wait(token)

    async def _pulled(self, opened: Accepted, encoder: ElementEncoder) -> bytes:
        """Pulls and encodes the next elements; empty where there are none.  Raises LogError, SpillNotLoaded."""
        if self._turn.locked():
            await self._turn.acquire()
        else:
            self._turn.acquire_nowait()
        try:
            begun, parts = self._clock.step_ns(), list[Buffer]()
            for element in opened.subscription.pull(PULL_BYTES):
                parts += [element.encode()] if isinstance(element, StateChange) else encoder.encode(element)
            data = b"".join(parts)
            took_ns = self._clock.step_ns() - begun
            if data and opened.sent is not None:
                opened.sent(len(data), took_ns)
            if took_ns > LONG_NS:
                await trio.lowlevel.checkpoint()
            return data
        finally:
            self._turn.release()
