"""Accepts connections of browsers, few and at a limited rate, and forwards them to the web server.

The web server listens on a socket of the file system that only the owner can open.  A browser that hangs occupies a
place here for a while, and nothing else.  The web server starts with the first connection, so an unused page is free.
"""

from __future__ import annotations

import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import trio

from spe.errors import PortInUse
from spe.runtime.network import parse_address

#: Connections per second, after a burst; opening the page needs about ten.
ACCEPTED_PER_SECOND: Final = 50
BURST: Final = 40
BACKLOG: Final = 64
#: Largest number of connections; the oldest idle one is closed for a new one.
CONNECTIONS_MAX: Final = 48
#: A browser that receives nothing for so long is disconnected; one that sends nothing is after IDLE_S.
SEND_S: Final = 10.0
IDLE_S: Final = 120.0
#: Bytes per second that a browser may send on a connection; requests are short.
BYTES_PER_SECOND: Final = 32 << 10
_CHUNK: Final = 32 << 10


class Door:
    """Forwards connections to the web server.

    Args:
      serve: the web server: listens at the given path, and reports when it does; started once.
    """

    def __init__(self, serve: Callable[[str, trio.TaskStatus[None]], Awaitable[None]]) -> None:
        self._serve = serve
        self._started: trio.Event | None = None
        #: In order of the last activity.
        self._connections: dict[trio.CancelScope, None] = {}
        self.accepted = self.dropped = 0

    async def run(self, address: str, *, task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED) -> None:
        """Serves until cancelled; ``task_status`` gets the bound address.  Raises PortInUse."""
        host, port = parse_address(address)
        try:
            listeners = await trio.open_tcp_listeners(port, host=host, backlog=BACKLOG)
        except OSError as error:
            raise PortInUse(f"cannot listen on {address}: {error.strerror or error}") from error
        for extra in listeners[1:]:  # a name with several addresses
            await extra.aclose()
        # Only the owner can enter the folder.
        with tempfile.TemporaryDirectory(prefix="spe-") as folder:
            self._path = str(Path(folder) / "page")
            async with listeners[0] as listener, trio.open_nursery() as servers:
                bound = listener.socket.getsockname()[1]
                task_status.started(f"{address.rpartition(':')[0]}:{bound}")
                # Browsers first: the server waits until they have received its answers.
                async with trio.open_nursery() as nursery:
                    await self._accept(listener, nursery, servers)

    async def _accept(self, listener: trio.SocketListener, nursery: trio.Nursery, servers: trio.Nursery) -> None:
        interval_s, next_at = 1 / ACCEPTED_PER_SECOND, trio.current_time()
        while True:
            try:
                stream = await listener.accept()
            except OSError:  # no file descriptor is left; the next connection waits
                await trio.sleep(interval_s)
                continue
            self.accepted += 1
            if len(self._connections) >= CONNECTIONS_MAX:
                oldest = next(iter(self._connections))
                del self._connections[oldest]
                oldest.cancel()
                self.dropped += 1
            scope = trio.CancelScope()
            self._connections[scope] = None
            nursery.start_soon(self._attend, stream, scope, servers)
            next_at = max(next_at, trio.current_time() - BURST * interval_s) + interval_s
            await trio.sleep_until(next_at)

    async def _attend(self, browser: trio.SocketStream, scope: trio.CancelScope, servers: trio.Nursery) -> None:
        try:
            with scope:
                async with await self._server(servers) as server, trio.open_nursery() as nursery:
                    nursery.start_soon(self._requests, browser, server, nursery)
                    await self._answers(server, browser, scope)
                    nursery.cancel_scope.cancel()
        except* (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # one of the two has disconnected
        finally:
            self._connections.pop(scope, None)
            await trio.aclose_forcefully(browser)

    async def _server(self, servers: trio.Nursery) -> trio.SocketStream:
        """Connects to the web server; starts it for the first connection."""
        if self._started is None:
            self._started = trio.Event()
            await servers.start(self._run_server)
            self._started.set()
        await self._started.wait()
        return await trio.open_unix_socket(self._path)

    async def _run_server(self, *, task_status: trio.TaskStatus[None]) -> None:
        await self._serve(self._path, task_status)

    async def _requests(self, browser: trio.SocketStream, server: trio.SocketStream, nursery: trio.Nursery) -> None:
        while data := await browser.receive_some(_CHUNK):
            await server.send_all(data)
            await trio.sleep(len(data) / BYTES_PER_SECOND)
        nursery.cancel_scope.cancel()

    async def _answers(self, server: trio.SocketStream, browser: trio.SocketStream, scope: trio.CancelScope) -> None:
        while True:
            data = b""
            with trio.move_on_after(IDLE_S):
                data = await server.receive_some(_CHUNK)
            with trio.move_on_after(SEND_S) as sending:
                await browser.send_all(data)
            if not data or sending.cancelled_caught:
                return
            if scope in self._connections:
                self._connections[scope] = self._connections.pop(scope)
