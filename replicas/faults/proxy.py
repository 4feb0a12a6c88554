"""A TCP proxy that makes links fail, outside the processes that they connect.

Every link of a cluster gets its own listener: a process that dials ``listener`` through it dials the proxy's address
instead.  Bytes of each direction wait here for as long as the faults of the link say, so the processes under test run
production code, TLS included, and need no root.  A proxy cannot make a connect time out: the connection opens, and then
nothing answers.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import struct
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Final

import trio

from consistency.faults.kind import LinkFaults
from spe.runtime.network import parse_address

#: Bytes of one direction that wait in the proxy before it stops reading; kernel buffers on both sides are extra.
WINDOW_BYTES: Final = 256 << 10
_READ_BYTES: Final = 64 << 10
#: Time between two attempts to listen at an address that is in use.
_TAKEN_S: Final = 0.05
_RESET: Final = struct.pack("ii", 1, 0)


OPEN: Final = LinkFaults()
_WayOf = Callable[[], LinkFaults]
_Abort = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Route:
    """One link: ``dialler`` connects to ``listen`` instead of ``target``, the address of ``listener``."""

    dialler: str
    listener: str
    listen: str
    target: str


class FaultProxy:
    """Relays the connections of all routes.

    Args:
      routes: the links.
      random: draws jitter.
    """

    def __init__(self, routes: list[Route], random: Random) -> None:
        self._routes = routes
        self._random = random
        self._ways: dict[tuple[str, str], LinkFaults] = {}
        self._refused: set[tuple[str, str]] = set()
        self._connections: dict[_Connection, Route] = {}
        #: Routes that listen now.
        self._listeners: dict[Route, trio.CancelScope] = {}
        #: Set and replaced when a route begins or ends to listen, or shall do so.
        self._changed = trio.Event()
        self._nursery: trio.Nursery | None = None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serves until cancelled.  Raises OSError where a route's address is taken."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            for route in self._routes:
                await nursery.start(self._serve, route)
            task_status.started()
            await trio.sleep_forever()

    # --- faults ---

    def set_ways(self, ways: Mapping[tuple[str, str], LinkFaults]) -> None:
        """Sets exactly these faults, by (sender, receiver); every other direction is open."""
        self._ways = dict(ways)
        for connection in self._connections:
            connection.changed()

    def reset(self, a: str, b: str) -> None:
        """Breaks every connection of two processes: both sides get an RST."""
        for connection, route in list(self._connections.items()):
            if {route.dialler, route.listener} == {a, b}:
                connection.abort()

    def half_open(self, a: str, b: str) -> bool:
        """Drops one connection of two processes: its bytes vanish, its end as well.  Returns False if there is none."""
        alive = [c for c, r in self._connections.items() if {r.dialler, r.listener} == {a, b} and not c.forgotten]
        if alive:
            self._random.choice(alive).forget()
        return bool(alive)

    async def refuse(self, pairs: set[tuple[str, str]]) -> None:
        """Refuses connections of exactly these (dialler, listener) pairs; open ones stay.

        Returns when it is so.  Of two concurrent calls the later one counts, for both.
        """
        assert self._nursery is not None, "the proxy does not run"
        self._refused = set(pairs)
        for route, scope in self._listeners.items():
            if self._is_refused(route):
                scope.cancel()
        self._change()
        while any((route in self._listeners) == self._is_refused(route) for route in self._routes):
            await self._changed.wait()

    def _is_refused(self, route: Route) -> bool:
        return (route.dialler, route.listener) in self._refused

    def _change(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    # --- relaying ---

    async def _serve(self, route: Route, *, task_status: trio.TaskStatus[None]) -> None:
        """Listens whenever the route is not refused.  Only one task does, so no other holds the address."""
        host, port = parse_address(route.listen)
        listeners = await trio.open_tcp_listeners(port, host=host)
        task_status.started()
        while True:
            await self._listen(route, listeners)
            while self._is_refused(route):
                await self._changed.wait()
            listeners = await _listeners_again(host, port)

    async def _listen(self, route: Route, listeners: list[trio.SocketListener]) -> None:
        """Listens until the route is refused; then the address is free again."""
        assert self._nursery is not None

        async def accept(stream: trio.SocketStream) -> None:
            await self._relay(route, stream)

        with trio.CancelScope() as scope:
            self._listeners[route] = scope
            self._change()
            try:
                if self._is_refused(route):
                    scope.cancel()
                await trio.serve_listeners(accept, listeners, handler_nursery=self._nursery)
            finally:
                del self._listeners[route]
                for listener in listeners:
                    listener.socket.close()
                self._change()

    async def _relay(self, route: Route, near: trio.SocketStream) -> None:
        """Relays one connection until both directions have ended or either broke.  Its errors are not raised."""
        host, port = parse_address(route.target)
        try:
            far = await trio.open_tcp_stream(host, port)
        except OSError:
            _linger_not(near)
            await trio.aclose_forcefully(near)
            return
        connection = _Connection(near, far)
        self._connections[connection] = route
        try:
            with connection.scope:
                async with trio.open_nursery() as nursery:
                    for lane in (
                        self._lane(near, far, route.dialler, route.listener),
                        self._lane(far, near, route.listener, route.dialler),
                    ):
                        connection.lanes.append(lane)
                        nursery.start_soon(lane.read, connection.abort)
                        nursery.start_soon(lane.write, connection.abort)
        finally:
            del self._connections[connection]
            with trio.CancelScope(shield=True):
                await trio.aclose_forcefully(near)
                await trio.aclose_forcefully(far)

    def _lane(self, source: trio.SocketStream, target: trio.SocketStream, sender: str, receiver: str) -> _Lane:
        return _Lane(source, target, lambda: self._ways.get((sender, receiver), OPEN), self._random)


async def _listeners_again(host: str, port: int) -> list[trio.SocketListener]:
    """Waits while another connection uses the port as its own end."""
    while True:
        try:
            return await trio.open_tcp_listeners(port, host=host)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            await trio.sleep(_TAKEN_S)


class _Connection:
    """The two ends of a relayed connection."""

    def __init__(self, near: trio.SocketStream, far: trio.SocketStream) -> None:
        self._ends = (near, far)
        self.lanes: list[_Lane] = []
        self.scope = trio.CancelScope()

    def abort(self) -> None:
        """Sends an RST to both ends; bytes under way are lost."""
        for end in self._ends:
            _linger_not(end)
        self.scope.cancel()

    @property
    def forgotten(self) -> bool:
        return any(lane.forgotten for lane in self.lanes)

    def forget(self) -> None:
        """Separates the ends silently: neither learns that the other has gone."""
        for lane in self.lanes:
            lane.forget()

    def changed(self) -> None:
        for lane in self.lanes:
            lane.changed()


class _Lane:
    """One direction of one connection: bytes, and when each piece may pass."""

    def __init__(self, source: trio.SocketStream, target: trio.SocketStream, way: _WayOf, random: Random) -> None:
        self._source, self._target = source, target
        self._way = way
        self._random = random
        #: (when it may pass, bytes), oldest first; b"" is the end.
        self._waiting: deque[tuple[float, bytes]] = deque()
        self._bytes = 0
        self._free_at = 0.0
        self._event = trio.Event()
        self.forgotten = False

    def changed(self) -> None:
        self._event.set()
        self._event = trio.Event()

    def forget(self) -> None:
        self.forgotten = True
        self._waiting.clear()
        self._bytes = 0
        self.changed()

    async def read(self, abort: _Abort) -> None:
        while True:
            while self._bytes >= WINDOW_BYTES:
                await self._event.wait()
            try:
                data = bytes(await self._source.receive_some(_READ_BYTES))
            except trio.BrokenResourceError:
                return None if self.forgotten else abort()
            if self.forgotten:
                if not data:
                    return None
                continue
            self._waiting.append((self._due(len(data)), data))
            self._bytes += len(data)
            self.changed()
            if not data:
                return None

    def _due(self, size: int) -> float:
        """Returns when a piece that came now may pass: after the one before it, and no faster than the bandwidth."""
        way = self._way()
        last = self._waiting[-1][0] if self._waiting else 0.0
        late = (way.delay_us + self._random.random() * way.jitter_us) / 1e6
        start = max(trio.current_time(), self._free_at)
        self._free_at = start + (size / way.bytes_per_s if way.bytes_per_s else 0.0)
        return max(last, self._free_at + late)

    async def write(self, abort: _Abort) -> None:
        while not self.forgotten:
            changed = self._event
            if not self._waiting or self._way().cut:
                await changed.wait()
                continue
            due, data = self._waiting[0]
            if due > trio.current_time():
                with trio.move_on_at(due):
                    await changed.wait()
                continue
            try:
                if not data:
                    return await self._target.send_eof()
                await self._target.send_all(data)
            except trio.BrokenResourceError:
                return None if self.forgotten else abort()
            if self.forgotten:
                return None
            self._waiting.popleft()
            self._bytes -= len(data)
            self.changed()
        return None


def _linger_not(stream: trio.SocketStream) -> None:
    """Makes its close send an RST instead of a FIN."""
    with contextlib.suppress(OSError):
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
