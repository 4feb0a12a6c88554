"""A simulated network: byte streams between hosts, over links that are late, slow, lossy, cut or refused.

A connection is two pipes.  What is sent is due at a moment that the link says, never before what was sent earlier on
the same pipe; loss is a retransmission, hence a delay, as it is to whoever uses TCP.  A cut holds bytes in order; those
that nobody took for ``USER_TIMEOUT_S`` break the connection.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextvars import copy_context
from dataclasses import dataclass
from random import Random
from typing import Final

import trio
import trio.lowlevel

from replicas.signal import Signal
from spe.errors import LinkBroken

#: Bytes under way that a sender may be ahead of its receiver.
WINDOW_BYTES: Final = 1 << 20
#: How long a connect takes to fail when nobody answers.
CONNECT_S: Final = 0.3
#: What production sets as TCP_USER_TIMEOUT.
USER_TIMEOUT_S: Final = 30.0
#: A lost segment comes again after this, twice that the second time, and so on.
RETRANSMIT_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class LinkState:
    """One direction of a link.

    Attributes:
      cut: holds what is sent.
      delay_us, jitter_us: everything is late by the delay and up to the jitter.
      bytes_per_s: bandwidth; None: no bound.
      loss: share of sends that have to be repeated.
    """

    cut: bool = False
    delay_us: int = 0
    jitter_us: int = 0
    bytes_per_s: float | None = None
    loss: float = 0.0


GOOD: Final = LinkState()
Pair = tuple[str, str]


class _Pipe:
    """Bytes in one direction of one connection."""

    def __init__(self, source: str, target: str) -> None:
        self.source, self.target = source, target
        #: (when it arrives, bytes), oldest first.
        self.chunks: deque[tuple[float, bytes]] = deque()
        self.size = 0
        self.free_at = 0.0
        self.ended = False
        self.broken = False
        #: Half open: nothing arrives any more, not even the end.
        self.lost = False
        self.changed = Signal()

    def break_off(self) -> None:
        self.broken = True
        self.changed.wake()


class SimStream(trio.abc.Stream):
    """One end of a connection: reads one pipe, writes the other."""

    def __init__(self, network: SimNetwork, incoming: _Pipe, outgoing: _Pipe) -> None:
        self._network = network
        self._in, self._out = incoming, outgoing
        self._closed = False

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await trio.lowlevel.checkpoint()
        out = self._out
        with trio.move_on_after(USER_TIMEOUT_S) as waiting:
            while out.size >= WINDOW_BYTES and not (out.broken or self._closed):
                token = out.changed.token()
                await token.wait()
        if waiting.cancelled_caught and (out.lost or self._network.is_cut(out.source, out.target)):
            out.break_off()
            self._in.break_off()
        if self._closed:
            raise trio.ClosedResourceError
        if out.broken or out.ended:
            raise trio.BrokenResourceError("reset by peer")
        out.chunks.append((self._network.due(out, len(data)), bytes(data)))
        out.size += len(data)
        out.changed.wake()

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        await trio.lowlevel.checkpoint()
        pipe = self._in
        while True:
            if self._closed:
                raise trio.ClosedResourceError
            token = pipe.changed.token()
            if not (pipe.lost or self._network.is_cut(pipe.source, pipe.target)):
                if pipe.broken:
                    raise trio.BrokenResourceError("reset by peer")
                if pipe.chunks and pipe.chunks[0][0] > trio.current_time():
                    with trio.move_on_at(pipe.chunks[0][0]):
                        await token.wait()
                    continue
                if pipe.chunks:
                    due, chunk = pipe.chunks.popleft()
                    if max_bytes is not None and len(chunk) > max_bytes:
                        pipe.chunks.appendleft((due, chunk[max_bytes:]))
                        chunk = chunk[:max_bytes]
                    pipe.size -= len(chunk)
                    pipe.changed.wake()
                    return chunk
                if pipe.ended:
                    return b""
            await token.wait()

    async def aclose(self) -> None:
        if not self._closed:
            self._closed = True
            self._out.ended = True
            self._in.broken = True
            self._out.changed.wake()
            self._in.changed.wake()
        await trio.lowlevel.checkpoint()


class SimNetwork:
    """All connections of a cluster, and the state of its links.

    Args:
      random: draws jitter and loss.
      base: a link of which nothing else is said.
    """

    def __init__(self, random: Random | None = None, base: LinkState = GOOD) -> None:
        self.listeners: dict[str, tuple[str, Callable[[SimStream], None]]] = {}
        self.pipes: list[_Pipe] = []
        self._random = random if random is not None else Random(0)
        self._base = base
        #: By (sender, receiver); "*" stands for everybody.
        self._links: dict[Pair, LinkState] = {}
        self._refused: set[Pair] = set()

    # --- links ---

    def link(self, source: str, target: str) -> LinkState:
        links = self._links
        return links.get((source, target), self._base) if links else self._base

    def is_cut(self, source: str, target: str) -> bool:
        return self.link(source, target).cut

    def set_links(self, links: Mapping[Pair, LinkState], refused: set[Pair] = frozenset()) -> None:  # type: ignore[assignment]
        """From now on exactly these hold, by (sender, receiver); every other link is as at the beginning."""
        self._links, self._refused = dict(links), set(refused)
        for pipe in self.pipes:
            pipe.changed.wake()

    def due(self, pipe: _Pipe, size: int) -> float:
        """When something that is sent now arrives: late, slow, repeated, and in order."""
        link, now = self.link(pipe.source, pipe.target), trio.current_time()
        late = (link.delay_us + (self._random.random() * link.jitter_us if link.jitter_us else 0)) / 1e6
        wait = RETRANSMIT_S
        while link.loss and self._random.random() < link.loss:
            late += wait
            wait *= 2
        pipe.free_at = max(now, pipe.free_at) + (size / link.bytes_per_s if link.bytes_per_s else 0.0)
        last = pipe.chunks[-1][0] if pipe.chunks else 0.0
        return max(last, pipe.free_at + late)

    # --- connections ---

    def lose(self, a: str, b: str) -> None:
        """Every connection that two hosts have now is half open from here on; new ones are not."""
        for pipe in self.pipes:
            if {pipe.source, pipe.target} == {a, b}:
                pipe.lost = True

    def lose_one(self, random: Random) -> None:
        """One direction of one connection becomes half open."""
        alive = [p for p in self.pipes if not (p.ended or p.broken or p.lost)]
        if alive:
            random.choice(alive).lost = True

    def reset(self, *hosts: str) -> None:
        """Connections break with an RST: all of one host, or those between two."""
        for pipe in self.pipes:
            if set(hosts) <= {pipe.source, pipe.target}:
                pipe.break_off()
        self._tidy()

    def gone(self, host: str, *, silently: bool = False) -> None:
        """A host's process has ended: its kernel says goodbye, or, without power, nobody does."""
        for pipe in self.pipes:
            if host in (pipe.source, pipe.target):
                if silently:
                    pipe.lost = True
                else:
                    pipe.break_off()
        self._tidy()
        self.listeners = {a: v for a, v in self.listeners.items() if v[0] != host}

    def _tidy(self) -> None:
        self.pipes = [p for p in self.pipes if not (p.broken or (p.ended and not p.chunks))]

    def open(self, source: str, address: str) -> SimStream | str:
        """A connection, or why there is none: "refused", or "silence"."""
        owner = self.listeners.get(address)
        if owner is None or (source, owner[0]) in self._refused:
            return "refused"
        target, accept = owner
        if self.is_cut(source, target) or self.is_cut(target, source):
            return "silence"
        there, back = _Pipe(source, target), _Pipe(target, source)
        if len(self.pipes) > 256:
            self._tidy()
        self.pipes += [there, back]
        accept(SimStream(self, there, back))
        return SimStream(self, back, there)


class HostNetwork:
    """One host's view: an env.Network."""

    def __init__(self, network: SimNetwork, host: str) -> None:
        self._network = network
        self._host = host

    async def connect(self, address: str) -> trio.abc.Stream:
        await trio.lowlevel.checkpoint()
        opened = self._network.open(self._host, address)
        if opened == "silence":
            await trio.sleep(CONNECT_S)
            raise LinkBroken(f"{address} timed out")
        if isinstance(opened, str):
            raise LinkBroken(f"{address} {opened}")
        return opened

    async def serve(
        self,
        address: str,
        handler: Callable[[trio.abc.Stream], Awaitable[None]],
        *,
        task_status: trio.TaskStatus[str],
    ) -> None:
        async with trio.open_nursery() as nursery:
            context = copy_context()  # whoever connects, the handler is a task of this host
            self._network.listeners[address] = (
                self._host,
                lambda s: context.copy().run(nursery.start_soon, handler, s),
            )
            task_status.started(address)
            await trio.sleep_forever()
