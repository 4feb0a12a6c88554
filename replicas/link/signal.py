"""A wake-up that cannot be lost: take the token, look at the state, then wait for the token."""

from __future__ import annotations

import trio


class Signal:
    """Many waiters; any number of wake-ups between two looks count as one.

    A waiter must take :meth:`token` *before* it looks at what it waits for: a change after the look then finds the
    token taken, and sets it.  (A shared event that each waiter replaces loses wake-ups.)
    """

    __slots__ = ("_event", "_taken")

    def __init__(self) -> None:
        self._event = trio.Event()
        self._taken = False

    def token(self) -> trio.Event:
        self._taken = True
        return self._event

    def wake(self) -> None:
        if self._taken:
            self._event.set()
            self._event = trio.Event()
            self._taken = False
