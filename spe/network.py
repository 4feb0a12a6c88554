"""TCP, behind the Network interface: bounded, and with strangers kept apart from peers that are known.

Until a handler knows who is there (it sets ``stream.peer_name``) a connection lives on borrowed time: it has
``hello_s`` seconds, and when there are too many such connections the oldest goes.  A peer says hello within
milliseconds, so a flood of slow strangers cannot keep it out.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Awaitable, Callable
from typing import Any, Final

import trio

from spe.env import Trace
from spe.errors import LinkBroken, PortInUse

Handler = Callable[[trio.abc.Stream], Awaitable[None]]

CONNECT_S: Final = 0.6
HELLO_S: Final = 2.0
#: Connections that have not said who they are.
STRANGERS_MAX: Final = 64
#: Connections in all.
CONNECTIONS_MAX: Final = 1024
#: One receive; also what a frame of some length is a view of.
RECEIVE_BYTES: Final = 64 << 10
#: A peer whose machine is gone sends no reset: these make the kernel notice, so that nothing waits for ever.
_KEEPALIVE_S: Final = 15
_USER_TIMEOUT_MS: Final = 30_000


def parse_address(address: str) -> tuple[str, int]:
    """Host and port of ``host:port`` or ``[ipv6]:port``.  Raises ValueError."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise ValueError(f"expected an address such as localhost:7000, got {address!r}")
    return host.removeprefix("[").removesuffix("]"), int(port)


class TcpStream(trio.abc.Stream):
    """One connection.

    Attributes:
      address: of the other end.
    """

    def __init__(self, stream: trio.SocketStream, address: str, on_known: Callable[[], None] = lambda: None) -> None:
        self.address = address
        self._stream = stream
        self._peer_name: str | None = None
        self._on_known = on_known
        for level, name, value in (
            (socket.SOL_SOCKET, "SO_KEEPALIVE", 1),
            (socket.IPPROTO_TCP, "TCP_KEEPIDLE", _KEEPALIVE_S),
            (socket.IPPROTO_TCP, "TCP_KEEPINTVL", _KEEPALIVE_S),
            (socket.IPPROTO_TCP, "TCP_USER_TIMEOUT", _USER_TIMEOUT_MS),
        ):
            if hasattr(socket, name):  # the last three are not everywhere; TCP_NODELAY is set by trio
                stream.setsockopt(level, getattr(socket, name), value)

    @property
    def peer_name(self) -> str | None:
        """Who is there, once a hello has been accepted.  Setting it lifts the limits for strangers."""
        return self._peer_name

    @peer_name.setter
    def peer_name(self, name: str) -> None:
        self._peer_name = name
        self._on_known()

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        return await self._stream.receive_some(max_bytes or RECEIVE_BYTES)

    async def aclose(self) -> None:
        await self._stream.aclose()


class TcpNetwork:
    """The Network of production.

    Args:
      connect_s: longest time to open a connection, name resolution included.
      hello_s: longest time that a stranger may take to become known.
      strangers_max, connections_max: bounds on accepted connections, per listener.
      trace: told of connections that ended badly; None: nobody is.
    """

    def __init__(
        self,
        *,
        connect_s: float = CONNECT_S,
        hello_s: float = HELLO_S,
        strangers_max: int = STRANGERS_MAX,
        connections_max: int = CONNECTIONS_MAX,
        trace: Trace | None = None,
    ) -> None:
        self._connect_s = connect_s
        self._hello_s = hello_s
        self._strangers_max = strangers_max
        self._connections_max = connections_max
        self._trace = trace

    async def connect(self, address: str) -> TcpStream:
        """Raises LinkBroken, naming the address and the reason."""
        host, port = parse_address(address)
        with trio.move_on_after(self._connect_s):
            try:
                return TcpStream(await trio.open_tcp_stream(host, port), address)
            except OSError as e:
                raise LinkBroken(f"cannot connect to {address}: {_reason(e)}") from e
        raise LinkBroken(f"cannot connect to {address}: no answer within {self._connect_s:g} s")

    async def serve(
        self,
        address: str,
        handler: Handler,
        *,
        task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Runs ``handler`` per connection until cancelled.  What a handler raises ends its connection, no other.

        Raises PortInUse.
        """
        host, port = parse_address(address)
        try:
            listeners = await trio.open_tcp_listeners(port, host=host)
        except OSError as e:
            raise PortInUse(f"cannot listen on {address}: {_reason(e)}") from e
        if port == 0:  # a name with several addresses would get another port for each
            for extra in listeners[1:]:
                await extra.aclose()
            listeners = listeners[:1]
        bound = listeners[0].socket.getsockname()[1]
        doorway = _Doorway(self._strangers_max, self._connections_max)

        async def accept(stream: trio.SocketStream) -> None:
            await self._run_handler(stream, handler, doorway)

        task_status.started(f"{address.rpartition(':')[0]}:{bound}")
        await trio.serve_listeners(accept, listeners)

    async def _run_handler(self, raw: trio.SocketStream, handler: Handler, doorway: _Doorway) -> None:
        scope = trio.CancelScope(deadline=trio.current_time() + self._hello_s)
        try:
            peer = raw.socket.getpeername()
            address = f"{peer[0]}:{peer[1]}"
            stream = TcpStream(raw, address, lambda: doorway.known(scope))
        except OSError:  # gone before we looked
            await trio.aclose_forcefully(raw)
            return
        try:
            if not doorway.enter(scope):
                self._event("connection_refused", address=address, connections=self._connections_max)
                return
            with scope:
                await handler(stream)
            if scope.cancelled_caught:
                self._event("stranger_dropped", address=address, hello_s=self._hello_s)
        except Exception as e:  # whatever it is, it must not reach the listener's nursery
            self._event("connection_failed", address=address, peer=stream.peer_name, error=f"{type(e).__name__}: {e}")
        finally:
            doorway.leave(scope)
            await trio.aclose_forcefully(raw)

    def _event(self, name: str, **fields: Any) -> None:
        if self._trace is not None:
            self._trace.event(name, **fields)


class _Doorway:
    """Who is inside a listener: strangers in order of arrival, and everybody."""

    def __init__(self, strangers_max: int, connections_max: int) -> None:
        self._strangers_max = strangers_max
        self._connections_max = connections_max
        self._strangers: dict[trio.CancelScope, None] = {}
        self._count = 0

    def enter(self, scope: trio.CancelScope) -> bool:
        """Counts a new stranger, sending the oldest away when there are too many; False when the house is full."""
        self._count += 1
        if self._count > self._connections_max:
            return False
        self._strangers[scope] = None
        if len(self._strangers) > self._strangers_max:
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            oldest.cancel()
        return True

    def known(self, scope: trio.CancelScope) -> None:
        if self._strangers.pop(scope, scope) is None:
            scope.deadline = float("inf")

    def leave(self, scope: trio.CancelScope) -> None:
        self._strangers.pop(scope, None)
        self._count -= 1


def _reason(error: BaseException) -> str:
    """What the system said, from inside whatever it was wrapped in."""
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(dict.fromkeys(_reason(e) for e in error.exceptions))
    if error.__cause__ is not None and (not isinstance(error, OSError) or error.errno is None):
        return _reason(error.__cause__)
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        return "the address is in use by another process"
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)
