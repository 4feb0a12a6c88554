"""TCP behind the Network interface: errors name the address, and strangers do no harm."""

from __future__ import annotations

import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import check_two_way_stream

from spe.errors import LinkBroken, PortInUse
from spe.runtime.network import TcpNetwork, TcpStream, parse_address
from spe.runtime.rate_limited_trace import PER_SECOND

Handler = Callable[[trio.abc.Stream], Awaitable[None]]


class Events:
    """A trace that keeps its events, and can be waited for."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.fields: list[dict[str, Any]] = []
        self._send, self._receive = trio.open_memory_channel[str](100)

    def event(self, name: str, /, **fields: Any) -> None:
        self.names.append(name)
        self.fields.append(fields)
        self._send.send_nowait(name)

    async def next(self) -> str:
        return await self._receive.receive()


async def echo(stream: trio.abc.Stream) -> None:
    assert isinstance(stream, TcpStream)
    stream.peer_name = "known"
    while data := await stream.receive_some():
        await stream.send_all(data)


@asynccontextmanager
async def served(
    network: TcpNetwork, handler: Handler
) -> AsyncIterator[tuple[str, Callable[[], Awaitable[TcpStream]]]]:
    """The address of a running listener, and a function that connects to it; all is closed at the end."""
    streams: list[TcpStream] = []
    async with trio.open_nursery() as nursery:
        address = await nursery.start(
            lambda task_status: network.serve("127.0.0.1:0", handler, task_status=task_status)
        )

        async def dial() -> TcpStream:
            streams.append(await network.connect(address))
            return streams[-1]

        yield address, dial
        for stream in streams:
            await stream.aclose()
        nursery.cancel_scope.cancel()


async def answer(stream: trio.abc.Stream, data: bytes = b"ping") -> bytes:
    await stream.send_all(data)
    return bytes(await stream.receive_some())


@pytest.mark.parametrize(
    ("text", "parts"),
    [("localhost:7000", ("localhost", 7000)), ("[::1]:0", ("::1", 0)), ("10.0.0.1:65535", ("10.0.0.1", 65535))],
)
def test_an_address_is_host_and_port(text: str, parts: tuple[str, int]) -> None:
    assert parse_address(text) == parts


@pytest.mark.parametrize(
    "text", ["", "localhost", ":7000", "localhost:", "localhost:x", "localhost:65536", "a:-1", "a:²"]
)
def test_other_texts_are_no_addresses(text: str) -> None:
    with pytest.raises(ValueError, match="expected an address such as localhost:7000"):
        parse_address(text)


async def test_bytes_pass_in_both_directions_and_port_zero_is_resolved() -> None:
    network = TcpNetwork()
    async with served(network, echo) as (address, dial):
        assert re.fullmatch(r"127\.0\.0\.1:[1-9]\d*", address)
        stream = await dial()
        assert stream.address == address
        assert await answer(stream) == b"ping"


async def test_a_connection_keeps_the_rules_of_trios_streams() -> None:
    """trio's own checks of closing, cancelling, two tasks at once, and a peer that is gone."""
    ends: list[TcpStream] = []

    async def hold(stream: trio.abc.Stream) -> None:
        assert isinstance(stream, TcpStream)
        stream.peer_name = "known"
        ends.append(stream)
        await trio.sleep_forever()

    async with served(TcpNetwork(), hold) as (_address, dial):

        async def pair() -> tuple[TcpStream, TcpStream]:
            before = len(ends)
            near = await dial()
            while len(ends) == before:
                await trio.lowlevel.checkpoint()
            return near, ends[-1]

        async def clogged() -> tuple[TcpStream, TcpStream]:
            both = await pair()
            for one in both:
                while one._send(bytes(1 << 16)):
                    pass
            return both

        await check_two_way_stream(pair, clogged)


async def test_a_refused_connection_names_address_and_reason() -> None:
    network = TcpNetwork()
    async with served(network, echo) as (address, _dial):
        pass
    with pytest.raises(LinkBroken, match=f"^cannot connect to {address}: Connection refused$"):
        await network.connect(address)


async def test_a_connect_has_a_time_limit() -> None:
    with pytest.raises(LinkBroken, match=r"cannot connect to 127\.0\.0\.1:9: no answer within 0 s"):
        await TcpNetwork().connect("127.0.0.1:9", 0)


async def test_a_taken_port_is_named() -> None:
    network = TcpNetwork()
    async with served(network, echo) as (address, _dial):
        with pytest.raises(PortInUse, match=f"cannot listen on {address}: the address is in use"):
            await network.serve(address, echo)


async def test_waiting_peers_are_accepted_in_few_turns() -> None:
    """Turns of a process with much to do are long; peers do not wait for one turn each."""
    inside = 0

    async def count(stream: trio.abc.Stream) -> None:
        nonlocal inside
        inside += 1
        await trio.sleep_forever()

    async with served(TcpNetwork(), count) as (address, _):
        waiting = [socket.create_connection(parse_address(address)) for _ in range(40)]
        turns = 0
        while inside < len(waiting):
            await trio.lowlevel.checkpoint()
            turns += 1
        for one in waiting:
            one.close()
    assert turns <= 12


async def test_an_exception_of_a_handler_ends_only_its_connection() -> None:
    events = Events()

    async def moody(stream: trio.abc.Stream) -> None:
        if await stream.receive_some() == b"bad":
            raise ValueError("bad manners")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.send_all, b"good")

    network = TcpNetwork(trace=events)
    async with served(network, moody) as (_address, dial):
        bad, good = await dial(), await dial()
        await bad.send_all(b"bad")
        assert await bad.receive_some() == b""
        assert await answer(good) == b"good"
        assert await answer(await dial()) == b"good"
    assert events.names == ["connection_failed"]
    assert events.fields[0]["error"] == "ValueError: bad manners"


async def test_a_stranger_without_a_hello_is_closed_after_a_while() -> None:
    events = Events()
    network = TcpNetwork(hello_s=0, trace=events)

    async def wait(stream: trio.abc.Stream) -> None:
        await stream.receive_some()

    async with served(network, wait) as (_address, dial):
        stream = await dial()
        assert await stream.receive_some() == b""
        assert await events.next() == "stranger_dropped"


async def test_the_oldest_stranger_makes_room_and_peers_stay() -> None:
    """A flood of slow strangers cannot keep a peer out, nor drive one away."""
    network = TcpNetwork(strangers_max=2, hello_s=1000)

    async def on_request(stream: trio.abc.Stream) -> None:
        assert isinstance(stream, TcpStream)
        await stream.receive_some()
        stream.peer_name = "known"
        await stream.send_all(b"welcome")
        while data := await stream.receive_some():
            await stream.send_all(data)

    async with served(network, on_request) as (_address, dial):
        known = await dial()
        assert await answer(known) == b"welcome"
        strangers = [await dial() for _ in range(5)]
        for gone in strangers[:3]:
            assert await gone.receive_some() == b""
        late = await dial()  # displaces the fourth
        assert await answer(late) == b"welcome"
        assert await answer(known) == b"ping"
        assert await answer(strangers[4]) == b"welcome"


async def test_no_peer_is_accepted_at_the_limit() -> None:
    events = Events()
    network = TcpNetwork(connections_max=1, trace=events)
    async with served(network, echo) as (_address, dial):
        first = await dial()
        assert await answer(first) == b"ping"
        second = await dial()
        assert await second.receive_some() == b""
        assert events.names == ["connection_refused"]
        assert await answer(first) == b"ping"


async def test_peer_that_acknowledges_no_bytes_is_disconnected() -> None:
    """Authenticated or not: the kernel notices that no byte was acknowledged for too long."""
    given_up = trio.Event()

    async def flood(stream: trio.abc.Stream) -> None:
        assert isinstance(stream, TcpStream)
        stream.peer_name = "known"
        try:
            while True:
                await stream.send_all(bytes(1 << 20))
        except trio.BrokenResourceError:
            given_up.set()

    async with served(TcpNetwork(silent_s=0.5), flood) as (_address, dial):
        await dial()
        with trio.fail_after(20):
            await given_up.wait()


async def test_three_hundred_silent_strangers_do_not_block_a_peer() -> None:
    events = Events()
    events.event = lambda name, /, **fields: events.names.append(name)  # type: ignore[method-assign]
    begun = trio.current_time()
    async with served(TcpNetwork(trace=events), echo_after_hello) as (_address, dial):
        known = await dial()
        assert await answer(known, b"hello") == b"hello"
        for _ in range(300):
            await dial()
        late = await dial()
        assert await answer(late, b"hello") == b"hello"
        assert await answer(known) == b"ping"
    seconds = int(trio.current_time() - begun) + 1  # however slow the machine is
    assert 0 < len(events.names) <= PER_SECOND * seconds, "counted, but not each told"


async def echo_after_hello(stream: trio.abc.Stream) -> None:
    assert isinstance(stream, TcpStream)
    while data := await stream.receive_some():
        stream.peer_name = "known"
        await stream.send_all(data)
