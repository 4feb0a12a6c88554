"""The passing of time in a node: at ticks, the deadlines of its replicas are judged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import trio.lowlevel

from replicas.link.signal import Signal
from replicas.node.hosted import Hosted
from spe.runtime.env import Env
from spe.runtime.log_line import say
from spe.stream.ids import PartitionId

#: Ticks that are one while no replica here has a deadline soon.
RESTING_TICKS: Final = 5
#: A tick that is late by less, or by less than a tick, is no sign that we did not run.
UNNOTICED_US: Final = 40_000


class Ticks:
    """Judges deadlines at each tick; where nobody has one soon, at every fifth (rule T1).

    Args:
      hosted: whose deadlines they are; a live view.
      tick_us: the least that lies between two.
    """

    def __init__(self, env: Env, hosted: Mapping[PartitionId, Hosted], tick_us: int) -> None:
        self._env = env
        self._hosted = hosted
        self._tick_us = tick_us
        self._unnoticed_us = max(tick_us, UNNOTICED_US)
        self._now = Signal()

    def wake(self) -> None:
        """A replica is new, or STABLE no more: time matters to it from now on."""
        self._now.wake()

    async def run(self) -> None:
        """Until cancelled."""
        clock, period = self._env.clock, self._tick_us
        last, wait = clock.monotonic_us(), period
        while True:
            token = self._now.token()
            await clock.wait(self._now, token, wait / 1e6)
            now = clock.monotonic_us()
            late = now - last - wait
            last = now
            if late > self._unnoticed_us:
                # We were not running: drain what lies in the sockets before judging any deadline (T1).
                for hosted in self._hosted.values():
                    hosted.shift(late + period, now)
                await trio.lowlevel.checkpoint()
            rest = RESTING_TICKS * period
            for hosted in self._hosted.values():
                if hosted.error is None:
                    rest = min(rest, self._look_at(hosted, now))
            wait = max(rest // period, 1) * period

    def _look_at(self, hosted: Hosted, now: int) -> int:
        """What the passing of time does to a replica; returns for how long it will do nothing."""
        replica = hosted.replica
        if (full := replica.full()) and (given_up := hosted.make_room(now)):
            self._env.trace.event("evicted", replica=hosted.name, consumers=given_up)
        for lag in replica.watch_skew(now):
            self._env.trace.event("input_skew", replica=hosted.name, lag=lag)
            say(f"{hosted.name}: {lag}, more than αX allows: results stay tentative until it catches up")
        rests = replica.rests(now)
        if not rests:
            hosted.work.wake()
        # A standstill that goes unnoticed must not end a rest at a deadline.
        return 0 if full else rests - self._unnoticed_us
