"""Faults in a real process: a cut holds bytes and loses none; after healing everything arrives in order."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import pytest
import trio
import trio.testing

from replicas.faults.network import HELD_BYTES, FaultyNetwork, FaultyStream
from spe.errors import LinkBroken
from spe.runtime.network import Handler


class MemoryNetwork:
    """One listener, byte streams in memory."""

    def __init__(self) -> None:
        self._send, self._receive = trio.open_memory_channel[trio.abc.Stream](10)

    async def connect(self, address: str, seconds: float = 1.0) -> trio.abc.Stream:
        ours, theirs = trio.testing.memory_stream_pair()
        await self._send.send(theirs)
        return ours

    async def serve(self, address: str, handler: Handler, *, task_status: trio.TaskStatus[str]) -> None:
        task_status.started(address)
        async with trio.open_nursery() as nursery:
            async for stream in self._receive:
                nursery.start_soon(handler, stream)


@asynccontextmanager
async def linked() -> AsyncIterator[tuple[FaultyNetwork, FaultyStream, trio.abc.Stream, MemoryNetwork]]:
    """A process with faults, its stream to "there", the other end of that stream, and the network below."""
    below = MemoryNetwork()
    faulty = FaultyNetwork(below)
    stream = await faulty.connect("there")
    yield faulty, stream, await below._receive.receive(), below


async def received(stream: trio.abc.Stream, seconds: float) -> bytes | None:
    """The next bytes, or None when there are none within virtual ``seconds``."""
    with trio.move_on_after(seconds):
        return bytes(await stream.receive_some())
    return None


async def test_without_faults_bytes_pass(autojump_clock: Any) -> None:
    async with linked() as (_, here, there, _below):
        await here.send_all(b"to there")
        assert await received(there, 1) == b"to there"
        await there.send_all(b"to here")
        assert await received(here, 1) == b"to here"
        await here.aclose()
        assert await received(there, 1) == b""


async def test_cut_holds_both_directions_and_heal_delivers_in_order(autojump_clock: Any) -> None:
    async with linked() as (faulty, here, there, _below):
        faulty.cut("there")
        await here.send_all(b"a")
        await here.send_all(b"b")
        await there.send_all(b"c")
        assert await received(there, 60) is None
        assert await received(here, 60) is None
        await there.send_all(b"d")

        faulty.heal("there")
        await here.send_all(b"e")
        assert [await received(there, 1) for _ in range(3)] == [b"a", b"b", b"e"]
        assert [await received(here, 1) for _ in range(2)] == [b"c", b"d"]


@pytest.mark.parametrize("direction", ["in", "out"])
async def test_a_cut_may_have_one_direction(autojump_clock: Any, direction: Literal["in", "out"]) -> None:
    async with linked() as (faulty, here, there, _below):
        faulty.cut("there", direction)
        await here.send_all(b"to there")
        await there.send_all(b"to here")
        assert await received(there, 60) == (b"to there" if direction == "in" else None)
        assert await received(here, 60) == (b"to here" if direction == "out" else None)


async def test_the_end_of_a_connection_waits_behind_a_cut(autojump_clock: Any) -> None:
    """For the process the other end is silent, not gone."""
    async with linked() as (faulty, here, there, _below):
        faulty.cut("there")
        await there.aclose()
        assert await received(here, 60) is None
        faulty.heal()
        assert await received(here, 1) == b""


async def test_connecting_across_a_cut_times_out(autojump_clock: Any) -> None:
    for direction in ("in", "out"):
        faulty = FaultyNetwork(MemoryNetwork())
        faulty.cut("there", "in" if direction == "in" else "out")
        start = trio.current_time()
        with pytest.raises(LinkBroken, match=r"no answer within 0\.5 s"):
            await faulty.connect("there", 0.5)
        assert trio.current_time() - start == 0.5
        faulty.heal("there")
        await faulty.connect("there")


async def test_a_sender_waits_only_when_the_held_bytes_reach_the_limit(autojump_clock: Any) -> None:
    async with linked() as (faulty, here, there, _below):
        faulty.cut("there")
        await here.send_all(bytes(HELD_BYTES))
        with trio.move_on_after(60) as scope:
            await here.send_all(b"too much")
        assert scope.cancelled_caught
        faulty.heal()
        await here.send_all(b"end")
        data = b""
        while not data.endswith(b"end"):
            data += await there.receive_some()
        assert data == bytes(HELD_BYTES) + b"too much" + b"end"


async def test_a_delay_does_not_reduce_the_bandwidth(autojump_clock: Any) -> None:
    async with linked() as (faulty, here, there, _below):
        faulty.delay("there", 5)
        start = trio.current_time()
        for _ in range(3):
            await here.send_all(b"x")
            await trio.sleep(1)
        arrivals = []
        for _ in range(3):
            assert await received(there, 60) == b"x"
            arrivals.append(trio.current_time() - start)
        assert arrivals == [5, 6, 7]
        faulty.delay("there", 0)
        await here.send_all(b"now")
        assert await received(there, 0.1) == b"now"


async def test_bytes_sent_before_closing_still_arrive(autojump_clock: Any) -> None:
    async with linked() as (faulty, here, there, _below):
        faulty.delay("there", 5)
        await here.send_all(b"last words")
        await here.aclose()
        with pytest.raises(trio.ClosedResourceError):
            await here.send_all(b"more")
        assert await received(there, 60) == b"last words"
        assert await received(there, 60) == b""


async def test_connection_broken_with_held_bytes_fails_sender(autojump_clock: Any) -> None:
    async with linked() as (faulty, here, there, _below):
        faulty.cut("there")
        await here.send_all(b"lost")
        await trio.aclose_forcefully(there)
        faulty.heal()
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(trio.BrokenResourceError):
            await here.send_all(b"x")


async def test_accepted_connection_obeys_faults_once_peer_is_named(autojump_clock: Any) -> None:
    """Across a real cut it would not exist, so nothing passes from the hello on, in either direction.

    1. "n2" is cut off, incoming only; a connection comes in and says that it is n2
    2. the answer does not leave
    3. after healing it does
    """
    below = MemoryNetwork()
    faulty = FaultyNetwork(below)
    faulty.cut("n2", "in")

    async def handler(stream: trio.abc.Stream) -> None:
        assert isinstance(stream, FaultyStream)
        stream.peer_name = (await stream.receive_some()).decode()
        await stream.send_all(b"welcome")

    async with trio.open_nursery() as nursery:
        await nursery.start(lambda task_status: faulty.serve("here", handler, task_status=task_status))
        other, cut_off = await below.connect("here"), await below.connect("here")
        await cut_off.send_all(b"n2")
        await other.send_all(b"n3")
        assert await received(other, 60) == b"welcome"
        assert await received(cut_off, 60) is None
        faulty.heal("n2")
        assert await received(cut_off, 60) == b"welcome"
        nursery.cancel_scope.cancel()


async def test_a_receive_that_is_cancelled_during_a_cut_loses_nothing(autojump_clock: Any) -> None:
    async with linked() as (faulty, here, there, _below):
        faulty.cut("there")
        await there.send_all(b"kept")
        for _ in range(3):
            assert await received(here, 1) is None
        faulty.heal()
        assert await received(here, 1) == b"kept"
