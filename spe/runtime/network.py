"""TCP implementation of the Network interface.

The peer of a connection is unknown until a handler sets ``stream.peer_name`` (see
:mod:`spe.runtime.connection_limits`).  Afterwards the kernel watches the connection: it fails if the peer acknowledges
nothing, or reads none of the waiting data, for ``silent_s``.  A consumer under back-pressure for so long subscribes
again at its position.
"""

from __future__ import annotations

import errno
import os
import socket
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

import trio
from trio.lowlevel import (
    cancel_shielded_checkpoint,
    checkpoint_if_cancelled,
    notify_closing,
    wait_readable,
    wait_writable,
)

from spe.errors import LinkBroken, PortInUse, TurnedAway
from spe.runtime.connection_limits import CONNECTIONS_MAX, HELLO_S, STRANGERS_MAX, ConnectionLimits
from spe.runtime.env import Trace

Handler = Callable[[trio.abc.Stream], Awaitable[None]]

#: Default of the longest time to open a connection (timing.connect of a configuration).
CONNECT_S: Final = 0.6
#: Bytes of one receive; a frame is a view of the received bytes.
RECEIVE_BYTES: Final = 64 << 10
#: Unsent bytes in the kernel from which a sender waits: the size of one piece (PULL_BYTES of
#: replicas.producer.feed).  With trio's 16 KiB a sender with a slower reader is woken for every few rows.
UNSENT_BYTES: Final = 512 << 10
#: Most connections accepted in one turn.  They send their hellos in the next turns, and STRANGERS_MAX has room for the
#: connections of a few turns only.
ACCEPTED_AT_ONCE: Final = 16
#: A peer sends no reset if its machine is gone, or if it only stops reading: with these timeouts the kernel notices,
#: so that no task waits for ever.
_KEEPALIVE_S: Final = 15
SILENT_S: Final = 30.0


def parse_address(address: str) -> tuple[str, int]:
    """Host and port of ``host:port`` or ``[ipv6]:port``.  Raises ValueError."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise ValueError(f"expected an address such as localhost:7000, got {address!r}")
    return host.removeprefix("[").removesuffix("]"), int(port)


class TcpStream(trio.abc.Stream):
    """A TCP connection.

    It uses the system's socket directly: :class:`trio.SocketStream` makes some thirty Python calls per read and write,
    more than the rest of a node's work on the data.

    Args:
      stream: as opened or accepted by trio; must not be used by the caller any more.
      on_known: called when the peer's name is set.
      silent_s: see TcpNetwork.

    Attributes:
      address: address of the peer.

    Raises:
      OSError: the connection is gone already; ``stream`` still belongs to the caller.
    """

    def __init__(
        self,
        stream: trio.SocketStream,
        address: str,
        on_known: Callable[[], None] = lambda: None,
        silent_s: float = SILENT_S,
    ) -> None:
        self.address = address
        self._peer_name: str | None = None
        self._on_known = on_known
        self._sending = False
        for level, name, value in (
            (socket.SOL_SOCKET, "SO_KEEPALIVE", 1),
            (socket.IPPROTO_TCP, "TCP_KEEPIDLE", _KEEPALIVE_S),
            (socket.IPPROTO_TCP, "TCP_KEEPINTVL", _KEEPALIVE_S),
            (socket.IPPROTO_TCP, "TCP_USER_TIMEOUT", round(1000 * silent_s)),
            (socket.IPPROTO_TCP, "TCP_NOTSENT_LOWAT", UNSENT_BYTES),
        ):
            if hasattr(socket, name):  # only the first exists on all systems; TCP_NODELAY is set by trio
                stream.setsockopt(level, getattr(socket, name), value)
        old = stream.socket
        self._socket = socket.socket(old.family, old.type, old.proto, fileno=old.detach())
        self._socket.setblocking(False)

    @property
    def peer_name(self) -> str | None:
        """Name of the peer, once its hello is accepted.  Setting it lifts the limits for unknown peers."""
        return self._peer_name

    @peer_name.setter
    def peer_name(self, name: str) -> None:
        self._peer_name = name
        self._on_known()

    def send_now(self, data: bytes | bytearray | memoryview) -> int:
        """Sends as many bytes as the kernel accepts at once; returns their number."""
        if self._sending:
            raise trio.BusyResourceError("another task is sending on this connection")
        return self._send(data)

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        if self._sending:
            raise trio.BusyResourceError("another task is sending on this connection")
        self._sending = True
        try:
            await checkpoint_if_cancelled()
            sent = self._send(data)
            if sent == len(data):
                await cancel_shielded_checkpoint()  # sending to a fast reader must not starve other tasks
                return
            with memoryview(data) as view:
                while sent < len(view):
                    await wait_writable(self._socket)
                    with view[sent:] as rest:
                        sent += self._send(rest)
        finally:
            self._sending = False

    def _send(self, data: bytes | bytearray | memoryview) -> int:
        """Sends; returns the number of bytes that the kernel accepted."""
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise self._gone(error) from error

    async def wait_send_all_might_not_block(self) -> None:
        if self._sending:
            raise trio.BusyResourceError("another task is sending on this connection")
        if self._socket.fileno() == -1:
            raise trio.ClosedResourceError("this connection was closed")
        await wait_writable(self._socket)

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        size = RECEIVE_BYTES if max_bytes is None else max_bytes
        if size < 1:
            raise ValueError(f"expected a number of bytes, got {size}")
        await checkpoint_if_cancelled()
        data = self._receive(size)
        if data is not None:
            await cancel_shielded_checkpoint()
            return data
        while data is None:
            await wait_readable(self._socket)
            data = self._receive(size)
        return data

    def _receive(self, size: int) -> bytes | None:
        """Returns the received bytes; None: nothing has arrived yet."""
        try:
            return self._socket.recv(size)
        except BlockingIOError:
            return None
        except OSError as error:
            raise self._gone(error) from error

    def _gone(self, error: OSError) -> trio.BrokenResourceError | trio.ClosedResourceError:
        if self._socket.fileno() == -1:
            return trio.ClosedResourceError("this connection was closed")
        return trio.BrokenResourceError(f"the connection broke: {error}")

    async def aclose(self) -> None:
        if self._socket.fileno() != -1:
            notify_closing(self._socket)  # wakes the waiting tasks
            self._socket.close()
        await trio.lowlevel.checkpoint()


class _Listener(trio.abc.Listener[trio.SocketStream]):
    """Accepts several waiting connections in each turn of its task, not one.

    In a process with hundreds of partitions turns may be half a second apart.  With one connection per turn, the other
    peers would time out, connect again, and never be accepted.
    """

    def __init__(self, listener: trio.SocketListener) -> None:
        self._listener = listener
        self._accepted: deque[trio.SocketStream] = deque()
        self._socket = socket.socket(fileno=os.dup(listener.socket.fileno()))
        self._socket.setblocking(False)

    async def accept(self) -> trio.SocketStream:
        if not self._accepted:
            self._accepted.append(await self._listener.accept())
            self._accept_more()
        return self._accepted.popleft()

    def _accept_more(self) -> None:
        while len(self._accepted) < ACCEPTED_AT_ONCE:
            try:
                accepted, _ = self._socket.accept()
            except OSError:  # no connection waits; trio reports other errors when it accepts
                return
            self._accepted.append(trio.SocketStream(trio.socket.from_stdlib_socket(accepted)))

    async def aclose(self) -> None:
        self._socket.close()
        for stream in self._accepted:
            stream.socket.close()
        await self._listener.aclose()


class TcpNetwork:
    """The Network for production.

    Args:
      hello_s: longest time until an unknown peer must be known.
      strangers_max, connections_max: bounds on accepted connections, per listener.
      silent_s: longest time in which a peer may read none of the waiting data.
      trace: gets an event for each connection that fails; None: no events.
    """

    def __init__(
        self,
        *,
        hello_s: float = HELLO_S,
        strangers_max: int = STRANGERS_MAX,
        connections_max: int = CONNECTIONS_MAX,
        silent_s: float = SILENT_S,
        trace: Trace | None = None,
    ) -> None:
        self._hello_s = hello_s
        self._strangers_max = strangers_max
        self._connections_max = connections_max
        self._silent_s = silent_s
        self._trace = trace

    async def connect(self, address: str, seconds: float = CONNECT_S) -> TcpStream:
        """Opens a connection.  Raises LinkBroken, naming the address and the reason; name resolution counts, too."""
        host, port = parse_address(address)
        with trio.move_on_after(seconds):
            try:
                raw = await trio.open_tcp_stream(host, port)
                try:
                    return TcpStream(raw, address, silent_s=self._silent_s)
                except OSError:
                    raw.socket.close()
                    raise
            except OSError as e:
                broken = TurnedAway if _is_turned_away(e) else LinkBroken
                raise broken(f"cannot connect to {address}: {_reason(e)}") from e
        raise LinkBroken(f"cannot connect to {address}: no answer within {seconds:g} s")

    async def serve(
        self,
        address: str,
        handler: Handler,
        *,
        task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Runs ``handler`` per connection until cancelled.  An error of a handler ends only its connection.

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
        limits = ConnectionLimits(self._hello_s, self._strangers_max, self._connections_max, self._trace)

        async def accept(stream: trio.SocketStream) -> None:
            await self._run_handler(stream, handler, limits)

        task_status.started(f"{address.rpartition(':')[0]}:{bound}")
        await trio.serve_listeners(accept, [_Listener(listener) for listener in listeners])

    async def _run_handler(self, raw: trio.SocketStream, handler: Handler, limits: ConnectionLimits) -> None:
        try:
            peer = raw.socket.getpeername()
            visit = limits.visit(peer[0])
            stream = TcpStream(raw, f"{peer[0]}:{peer[1]}", visit.known, self._silent_s)
        except OSError:  # the connection is gone already
            raw.socket.close()
            return
        try:
            await limits.attend(visit, lambda: handler(stream))
        except Exception as e:  # no error may reach the listener's nursery
            why = f"{type(e).__name__}: {e}"
            limits.tell("connection_failed", address=stream.address, peer=stream.peer_name, error=why)
        finally:
            await trio.aclose_forcefully(stream)


def _is_turned_away(error: BaseException | None) -> bool:
    """Was a connection refused, at one of the addresses that were tried?"""
    if isinstance(error, BaseExceptionGroup):
        return any(map(_is_turned_away, error.exceptions))
    return isinstance(error, ConnectionRefusedError) or (error is not None and _is_turned_away(error.__cause__))


def _reason(error: BaseException) -> str:
    """The system's error message, from within wrapping exceptions."""
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(dict.fromkeys(_reason(e) for e in error.exceptions))
    if error.__cause__ is not None and (not isinstance(error, OSError) or error.errno is None):
        return _reason(error.__cause__)
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        return "the address is in use by another process"
    if isinstance(error, ConnectionRefusedError):
        return os.strerror(errno.ECONNREFUSED)  # trio's text repeats the address
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)
