"""A small HTTP server for a process's figures: GET and HEAD of a few paths, one request per connection.

Its clients must not slow the data path down.  Connections are accepted at a limited rate, last a limited time, and are
few; the oldest is closed for the newest.  A page is made at most ``1 / FRESH_S`` times per second, however often it is
requested.  So a hostile client costs at most ``ACCEPTED_PER_SECOND`` short requests per second.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

import trio

from spe.errors import PortInUse
from spe.runtime.network import parse_address

#: Connections accepted per second after a burst; others wait in the kernel, which refuses them beyond BACKLOG.
ACCEPTED_PER_SECOND: Final = 50
BURST: Final = 10
BACKLOG: Final = 64
#: Connections at the same time.
CONNECTIONS_MAX: Final = 16
#: Longest duration of a connection.
REQUEST_S: Final = 5.0
#: Longest request line with all headers.
REQUEST_BYTES: Final = 8 << 10
#: Age up to which a page is served again.
FRESH_S: Final = 0.5
#: Bytes read from a client that sends too much before the connection is closed.
_DRAIN_BYTES: Final = 64 << 10

_REASONS: Final = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    421: "Misdirected Request",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
}
#: Names of this machine for itself.
HERE: Final = frozenset({"127.0.0.1", "localhost", "::1"})
#: The Host header, without a port.
_HOST: Final = re.compile(rb"^host:[ \t]*(\[[^\]\s]*\]|[^:\s]*)", re.IGNORECASE | re.MULTILINE)
_TEXT: Final = "text/plain; charset=utf-8"


class Page(NamedTuple):
    """An answer."""

    body: str
    status: int = 200
    content_type: str = _TEXT


@dataclass(slots=True)
class _CachedPage:
    page: Page
    made_at: float


class HttpPort:
    """Serves pages.

    Args:
      pages: function that makes each page, by path.  It must be quick: it runs between two steps of the data path.
    """

    def __init__(self, pages: Mapping[str, Callable[[], Page]]) -> None:
        self._pages = pages
        #: Allowed Host headers of a loopback address, against DNS rebinding by web pages.
        self._hosts: frozenset[str] | None = None
        self._cache: dict[str, _CachedPage] = {}
        #: In order of arrival.
        self._connections: dict[trio.CancelScope, None] = {}
        #: Counts of accepted connections, and of those closed to make room.
        self.accepted = self.dropped = 0

    async def serve(self, address: str, *, task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED) -> None:
        """Serves until cancelled; ``task_status`` gets the bound address.  Raises PortInUse."""
        host, port = parse_address(address)
        try:
            listeners = await trio.open_tcp_listeners(port, host=host, backlog=BACKLOG)
        except OSError as error:
            raise PortInUse(f"cannot listen on {address}: {error.strerror or error}") from error
        for extra in listeners[1:]:  # a name with several addresses
            await extra.aclose()
        listener = listeners[0]
        async with listener, trio.open_nursery() as nursery:
            bound = listener.socket.getsockname()[1]
            if host in HERE:
                self._hosts = frozenset(f"[{h}]" if ":" in h else h for h in HERE)
            task_status.started(f"{address.rpartition(':')[0]}:{bound}")
            await self._accept(listener, nursery)

    async def _accept(self, listener: trio.SocketListener, nursery: trio.Nursery) -> None:
        interval_s, next_at = 1 / ACCEPTED_PER_SECOND, trio.current_time()
        while True:
            try:
                stream = await listener.accept()
            except OSError:  # no descriptor left: the next connection waits
                await trio.sleep(interval_s)
                continue
            self.accepted += 1
            if len(self._connections) >= CONNECTIONS_MAX:
                oldest = next(iter(self._connections))
                del self._connections[oldest]
                oldest.cancel()
                self.dropped += 1
            scope = trio.CancelScope(deadline=trio.current_time() + REQUEST_S)
            self._connections[scope] = None
            nursery.start_soon(self._attend, stream, scope)
            next_at = max(next_at, trio.current_time() - BURST * interval_s) + interval_s
            await trio.sleep_until(next_at)

    async def _attend(self, stream: trio.SocketStream, scope: trio.CancelScope) -> None:
        try:
            with scope:
                await self._answer(stream)
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # the client is gone
        finally:
            self._connections.pop(scope, None)
            await trio.aclose_forcefully(stream)

    async def _answer(self, stream: trio.SocketStream) -> None:
        request = bytearray()
        while b"\r\n\r\n" not in request and b"\n\n" not in request:
            if len(request) > REQUEST_BYTES:
                await self._send(stream, Page(f"expected at most {REQUEST_BYTES} bytes\n", 431))
                await self._drain(stream)
                return
            data = await stream.receive_some(REQUEST_BYTES)
            if not data:
                return
            request += data
        words = bytes(request[: request.index(b"\n")]).split()
        if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
            await self._send(stream, Page("expected a request of HTTP/1.1\n", 400))
            return
        method, target = words[0], words[1].partition(b"?")[0].decode("ascii", "replace")
        if method not in (b"GET", b"HEAD"):
            await self._send(stream, Page("expected GET or HEAD\n", 405))
            await self._drain(stream)
            return
        host = _HOST.search(request)
        if self._hosts is not None and host is not None and host[1].decode("latin-1").lower() not in self._hosts:
            await self._send(stream, Page("expected the address of this machine as Host\n", 421))
            return
        await self._send(stream, self._page(target), head=method == b"HEAD")

    def _page(self, path: str) -> Page:
        make = self._pages.get(path)
        if make is None:
            return Page(f"no such page; expected one of {', '.join(self._pages)}\n", 404)
        now = trio.current_time()
        cached = self._cache.get(path)
        if cached is None or now - cached.made_at >= FRESH_S:
            try:
                page = make()
            except Exception as error:  # no error may reach the data path
                page = Page(f"{type(error).__name__}: {error}\n", 500)
            cached = self._cache[path] = _CachedPage(page, now)
        return cached.page

    async def _send(self, stream: trio.SocketStream, page: Page, *, head: bool = False) -> None:
        body = page.body.encode("utf-8", "replace")
        lines = [
            f"HTTP/1.1 {page.status} {_REASONS[page.status]}",
            f"Content-Type: {page.content_type}",
            f"Content-Length: {len(body)}",
            "Cache-Control: no-store",
            "X-Content-Type-Options: nosniff",
            "Connection: close",
        ]
        if page.status == 405:
            lines.append("Allow: GET, HEAD")
        await stream.send_all("\r\n".join([*lines, "", ""]).encode("ascii") + (b"" if head else body))
        await stream.send_eof()

    async def _drain(self, stream: trio.SocketStream) -> None:
        """Reads the rest of the request; closing earlier would discard the answer."""
        taken = 0
        while taken < _DRAIN_BYTES and (data := await stream.receive_some(REQUEST_BYTES)):
            taken += len(data)
