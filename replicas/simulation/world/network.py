"""A simulated network: byte streams between hosts, over links that are late, slow, lossy, cut or refused.

A connection is two pipes between two ends.  Loss is a retransmission, so a delay, as for any user of TCP.  A cut holds
data, in order; a sender that is not acknowledged for ``USER_TIMEOUT_S`` gives up.  When an end closes, its kernel
reports that if it can, and answers later data with an RST; after a power failure no answer comes until the host is
back.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from contextvars import copy_context
from random import Random

import trio
import trio.lowlevel

from consistency.faults.kind import LinkFaults
from replicas.simulation.world.link import GOOD, Pair, SimLinks
from replicas.simulation.world.pipe import Pipe
from replicas.simulation.world.stream import KILLED, RESET, SimStream
from spe.errors import LinkBroken, PortInUse, TurnedAway
from spe.runtime.network import CONNECT_S

Accept = Callable[[SimStream], None]
_NOBODY: tuple[str, Accept | None] = ("", None)


class SimNetwork:
    """All connections of a cluster, and the state of its links.

    Args:
      random: draws jitter and loss.
      base: default state of a link.
    """

    def __init__(self, random: Random | None = None, base: LinkFaults = GOOD) -> None:
        #: Host and acceptor by address; the acceptor is None when the listener is gone.
        self._listeners: dict[str, tuple[str, Accept | None]] = {}
        self._links = SimLinks(random if random is not None else Random(0), base)
        self._ends: list[SimStream] = []

    # --- links ---

    def set_links(self, links: Mapping[Pair, LinkFaults], refused: AbstractSet[Pair] = frozenset()) -> None:
        """Sets the states of links, by (sender, receiver); every other link gets its initial state."""
        self._links.set(links, refused)
        self._links_changed()

    def _links_changed(self) -> None:
        now = trio.current_time()
        for end in self._ends:
            pipe = end.outgoing
            if pipe.lost or not self._links.passes(pipe.source, pipe.target):
                pipe.stop(now)
            else:
                end.give_up(now)  # its kernel would have given up before the link opened
                pipe.go()
                if pipe.waits_for_room(now) and self._links.state(pipe.source, pipe.target).bytes_per_s is None:
                    pipe.widen(now, self._links.late_s(pipe.source, pipe.target))
        for end in self._ends:  # after all links are open: an answer takes the other pipe
            end.answer()
            end.changed.wake()

    # --- connections ---

    def half_open(self, a: str, b: str, random: Random) -> bool:
        """Makes one current connection of two hosts half open; others, and new ones, go on.  Returns False if there is
        none.
        """
        alive = [
            end
            for end in self._ends
            if (end.outgoing.source, end.outgoing.target) in ((a, b), (b, a))
            and not (end.over or end.other.over or end.outgoing.lost)
        ]
        if alive:
            end = random.choice(alive)
            end.outgoing.lost = end.incoming.lost = True
            self._links_changed()
        return bool(alive)

    def reset(self, *hosts: str) -> None:
        """Breaks connections at both ends: all of one host, or those between two."""
        for end in self._ends:
            if not end.over and set(hosts) <= {end.outgoing.source, end.outgoing.target}:
                end.end(RESET)

    def gone(self, host: str, *, silently: bool = False) -> None:
        """Ends a host's process: its kernel closes the connections; silently, as without power, none is closed."""
        now = trio.current_time()
        if silently:
            self._links.without_power.add(host)
        for end in self._ends:
            pipe = end.outgoing
            if pipe.source == host and not end.over:
                end.end(KILLED)
                if silently:
                    pipe.drop(now)
                    end.incoming.lose_arrived(now)
                else:
                    pipe.reset(now, self._links.late_s(pipe.source, pipe.target))
                    end.other.changed.wake()
        self._listeners = {a: (h, None if h == host else accept) for a, (h, accept) in self._listeners.items()}
        self._links_changed()

    def back(self, host: str) -> None:
        """Restores a host's power; it knows nothing of its former connections."""
        if host in self._links.without_power:
            self._links.without_power.discard(host)
            self._links_changed()

    # --- new connections ---

    @contextmanager
    def listening(self, address: str, host: str, accept: Accept) -> Iterator[None]:
        """Listens while the block lasts.  Raises PortInUse."""
        if self._listeners.get(address, _NOBODY)[1] is not None:
            raise PortInUse(f"cannot listen on {address}: in use")
        mine = self._listeners[address] = (host, accept)
        try:
            yield
        finally:
            if self._listeners[address] is mine:
                self._listeners[address] = (host, None)

    async def connect(self, source: str, address: str, seconds: float) -> SimStream:
        begun = trio.current_time()
        target, _ = self._listeners.get(address, _NOBODY)
        trip = self._links.late_s(source, target) + self._links.late_s(target, source)
        if trip:
            await trio.sleep(min(trip, seconds))
        else:
            await trio.lowlevel.checkpoint()
        heard = self._links.passes(source, target) and self._links.passes(target, source)
        if not heard or trip >= seconds:
            await trio.sleep_until(begun + seconds)
            raise LinkBroken(f"cannot connect to {address}: no answer within {seconds:g} s")
        _, accept = self._listeners.get(address, _NOBODY)
        if accept is None or self._links.is_refused(source, target):
            raise TurnedAway(f"cannot connect to {address}: refused")
        there, back = Pipe(source, target), Pipe(target, source)
        near, far = SimStream(self._links, back, there), SimStream(self._links, there, back)
        near.other, far.other = far, near
        self._ends = [e for e in self._ends if not (e.over and e.other.over)]
        self._ends += [near, far]
        accept(far)
        return near


class HostNetwork:
    """The network as one host sees it: an env.Network."""

    def __init__(self, network: SimNetwork, host: str) -> None:
        self._network = network
        self._host = host

    async def connect(self, address: str, seconds: float = CONNECT_S) -> trio.abc.Stream:
        return await self._network.connect(self._host, address, seconds)

    async def serve(
        self,
        address: str,
        handler: Callable[[trio.abc.Stream], Awaitable[None]],
        *,
        task_status: trio.TaskStatus[str],
    ) -> None:
        """Serves; an error of a handler ends the run, because it is a bug, where production would go on."""

        async def handle(stream: SimStream) -> None:
            try:
                await handler(stream)
            finally:
                await trio.aclose_forcefully(stream)

        context = copy_context()  # the handler is a task of this host, whichever host connects

        def accept(stream: SimStream) -> None:
            context.copy().run(nursery.start_soon, handle, stream)

        with self._network.listening(address, self._host, accept):
            async with trio.open_nursery() as nursery:
                task_status.started(address)
                await trio.sleep_forever()
