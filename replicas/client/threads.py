"""Changes for programs without trio, plain or under asyncio: a separate thread reads the cluster.

A change is acknowledged when the next one is asked for.  If a wait ends early, by its time limit, by Ctrl-C or because
its task was cancelled, no change is lost: the next call returns it.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, suppress

import trio

from replicas.client.background import Background
from replicas.client.changes import Changes, Item, item_of
from replicas.client.client import Client
from replicas.client.tables import ResultTables
from spe.plan.plan import Plan
from spe.stream.change import Change


class ThreadChanges:
    """An iterator of changes with the attributes of :class:`replicas.client.changes.Changes`.

    Raises:
      SpeError: as :func:`replicas.client.connect`.
    """

    plan: Plan
    client: Client
    received: ResultTables

    def __init__(self, opened: Callable[[], AbstractAsyncContextManager[Changes]]) -> None:
        self._opened = opened
        self._filled, self._emptied = trio.Event(), trio.Event()
        self._next: Change | None = None
        self._was_taken = False
        self._background = Background(self._main)

    def __iter__(self) -> Iterator[Item]:
        """Yields changes until all streams have ended.  Raises SpeError."""
        while self.wait() and (change := self.take()) is not None:
            if (item := item_of(self.plan, change)) is not None:
                yield item

    def collect(self, seconds: float = math.inf) -> ResultTables:
        """Takes all changes that arrive within a time, or until all streams have ended; adds them to ``received``."""
        until = time.monotonic() + seconds
        while self.wait(until - time.monotonic()) and (change := self.take()) is not None:
            self.received.apply(change)
        return self.received

    def close(self) -> None:
        """Disconnects from the cluster."""
        self._background.stop()

    def wait(self, seconds: float = math.inf) -> bool:
        """Waits for the next change, or the end; returns whether it is there.  Raises SpeError."""
        return self._background.call(self._wait, max(0.0, seconds), seconds=math.inf, waits_for="")

    def take(self) -> Change | None:
        """Returns the change that was waited for; None: all streams have ended."""
        self._was_taken = True
        return self._next

    # --- in the other thread ---

    async def _main(self, *, task_status: trio.TaskStatus[None]) -> None:
        async with self._opened() as changes:
            self.plan, self.client, self.received = changes.plan, changes.client, changes.received
            task_status.started()
            while True:
                self._next, self._emptied = await self.client.next_change(), trio.Event()
                self._filled.set()
                await self._emptied.wait()

    async def _wait(self, seconds: float) -> bool:
        if self._was_taken:
            self._was_taken, self._filled = False, trio.Event()
            self._emptied.set()
        with trio.move_on_after(seconds):
            await self._filled.wait()
            return True
        return False


class AsyncioChanges:
    """An asynchronous iterator of changes under asyncio, with the attributes of :class:`ThreadChanges`.

    It waits in a separate thread: the event loop's pool has few threads for the whole program, which also needs one to
    close.
    """

    def __init__(self, thread: ThreadChanges) -> None:
        self.plan, self.client, self.received = thread.plan, thread.client, thread.received
        self._thread = thread
        self._waiter = ThreadPoolExecutor(1, "spe wait")
        #: The thread goes on when the task that waits for it is cancelled: the next call waits for the same future.
        self._waiting: asyncio.Future[bool] | None = None

    def __aiter__(self) -> AsyncioChanges:
        return self

    async def __anext__(self) -> Item:
        while await self._is_there() and (change := self._thread.take()) is not None:
            if (item := item_of(self.plan, change)) is not None:
                return item
        raise StopAsyncIteration

    async def collect(self, seconds: float = math.inf) -> ResultTables:
        """As :meth:`ThreadChanges.collect`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(None if seconds == math.inf else seconds):
                while await self._is_there() and (change := self._thread.take()) is not None:
                    self.received.apply(change)
        return self.received

    async def _is_there(self) -> bool:
        if self._waiting is None or self._waiting.done():
            self._waiting = asyncio.get_running_loop().run_in_executor(self._waiter, self._thread.wait)
            self._waiting.add_done_callback(_noticed)
        return await asyncio.shield(self._waiting)


def _noticed(waiting: asyncio.Future[bool]) -> None:
    """Retrieves the error of a wait that no task awaits any more; the next call raises it again."""
    if not waiting.cancelled():
        waiting.exception()
