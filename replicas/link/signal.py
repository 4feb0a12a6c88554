"""A wake-up that cannot be lost: take the token, look at the state, then wait with the token."""

from __future__ import annotations

from typing import Any, Final

import trio
import trio.lowlevel


class _Woken:
    """The outcome of a wait without a value, for any number of waits: ``outcome.Value`` is good for one."""

    def unwrap(self) -> None:
        """Returns the value for a woken task: None."""


#: For ``trio.lowlevel.reschedule``, which otherwise makes an object for each woken task.
WOKEN: Final[Any] = _Woken()


class Signal:
    """Wakes any number of waiters; several wake-ups between two checks count as one.

    A waiter must take :meth:`token` *before* it checks its condition: :meth:`wait` then notices a change after the
    check, and returns at once.

    A counter and the waiting tasks instead of a ``trio.Event`` for each wait: nodes wait and wake some thousand times
    a second.
    """

    __slots__ = ("_count", "_waiting")

    def __init__(self) -> None:
        self._count = 0
        self._waiting: dict[trio.lowlevel.Task, None] = {}

    def token(self) -> int:
        return self._count

    async def wait(self, token: int) -> None:
        """Waits for a wake-up since the token was taken."""
        if self._count != token:
            await trio.lowlevel.checkpoint()
            return
        task = trio.lowlevel.current_task()
        self._waiting[task] = None

        def abort(_: object) -> trio.lowlevel.Abort:
            del self._waiting[task]
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)

    def wake(self) -> None:
        self._count += 1
        if self._waiting:
            waiting, self._waiting = self._waiting, {}
            for task in waiting:
                trio.lowlevel.reschedule(task, WOKEN)
