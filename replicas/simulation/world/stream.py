"""One end of a simulated connection, as a stream."""

from __future__ import annotations

import math
from typing import Final

import trio
import trio.lowlevel

from replicas.link.signal import Signal
from replicas.simulation.world.clock import current_clock
from replicas.simulation.world.link import SimLinks
from replicas.simulation.world.pipe import Pipe
from spe.runtime.network import RECEIVE_BYTES

#: Bytes under way that a sender may be ahead of its receiver.
WINDOW_BYTES: Final = 1 << 20

#: Reasons for the end of a socket.
CLOSED: Final = "closed"
KILLED: Final = "killed"
RESET: Final = "reset by peer"


class SimStream(trio.abc.Stream):
    """One end of a connection.

    Attributes:
      incoming, outgoing: its pipes.
      other: the other end.
      over: why its socket is gone; "" while it exists.
    """

    other: SimStream

    def __init__(self, links: SimLinks, incoming: Pipe, outgoing: Pipe) -> None:
        self.incoming, self.outgoing = incoming, outgoing
        self.over = ""
        self.changed = Signal()
        self._links = links
        self._clock = current_clock()

    def send_now(self, data: bytes | bytearray | memoryview) -> int:
        """Sends as TcpStream.send_now: all of the data, or, while too much is under way, nothing."""
        now, pipe = self._clock.now, self.outgoing
        if self._troubled():
            self._look(now)
            self._hear_reset(now)
        if pipe.size >= WINDOW_BYTES:
            return 0
        if data:
            late_s, bytes_per_s = self._links.delay(pipe.source, pipe.target)
            pipe.send(now, bytes(data), late_s, bytes_per_s)
            if self.other.over:
                self.answer()
            self.other.changed.wake()
            if pipe.troubled:
                self.changed.wake()  # a task that waits here has a deadline now
        return len(data)

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await trio.lowlevel.checkpoint_if_cancelled()
        waited = False
        while True:
            token = self.changed.token()
            if self.send_now(data) == len(data):
                break
            await self._wait(token)
            waited = True
        if not waited:  # as a trio socket does
            await trio.lowlevel.cancel_shielded_checkpoint()

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        pipe = self.incoming
        waited = False
        while True:
            token, now = self.changed.token(), self._clock.now
            if pipe.chunks and not waited:
                await trio.lowlevel.checkpoint_if_cancelled()
            troubled = self._troubled()
            if troubled:
                self._look(now)
            was_full = pipe.size >= WINDOW_BYTES
            if (data := pipe.take(now, max_bytes or RECEIVE_BYTES)) is not None:
                if was_full:
                    self.other.changed.wake()
                if not waited:
                    await trio.lowlevel.cancel_shielded_checkpoint()
                return data
            if troubled:
                self._hear_reset(now)
            if troubled or pipe.chunks:
                await self._wait(token)
            else:
                await self.changed.wait(token)
            waited = True

    async def aclose(self) -> None:
        if not self.over:
            pipe = self.outgoing
            pipe.end(self._clock.now, self._links.late_s(pipe.source, pipe.target))
            self.other.changed.wake()
        self.end(CLOSED)
        self.other.answer()
        await trio.lowlevel.checkpoint()

    def end(self, why: str) -> None:
        """Ends the socket; wakes waiting tasks."""
        self.over = why
        self.changed.wake()

    def answer(self) -> None:
        """Answers data that arrives at the other end with an RST, if its socket is gone."""
        pipe, back = self.outgoing, self.incoming
        if self.other.over and not pipe.stopped and pipe.first_at < math.inf and back.reset_at == math.inf:
            back.reset(max(self._clock.now, pipe.first_at), self._links.late_s(back.source, back.target))
            self.changed.wake()

    def give_up(self, now: float) -> None:
        """Gives up, as the kernel does, if nothing was acknowledged for too long."""
        if not self.over and now >= self.outgoing.gives_up_at:
            self.outgoing.drop(now)
            self.end("timed out")
            self.other.answer()

    def _troubled(self) -> bool:
        """Returns whether anything but sent data may happen."""
        return bool(self.over) or self.incoming.troubled or self.outgoing.troubled

    def _hear_reset(self, now: float) -> None:
        if self.incoming.is_reset(now):
            self.end(RESET)
            self._look(now)

    def _look(self, now: float) -> None:
        """Raises the error of an operation on this end now."""
        self.give_up(now)
        if self.over == CLOSED:
            raise trio.ClosedResourceError
        if self.over:
            raise trio.BrokenResourceError(self.over)

    async def _wait(self, token: int) -> None:
        """Waits until something changes, or something is due."""
        until = min(self.incoming.next_after(self._clock.now), self.outgoing.gives_up_at)
        if until < math.inf:
            self._clock.wake_at(until, self.changed)
        await self.changed.wait(token)
