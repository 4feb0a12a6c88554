"""A wake-up that cannot be lost: take the token, look at the state, then wait with the token."""

from __future__ import annotations

from typing import Any, Final

import trio
import trio.lowlevel


class _Woken:
    """The outcome of a wait that brings no value, for any number of waits: ``outcome.Value`` is good for one."""

    def unwrap(self) -> None:
        """What a task that was woken goes on with."""


#: For ``trio.lowlevel.reschedule``, which otherwise makes an object for each task that is woken.
WOKEN: Final[Any] = _Woken()


class Signal:
    """Many waiters; any number of wake-ups between two looks count as one.

    A waiter must take :meth:`token` *before* it looks at what it waits for: a change after the look is then seen by
    :meth:`wait`, which returns at once.

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
        """Until there has been a wake-up since the token was taken."""
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
