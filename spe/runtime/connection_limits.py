"""Limits of a listener: connections, connections of unknown peers, and the time until a peer must be known.

An unknown peer has some seconds to send its hello.  When there are too many, the oldest one of the host with the most
of them is dropped.  A peer sends its hello within milliseconds, so a flood of slow strangers cannot keep it out, and a
flood from another host does not affect it at all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, Final

import trio

from spe.runtime.env import Trace
from spe.runtime.rate_limited_trace import RateLimitedTrace

#: Longest time until the peer of a connection is known: the handshake, if there is one, and the hello.
HELLO_S: Final = 2.0
#: Most connections of unknown peers.
STRANGERS_MAX: Final = 64
#: Most connections in all; the handler limits the connections of each known peer.
CONNECTIONS_MAX: Final = 1024


class Visit:
    """An accepted connection, as the limits count it."""

    def __init__(self, limits: ConnectionLimits, host: str, deadline: float) -> None:
        self.host = host
        self.scope = trio.CancelScope(deadline=deadline)
        self._limits = limits

    def known(self) -> None:
        """Ends the limits for unknown peers: this peer is known now."""
        self._limits.known(self)


class ConnectionLimits:
    """Counts the connections of one listener, and drops those above its limits.

    Args:
      hello_s: longest time until an unknown peer must be known.
      strangers_max, connections_max: bounds on connections.
      trace: gets an event for each connection that fails.
    """

    def __init__(self, hello_s: float, strangers_max: int, connections_max: int, trace: Trace | None) -> None:
        self._hello_s = hello_s
        self._strangers_max = strangers_max
        self._connections_max = connections_max
        self._trace = None if trace is None else RateLimitedTrace(trace)
        self._strangers: dict[Visit, None] = {}  # in order of arrival
        self._strangers_of: Counter[str] = Counter()
        self._count = 0

    def visit(self, host: str) -> Visit:
        return Visit(self, host, trio.current_time() + self._hello_s)

    async def attend(self, visit: Visit, handle: Callable[[], Awaitable[None]]) -> None:
        """Runs a connection's handler until the connection ends or is dropped."""
        self._count += 1
        try:
            if self._count > self._connections_max:
                self.tell("connection_refused", host=visit.host, connections=self._connections_max)
                return
            self._enter(visit)
            with visit.scope:
                await handle()
            if visit.scope.cancelled_caught:
                self.tell("stranger_dropped", host=visit.host, hello_s=self._hello_s)
        finally:
            self.known(visit)
            self._count -= 1

    def known(self, visit: Visit) -> None:
        if visit in self._strangers:
            del self._strangers[visit]
            self._strangers_of -= Counter((visit.host,))  # also drops hosts that have none left
            visit.scope.deadline = float("inf")

    def tell(self, name: str, **fields: Any) -> None:
        if self._trace is not None:
            self._trace.event(name, **fields)

    def _enter(self, visit: Visit) -> None:
        self._strangers[visit] = None
        self._strangers_of[visit.host] += 1
        if len(self._strangers) > self._strangers_max:
            most = max(self._strangers_of.values())
            oldest = next(s for s in self._strangers if self._strangers_of[s.host] == most)
            self.known(oldest)
            oldest.scope.cancel()
