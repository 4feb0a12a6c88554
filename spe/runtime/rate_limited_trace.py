"""A trace that peers cannot flood: a limited number of events of each kind per second, and the count of the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import trio

from spe.runtime.env import Trace

PER_SECOND: Final = 20


class RateLimit:
    """Lets ``most`` events of a name pass in each ``window``; a clock that steps back begins a new window."""

    def __init__(self, most: int, window: float) -> None:
        self._most = most
        self._window = window
        #: By name: begin of its window, events in it, and events dropped since the last that passed.
        self._windows: dict[str, tuple[float, int, int]] = {}

    def passes(self, name: str, now: float) -> int | None:
        """Returns the number of events dropped since the last that passed; None: this event is dropped."""
        begun, count, left_out = self._windows.get(name, (now, 0, 0))
        if not 0 <= now - begun < self._window:
            begun, count = now, 0
        full = count >= self._most
        self._windows[name] = (begun, count, left_out + 1) if full else (begun, count + 1, 0)
        return None if full else left_out


class RateLimitedTrace:
    """Passes ``PER_SECOND`` events of a name per second; the next event carries the number of dropped ones.

    Args:
      now: returns the time in seconds.
    """

    def __init__(self, inner: Trace, now: Callable[[], float] = trio.current_time) -> None:
        self._inner = inner
        self._now = now
        self._limit = RateLimit(PER_SECOND, 1)

    def event(self, name: str, /, **fields: Any) -> None:
        left_out = self._limit.passes(name, self._now())
        if left_out is not None:
            self._inner.event(name, **fields, **({"left_out": left_out} if left_out else {}))
