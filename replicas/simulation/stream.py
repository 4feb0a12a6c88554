"""One end of a simulated connection, as a stream."""

from __future__ import annotations

import math
from typing import Final

import trio
import trio.lowlevel

from replicas.link.signal import Signal
from replicas.simulation.clock import current_clock
from replicas.simulation.link import Links
from replicas.simulation.pipe import Pipe
from spe.runtime.network import RECEIVE_BYTES

#: Bytes under way that a sender may be ahead of its receiver.
WINDOW_BYTES: Final = 1 << 20

#: Why an end is gone.
CLOSED: Final = "closed"
KILLED: Final = "killed"
RESET: Final = "reset by peer"


class SimStream(trio.abc.Stream):
    """One end of a connection.

    Attributes:
      incoming, outgoing: its pipes.
      other: the other end.
      over: why its socket is gone; "" while it is not.
    """

    other: SimStream

    def __init__(self, links: Links, incoming: Pipe, outgoing: Pipe) -> None:
        self.incoming, self.outgoing = incoming, outgoing
        self.over = ""
        self.changed = Signal()
        self._links = links

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await trio.lowlevel.checkpoint_if_cancelled()
        waited = False
        while True:
            token = self.changed.token()
            self._look()
            if self.incoming.is_reset(trio.current_time()):
                self.end(RESET)
                self._look()
            if self.outgoing.size < WINDOW_BYTES:
                break
            await self._wait(token)
            waited = True
        if data:
            pipe = self.outgoing
            link = self._links.state(pipe.source, pipe.target)
            pipe.send(trio.current_time(), bytes(data), self._links.late_s(pipe.source, pipe.target), link.bytes_per_s)
            self.answer()
            self.other.changed.wake()
            if pipe.stopped:
                self.changed.wake()  # whoever waits here has a deadline now
        if not waited:  # as a socket of trio's does
            await trio.lowlevel.cancel_shielded_checkpoint()

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        await trio.lowlevel.checkpoint_if_cancelled()
        pipe = self.incoming
        waited = False
        while True:
            token = self.changed.token()
            self._look()
            was_full = pipe.size >= WINDOW_BYTES
            if (data := pipe.take(now := trio.current_time(), max_bytes or RECEIVE_BYTES)) is not None:
                if was_full:
                    self.other.changed.wake()
                if not waited:
                    await trio.lowlevel.cancel_shielded_checkpoint()
                return data
            if pipe.is_reset(now):
                self.end(RESET)
                self._look()
            await self._wait(token)
            waited = True

    async def aclose(self) -> None:
        if not self.over:
            pipe = self.outgoing
            pipe.end(trio.current_time(), self._links.late_s(pipe.source, pipe.target))
            self.other.changed.wake()
        self.end(CLOSED)
        self.other.answer()
        await trio.lowlevel.checkpoint()

    def end(self, why: str) -> None:
        """The socket is gone; who waits hears of it."""
        self.over = why
        self.changed.wake()

    def answer(self) -> None:
        """What arrives at the other end is answered with an RST, where no socket is any more."""
        pipe, back = self.outgoing, self.incoming
        if self.other.over and not pipe.stopped and pipe.first_at < math.inf and back.reset_at == math.inf:
            back.reset(max(trio.current_time(), pipe.first_at), self._links.late_s(back.source, back.target))
            self.changed.wake()

    def give_up(self, now: float) -> None:
        """The kernel does, where nothing was acknowledged for too long."""
        if not self.over and now >= self.outgoing.gives_up_at:
            self.outgoing.drop(now)
            self.end("timed out")
            self.other.answer()

    def _look(self) -> None:
        """Raises what an operation on this end raises now."""
        self.give_up(trio.current_time())
        if self.over == CLOSED:
            raise trio.ClosedResourceError
        if self.over:
            raise trio.BrokenResourceError(self.over)

    async def _wait(self, token: trio.Event) -> None:
        """Until something changes, or something is due."""
        now = trio.current_time()
        until = min(self.incoming.next_after(now), self.outgoing.gives_up_at)
        if until < math.inf:
            current_clock().wake_at(until, self.changed)
        await token.wait()
