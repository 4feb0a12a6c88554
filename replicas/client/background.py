"""Runs a trio program in a thread, for callers without trio, such as Spark."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from typing import Final, TypeVar

import trio

from spe.errors import NotReachable, SpeError

T = TypeVar("T")
Main = Callable[..., Awaitable[None]]

#: Largest number of items that wait for a slow caller.
_WAITING: Final = 8


class Background:
    """Runs ``main`` until :meth:`stop`; ``main`` calls ``task_status.started()``, as in trio.

    Attributes:
      token: token of the trio run in the other thread.

    Raises:
      SpeError: an error that ``main`` raised before it had started.
    """

    def __init__(self, main: Main) -> None:
        self._main = main
        self._started = threading.Event()
        self.token: trio.lowlevel.TrioToken | None = None
        self._scope = trio.CancelScope()
        self._failed: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True, name="spe")
        self._thread.start()
        self._started.wait()
        if self._failed is not None:
            raise self._failed

    def call(self, function: Callable[..., Awaitable[T]], *arguments: object, seconds: float, waits_for: str) -> T:
        """Returns the result of an asynchronous function that runs together with ``main``.

        Args:
          seconds: time limit.
          waits_for: the missing event, for the error message at the time limit.

        Raises:
          SpeError: the time limit is exceeded, or ``main`` has failed.
        """

        async def within() -> T:
            with trio.move_on_after(seconds):
                return await function(*arguments)
            raise NotReachable(f"{waits_for} within {seconds:g} s (option patience)")

        try:
            return trio.from_thread.run(within, trio_token=self.token)
        except (trio.RunFinishedError, trio.Cancelled):  # before the call, or during it
            self._thread.join()
            raise self._failed or SpeError("the connection to the cluster was closed") from None

    def ask(self, function: Callable[[], T]) -> T:
        """Returns the result of a function that uses objects of ``main``.  Raises its error, or that of ``main``."""

        async def asked() -> T:
            return function()

        return self.call(asked, seconds=math.inf, waits_for="")

    def stop(self) -> None:
        """Ends ``main`` and waits for its end."""
        with contextlib.suppress(trio.RunFinishedError):
            trio.from_thread.run_sync(self._scope.cancel, trio_token=self.token)
        self._thread.join()

    def _run(self) -> None:
        async def everything() -> None:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    self.token = trio.lowlevel.current_trio_token()
                    await nursery.start(self._main)
                    self._started.set()

        try:
            trio.run(everything)
        except BaseException as error:
            self._failed = _first(error)
        finally:
            self._started.set()


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def items_of(opened: Callable[[], AbstractAsyncContextManager[AsyncGenerator[T, None]]]) -> Iterator[T]:
    """Yields the items of an asynchronous generator in a plain loop.  Raises its errors."""
    sender, receiver = trio.open_memory_channel[T](_WAITING)
    failed: list[Exception] = []

    async def main(*, task_status: trio.TaskStatus[None]) -> None:
        task_status.started()
        with sender:
            try:
                async with opened() as items:
                    async for item in items:
                        await sender.send(item)
            except Exception as error:
                failed.append(error)
        await trio.sleep_forever()  # the receiver needs a running trio loop

    async def following() -> tuple[T] | None:
        try:
            return (await receiver.receive(),)
        except trio.EndOfChannel:
            return None

    running = Background(main)
    try:
        while (item := running.call(following, seconds=math.inf, waits_for="")) is not None:
            yield item[0]
        if failed:
            raise failed[0]
    finally:
        running.stop()
