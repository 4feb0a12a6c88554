"""Changes in a thread of its own: none is lost or acknowledged too early, in plain code and under asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import cast

import pytest
import trio

from replicas.client.changes import Changes
from replicas.client.client import Client
from replicas.client.session import Connecting
from replicas.client.threads import ThreadChanges
from spe.errors import SpeError
from spe.stream.batch import Batch, Boundary
from spe.stream.change import Change
from spe.stream.ids import Channel
from spe.stream.names import Kind, StreamId
from tests.simulation.test_connect import shop
from tests.unit.replicas.client.test_tables import rows_of

PLAN = shop().plan
SUMS = StreamId("sums")


class Scripted:
    """A client that gives some results, then waits, fails or ends."""

    def __init__(self, results: int, then: str = "end") -> None:
        self.acknowledged = -1
        self._results, self._then, self._given = results, then, 0
        self.closed = False

    async def next_change(self) -> Change | None:
        self.acknowledged = self._given - 1
        await trio.lowlevel.checkpoint()
        if self._given == self._results:
            if self._then == "wait":
                await trio.sleep_forever()
            if self._then == "fail":
                raise SpeError("ids are gone")
            return None
        at, self._given = self._given, self._given + 1
        rows = rows_of(PLAN.query.schema_of(SUMS), [(at, at + 1, at, at)])
        element = Boundary(Kind.STABLE, at, at) if at % 2 else Batch(Kind.STABLE, at, at + 1, None, rows)
        return Change(Channel(SUMS, 0), element, 0)

    def opened(self) -> Callable[[], AbstractAsyncContextManager[Changes]]:
        @asynccontextmanager
        async def connected() -> AsyncGenerator[Changes, None]:
            try:
                yield Changes(PLAN, cast("Client", self))
            finally:
                self.closed = True

        return connected


def test_a_loop_gets_all_rows_and_the_thread_ends() -> None:
    client = Scripted(7)
    with Connecting(client.opened()) as changes:
        found = [record["n"] for change in changes for record in change.records()]  # type: ignore[union-attr]
        assert list(changes) == []
    assert (found, client.acknowledged, client.closed) == ([0, 2, 4, 6], 6, True)


def test_a_change_is_acknowledged_when_the_next_is_asked_for() -> None:
    client = Scripted(5)
    with Connecting(client.opened()) as changes:
        for at in range(3):
            assert changes.wait()
            assert changes.take() is not None
            assert client.acknowledged == at - 1


def test_a_wait_that_ends_early_loses_nothing() -> None:
    client = Scripted(3, "wait")
    changes = ThreadChanges(client.opened())
    assert len(changes.collect(seconds=0.0).stable("sums")) in (0, 1, 2)
    while len(changes.received.stable("sums")) < 2:
        changes.collect(seconds=0.01)
    assert not changes.wait(0.0)
    changes.close()
    with pytest.raises(SpeError, match="closed"):
        changes.wait()
    assert client.closed


def test_error_is_raised_after_earlier_changes() -> None:
    with Connecting(Scripted(3, "fail").opened()) as changes:
        with pytest.raises(SpeError, match="ids are gone"):
            changes.collect()
        assert len(changes.received.stable("sums")) == 2


def test_an_error_of_connecting_is_raised_at_once() -> None:
    @asynccontextmanager
    async def refused() -> AsyncGenerator[Changes, None]:
        raise SpeError("nobody answers")
        yield

    with pytest.raises(SpeError, match="nobody answers"), Connecting(refused):
        pass


def test_under_asyncio_a_loop_gets_all_rows() -> None:
    client = Scripted(7)

    async def main() -> list[int]:
        async with Connecting(client.opened()) as changes:
            return [record["n"] async for change in changes for record in change.records()]  # type: ignore[union-attr]

    assert asyncio.run(main()) == [0, 2, 4, 6]
    assert client.closed


def test_under_asyncio_a_cancelled_wait_loses_nothing() -> None:
    client = Scripted(3, "wait")

    async def main() -> int:
        async with Connecting(client.opened()) as changes:
            received = await changes.collect(seconds=0.0)
            while len(received.stable("sums")) < 2:
                waiting = asyncio.ensure_future(anext(changes))
                await asyncio.sleep(0)
                waiting.cancel()
                received = await changes.collect(seconds=0.01)
            return len(received.stable("sums"))

    assert asyncio.run(main()) == 2
    assert client.closed


def test_under_asyncio_a_cancelled_collect_takes_nothing_more() -> None:
    async def main() -> tuple[int, list[int]]:
        async with Connecting(Scripted(9).opened()) as changes:
            collecting = asyncio.ensure_future(changes.collect())
            await asyncio.sleep(0)
            collecting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await collecting
            collected = len(changes.received.stable("sums"))
            rest = [record["n"] async for change in changes for record in change.records()]  # type: ignore[union-attr]
            assert len(changes.received.stable("sums")) == collected
            return collected, rest

    collected, rest = asyncio.run(main())
    assert rest == list(range(2 * collected, 9, 2))


def test_under_asyncio_waits_that_end_early_hold_no_threads() -> None:
    client = Scripted(0, "wait")

    async def main() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(2))
        async with Connecting(client.opened()) as changes:
            for _ in range(5):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(anext(changes), 0.01)

    asyncio.run(main())
    assert client.closed


def test_a_task_cancelled_while_connecting_leaves_nothing() -> None:
    client, go_on = Scripted(3, "wait"), trio.Event()

    entered: asyncio.Future[trio.lowlevel.TrioToken]

    @asynccontextmanager
    async def slow() -> AsyncGenerator[Changes, None]:
        token = trio.lowlevel.current_trio_token()
        entered.get_loop().call_soon_threadsafe(entered.set_result, token)
        await go_on.wait()
        async with client.opened()() as changes:
            yield changes

    async def main() -> None:
        nonlocal entered
        entered = asyncio.get_running_loop().create_future()
        task = asyncio.ensure_future(Connecting(slow).__aenter__())
        token = await entered
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        token.run_sync_soon(go_on.set)

    asyncio.run(main())  # which waits for its threads
    assert client.closed
