"""Limits of unauthenticated connections: their number and time, fairness among hosts, and few log lines."""

from __future__ import annotations

from typing import Any

import trio
import trio.testing
from trio.testing import MockClock

from spe.runtime.connection_limits import ConnectionLimits, Visit
from spe.runtime.rate_limited_trace import PER_SECOND, RateLimitedTrace


class Told:
    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []

    def event(self, name: str, /, **fields: Any) -> None:
        self.events.append((name, fields))


async def test_flood_from_one_host_displaces_only_its_connections() -> None:
    told = Told()
    limits, gone = ConnectionLimits(1000, 8, 10_000, told), []

    async def stay(visit: Visit) -> None:
        await limits.attend(visit, trio.sleep_forever)
        gone.append(visit.host)

    async with trio.open_nursery() as nursery:
        for host in ["peer", *["bad"] * 300, "peer"]:
            nursery.start_soon(stay, limits.visit(host))
            await trio.testing.wait_all_tasks_blocked()
        assert gone == ["bad"] * (302 - 8)
        nursery.cancel_scope.cancel()
    dropped = [fields for name, fields in told.events if name == "stranger_dropped"]
    assert len(dropped) == PER_SECOND, "a flood does not fill the trace"


async def test_an_authenticated_peer_is_no_stranger() -> None:
    limits = ConnectionLimits(1000, 2, 10_000, None)
    async with trio.open_nursery() as nursery:
        known = limits.visit("peer")
        nursery.start_soon(limits.attend, known, trio.sleep_forever)
        await trio.testing.wait_all_tasks_blocked()
        known.known()
        for _ in range(5):
            nursery.start_soon(limits.attend, limits.visit("peer"), trio.sleep_forever)
            await trio.testing.wait_all_tasks_blocked()
        assert not known.scope.cancel_called
        nursery.cancel_scope.cancel()


def test_a_rate_limited_trace_counts_omitted_events() -> None:
    told, now = Told(), [0.0]
    trace = RateLimitedTrace(told, lambda: now[0])
    for _ in range(PER_SECOND + 7):
        trace.event("bad", why="x")
    trace.event("other")
    now[0] = 1.5
    trace.event("bad", why="y")
    trace.event("bad", why="z")
    assert told.events[:PER_SECOND] == [("bad", {"why": "x"})] * PER_SECOND
    assert told.events[PER_SECOND:] == [
        ("other", {}),
        ("bad", {"why": "y", "left_out": 7}),
        ("bad", {"why": "z"}),
    ]


async def test_a_stranger_is_closed_after_its_time(autojump_clock: MockClock) -> None:
    limits = ConnectionLimits(2.0, 8, 8, None)
    begun = trio.current_time()
    await limits.attend(limits.visit("slow"), trio.sleep_forever)
    assert trio.current_time() - begun == 2.0
