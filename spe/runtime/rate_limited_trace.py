"""A trace that peers cannot flood: some events of each kind per second, and the number of the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import trio

from spe.runtime.env import Trace

PER_SECOND: Final = 20


class SparingTrace:
    """Passes ``PER_SECOND`` events of a name in any second; the next that passes carries how many did not.

    Args:
      now: seconds, on the clock that seconds are counted by.
    """

    def __init__(self, inner: Trace, now: Callable[[], float] = trio.current_time) -> None:
        self._inner = inner
        self._now = now
        #: By name: when its second began, events in it, and those left out since one has passed.
        self._seen: dict[str, tuple[float, int, int]] = {}

    def event(self, name: str, /, **fields: Any) -> None:
        now = self._now()
        begun, count, left_out = self._seen.get(name, (now, 0, 0))
        if now - begun >= 1:
            begun, count = now, 0
        if count >= PER_SECOND:
            self._seen[name] = (begun, count, left_out + 1)
            return
        self._seen[name] = (begun, count + 1, 0)
        if left_out:
            fields["left_out"] = left_out
        self._inner.event(name, **fields)
