"""Sending: at once where the kernel has room, otherwise in order, and never one message inside another."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from replicas.link.connection import YIELD_BYTES, Connection
from spe.errors import LinkBroken
from spe.runtime.network import TcpNetwork, TcpStream
from spe.wire.messages.commands import StatusRequest


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[Connection, TcpStream, trio.Nursery]]:
    """A connection over TCP, the stream at its other end, and a nursery that ends with them."""
    network = TcpNetwork()
    accepted: list[TcpStream] = []
    came = trio.Event()

    async def handler(stream: trio.abc.Stream) -> None:
        assert isinstance(stream, TcpStream)
        stream.peer_name = "test"  # authenticated, so it may stay
        accepted.append(stream)
        came.set()
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        address = await nursery.start(
            lambda task_status: network.serve("127.0.0.1:0", handler, task_status=task_status)
        )
        connection = Connection(await network.connect(address))
        await came.wait()
        yield connection, accepted[0], nursery
        nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            await connection.aclose()


async def test_large_messages_of_two_tasks_are_not_interleaved() -> None:
    size = 8 << 20  # far more than the kernel takes at once
    async with connected() as (connection, other, nursery):
        received = bytearray()
        for letter in (b"a", b"b"):
            nursery.start_soon(connection.send_bytes, letter * size)
        while len(received) < 2 * size:
            received += await other.receive_some()
        assert bytes(received) in (b"a" * size + b"b" * size, b"b" * size + b"a" * size)


async def test_parts_of_a_frame_are_reported_before_it_is_whole() -> None:
    ours, theirs = trio.testing.memory_stream_pair()
    sender, connection, told = Connection(theirs), Connection(ours), []
    connection.arriving = lambda: told.append(connection.received)
    whole = bytearray()
    async with trio.open_nursery() as nursery:
        await sender.send(StatusRequest())
        assert isinstance(await connection.receive_message(), StatusRequest)
        assert told == []
        pair_ours, pair_theirs = trio.testing.memory_stream_pair()
        await Connection(pair_theirs).send(StatusRequest())
        whole += await pair_ours.receive_some()
        nursery.start_soon(connection.receive_message)
        before = connection.received
        for byte in range(len(whole)):
            await theirs.send_all(whole[byte : byte + 1])
            await trio.testing.wait_all_tasks_blocked()
    assert told == [before + count for count in range(1, len(whole))]


async def test_peer_that_does_not_read_is_abandoned_at_deadline() -> None:
    async with connected() as (connection, _, nursery):
        nursery.start_soon(connection.send_bytes, bytes(64 << 20))
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(LinkBroken, match="it reads nothing"):
            await connection.send_within(StatusRequest(), 0.05, "it reads nothing")


class TakesAll(trio.abc.Stream):
    """A stream whose buffers are never full; how much a real kernel takes at once varies."""

    def send_now(self, data: bytes) -> int:
        return len(data)

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        raise AssertionError("it was taken at once")

    async def wait_send_all_might_not_block(self) -> None:
        raise AssertionError("it was taken at once")

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        raise AssertionError("nobody receives here")

    async def aclose(self) -> None:
        raise AssertionError("nobody closes it")


async def test_sending_small_messages_yields_to_other_tasks() -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    connection = Connection(TakesAll())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(count)
        for _ in range(8):
            await connection.send_bytes(bytes(YIELD_BYTES // 4))
        assert 1 <= turns <= 2  # which task runs first in a round is random
        nursery.cancel_scope.cancel()
