"""The fault proxy between real sockets holds, delays, breaks and refuses."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import pytest
import trio
import trio.testing

from consistency.faults.kind import LinkFaults
from replicas.faults.proxy import FaultProxy, Route
from replicas.local.ports import free_addresses
from spe.runtime.network import parse_address

#: Longer than anything on loopback takes.
SOON_S = 5.0
A_WHILE_S = 0.15


@asynccontextmanager
async def linked() -> AsyncIterator[tuple[FaultProxy, Route, trio.SocketStream, trio.SocketStream]]:
    """A proxy, its route from a to b, and the two ends of a connection through it: a's and b's."""
    listen, target = free_addresses(2)
    route = Route("a", "b", listen, target)
    proxy = FaultProxy([route], Random(1))
    host, port = parse_address(target)
    (listener,) = await trio.open_tcp_listeners(port, host=host)
    async with trio.open_nursery() as nursery:
        await nursery.start(proxy.run)
        with trio.fail_after(SOON_S):
            here = await trio.open_tcp_stream(*parse_address(listen))
            there = await listener.accept()
            await here.send_all(b"?")  # before it arrives, the proxy may not have both ends
            assert await there.receive_some(1) == b"?"
        try:
            yield proxy, route, here, there
        finally:
            nursery.cancel_scope.cancel()
            for one in (here, there, listener):
                with trio.CancelScope(shield=True):
                    await trio.aclose_forcefully(one)


async def received(stream: trio.SocketStream, count: int) -> bytes:
    data = b""
    with trio.fail_after(SOON_S):
        while len(data) < count and (piece := await stream.receive_some(count - len(data))):
            data += piece
    return data


async def silent(stream: trio.SocketStream) -> bool:
    with trio.move_on_after(A_WHILE_S) as scope:
        await stream.receive_some(1)
    return scope.cancelled_caught


async def test_without_faults_bytes_and_ends_pass_in_both_directions() -> None:
    async with linked() as (_, _route, here, there):
        async with trio.open_nursery() as nursery:  # more than the proxy and both kernels hold
            nursery.start_soon(here.send_all, b"x" * 10_000_000)
            assert await received(there, 10_000_000) == b"x" * 10_000_000
        await there.send_all(b"back")
        assert await received(here, 4) == b"back"
        await here.send_eof()
        assert await received(there, 1) == b""
        await there.send_all(b"more")  # the other direction still works
        assert await received(here, 4) == b"more"


async def test_a_held_direction_keeps_order_and_the_other_continues() -> None:
    async with linked() as (proxy, _, here, there):
        proxy.set_ways({("a", "b"): LinkFaults(cut=True)})
        await here.send_all(b"one")
        await here.send_all(b"two")
        assert await silent(there)
        await there.send_all(b"back")
        assert await received(here, 4) == b"back"
        proxy.set_ways({})
        assert await received(there, 6) == b"onetwo"


async def test_a_held_link_buffers_one_window() -> None:
    async with linked() as (proxy, _, here, _there):
        proxy.set_ways({("a", "b"): LinkFaults(cut=True)})
        with trio.move_on_after(1) as scope:
            await here.send_all(bytes(64 << 20))
        assert scope.cancelled_caught


async def test_delay_and_bandwidth_postpone_bytes() -> None:
    async with linked() as (proxy, _, here, there):
        proxy.set_ways({("a", "b"): LinkFaults(delay_us=200_000, jitter_us=10_000)})
        began = trio.current_time()
        await here.send_all(b"late")
        assert await received(there, 4) == b"late"
        assert trio.current_time() - began >= 0.2
        proxy.set_ways({("a", "b"): LinkFaults(bytes_per_s=100_000)})
        began = trio.current_time()
        await here.send_all(b"y" * 30_000)
        assert await received(there, 30_000) == b"y" * 30_000
        assert trio.current_time() - began >= 0.25


async def test_a_reset_breaks_the_connection_at_both_ends() -> None:
    async with linked() as (proxy, _, here, there):
        proxy.reset("b", "a")
        for end in (here, there):
            with pytest.raises(trio.BrokenResourceError), trio.fail_after(SOON_S):
                await end.receive_some(1)


async def test_a_half_open_connection_loses_bytes_and_new_ones_work() -> None:
    async with linked() as (proxy, route, here, there):
        assert not proxy.half_open("a", "c")
        assert proxy.half_open("b", "a")
        assert not proxy.half_open("a", "b"), "there is no other one"
        await here.send_all(bytes(4 << 20))  # more than a window: it is read, and vanishes
        assert await silent(there)
        await here.aclose()
        assert await silent(there), "it does not hear that the other end has gone"
        with trio.fail_after(SOON_S):
            again = await trio.open_tcp_stream(*parse_address(route.listen))
            await again.send_all(b"heard")
        await trio.aclose_forcefully(again)
        await trio.testing.wait_all_tasks_blocked()


async def test_a_refused_link_keeps_open_connections_and_returns() -> None:
    async with linked() as (proxy, route, here, there):
        await proxy.refuse({("a", "b")})
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(OSError, match="all attempts to connect"), trio.fail_after(SOON_S):
            await trio.open_tcp_stream(*parse_address(route.listen))
        await here.send_all(b"still")
        assert await received(there, 5) == b"still"
        await proxy.refuse(set())
        with trio.fail_after(SOON_S):
            again = await trio.open_tcp_stream(*parse_address(route.listen))
        await trio.aclose_forcefully(again)


async def test_a_link_returns_when_several_refusals_end_at_once() -> None:
    """Each end of a fault sets the refused links anew; two of them tried to listen at one address."""
    async with linked() as (proxy, route, _, _):
        await proxy.refuse({("a", "b")})
        async with trio.open_nursery() as nursery:
            for pairs in (set[tuple[str, str]](), {("a", "b")}, set[tuple[str, str]](), set[tuple[str, str]]()):
                nursery.start_soon(proxy.refuse, pairs)
        with trio.fail_after(SOON_S):
            await proxy.refuse(set())
            again = await trio.open_tcp_stream(*parse_address(route.listen))
        await trio.aclose_forcefully(again)


async def test_a_link_returns_after_its_port_was_taken() -> None:
    async with linked() as (proxy, route, _, _):
        await proxy.refuse({("a", "b")})
        host, port = parse_address(route.listen)
        (thief,) = await trio.open_tcp_listeners(port, host=host)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(proxy.refuse, set[tuple[str, str]]())
            await trio.testing.wait_all_tasks_blocked()
            await thief.aclose()
        with trio.fail_after(SOON_S):
            again = await trio.open_tcp_stream(host, port)
        await trio.aclose_forcefully(again)


async def test_a_dead_target_resets_the_connection() -> None:
    listen, target = free_addresses(2)
    proxy = FaultProxy([Route("a", "b", listen, target)], Random(1))
    async with trio.open_nursery() as nursery:
        await nursery.start(proxy.run)
        with trio.fail_after(SOON_S):
            stream = await trio.open_tcp_stream(*parse_address(listen))
            with pytest.raises(trio.BrokenResourceError):
                await stream.receive_some(1)
        await trio.aclose_forcefully(stream)
        nursery.cancel_scope.cancel()
