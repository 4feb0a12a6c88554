"""A trio program in a thread: results, errors and ends reach the other side."""

from __future__ import annotations

import gc
import threading
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager, nullcontext

import pytest
import trio

from replicas.client.background import Background, items_of
from spe.errors import NotReachable, SpeError


async def for_ever(*, task_status: trio.TaskStatus[None]) -> None:
    task_status.started()
    await trio.sleep_forever()


def threads() -> int:
    return sum(t.name == "spe" for t in threading.enumerate())


def test_background_call_gives_result_error_or_timeout() -> None:
    async def double(n: int) -> int:
        return 2 * n

    async def fail() -> None:
        raise SpeError("broken")

    running = Background(for_ever)
    assert running.call(double, 4, seconds=10, waits_for="it") == 8
    with pytest.raises(SpeError, match="broken"):
        running.call(fail, seconds=10, waits_for="it")
    with pytest.raises(NotReachable, match=r"no node answers within 0\.01 s \(option patience\)"):
        running.call(trio.sleep_forever, seconds=0.01, waits_for="no node answers")
    running.stop()
    running.stop()
    assert not threads()


def test_error_that_ends_program_is_raised_to_every_caller() -> None:
    async def ends(*, task_status: trio.TaskStatus[None]) -> None:
        task_status.started()
        await go.wait()
        raise SpeError("cut")

    async def nothing() -> None: ...

    go = trio.Event()
    running = Background(ends)
    trio.from_thread.run_sync(go.set, trio_token=running.token)
    running._thread.join()
    with pytest.raises(SpeError, match="cut"):
        running.call(nothing, seconds=1, waits_for="it")


def test_error_that_ends_program_is_raised_to_waiting_caller() -> None:
    async def ends(*, task_status: trio.TaskStatus[None]) -> None:
        task_status.started()
        await called.wait()
        raise SpeError("cut")

    async def for_ever() -> None:
        called.set()
        await trio.sleep_forever()

    called = trio.Event()
    with pytest.raises(SpeError, match="cut"):
        Background(ends).call(for_ever, seconds=60, waits_for="it")


def test_a_program_that_does_not_start_says_why() -> None:
    async def fails(*, task_status: trio.TaskStatus[None]) -> None:
        raise SpeError("no certificate")

    with pytest.raises(SpeError, match="no certificate"):
        Background(fails)


@pytest.mark.parametrize("fails", [False, True])
def test_items_come_in_order_and_then_the_error(fails: bool) -> None:
    closed: list[bool] = []

    @asynccontextmanager
    async def opened() -> AsyncIterator[AsyncGenerator[int, None]]:
        async def items() -> AsyncGenerator[int, None]:
            for n in range(100):
                yield n
            if fails:
                raise SpeError("forgotten")

        async with aclosing(items()) as found:
            yield found
        closed.append(True)

    got: list[int] = []
    with pytest.raises(SpeError, match=r"^forgotten$") if fails else nullcontext():
        for n in items_of(opened):
            got.append(n)
    assert closed or fails
    assert got == list(range(100))
    assert not threads()


def test_ending_a_read_early_ends_the_program() -> None:
    @asynccontextmanager
    async def opened() -> AsyncIterator[AsyncGenerator[int, None]]:
        async def items() -> AsyncGenerator[int, None]:
            n = 0
            while True:
                yield n
                n += 1

        async with aclosing(items()) as found:
            yield found

    for n in items_of(opened):
        if n == 50:
            break
    else:
        pytest.fail("it ended by itself")
    gc.collect()
    assert not threads()
