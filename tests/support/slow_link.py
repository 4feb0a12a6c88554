"""A TCP link to a server that is slow, both ways: each piece waits before it passes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio


class SlowLink:
    """Relays connections to a server on this machine.

    Args:
      port: of the server.
      pause: awaited before a piece passes; one of a connection and direction at a time.
      piece_bytes: how much passes at once.

    Attributes:
      port: where it listens, once :meth:`serve` has started.
      passed: pieces so far, of all connections and both directions.
    """

    def __init__(self, port: int, pause: Callable[[], Awaitable[None]], *, piece_bytes: int = 4096) -> None:
        self._target = port
        self._pause = pause
        self._piece_bytes = piece_bytes
        self._alarm: tuple[int, Callable[[], None]] | None = None
        self.port = 0
        self.passed = 0

    def after(self, pieces: int, action: Callable[[], None]) -> None:
        """Calls ``action`` once, when so many more have passed; an earlier one that did not come is forgotten."""
        self._alarm = self.passed + pieces, action

    async def serve(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until it is cancelled, which breaks its connections."""
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        self.port = listeners[0].socket.getsockname()[1]
        task_status.started()
        await trio.serve_listeners(self._relay, listeners)

    async def _relay(self, ours: trio.SocketStream) -> None:
        theirs = await trio.open_tcp_stream("127.0.0.1", self._target)
        async with theirs, trio.open_nursery() as nursery:
            nursery.start_soon(self._pass_on, ours, theirs)
            nursery.start_soon(self._pass_on, theirs, ours)

    async def _pass_on(self, source: trio.SocketStream, target: trio.SocketStream) -> None:
        """Until one end is closed, or vanishes; what was read before still passes."""
        try:
            while data := await source.receive_some(self._piece_bytes):
                await self._pause()
                await target.send_all(data)
                self.passed += 1
                if self._alarm is not None and self.passed >= self._alarm[0]:
                    (_, action), self._alarm = self._alarm, None
                    action()
            await target.send_eof()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            await trio.aclose_forcefully(target)
            await trio.aclose_forcefully(source)


class Turns:
    """Counts what somebody else does, for those who wait for the next time."""

    def __init__(self) -> None:
        self.count = 0
        self._came = trio.Event()

    def one_more(self) -> None:
        self.count += 1
        self._came.set()
        self._came = trio.Event()

    async def next(self) -> None:
        await self._came.wait()
