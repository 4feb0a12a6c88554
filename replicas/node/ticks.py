"""Checks the deadlines of a node's replicas at each tick."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import trio.lowlevel

from replicas.link.signal import Signal
from replicas.node.load_meter import NodeMeter
from replicas.node.replica_host import ReplicaHost
from spe.runtime.env import Env
from spe.runtime.log_line import Level, say
from spe.stream.ids import PartitionId

#: How many ticks are joined to one while no replica here has a deadline soon.
RESTING_TICKS: Final = 5
#: A tick that is late by less than this, or than a tick, does not show that the process was frozen.
UNNOTICED_US: Final = 40_000


class Ticks:
    """Checks deadlines at each tick; at every fifth if no replica has one soon (rule T1).

    Args:
      running: the replicas that run; a live view.
      tick_us: least time between two ticks.
    """

    def __init__(self, env: Env, running: Mapping[PartitionId, ReplicaHost], tick_us: int) -> None:
        self._env = env
        self._running = running
        self._tick_us = tick_us
        self._unnoticed_us = max(tick_us, UNNOTICED_US)
        self._now = Signal()

    def wake(self) -> None:
        """Ends a rest: a replica is new, or no longer STABLE."""
        self._now.wake()

    async def run(self) -> None:
        """Runs until cancelled."""
        clock, period = self._env.clock, self._tick_us
        last, wait = clock.monotonic_us(), period
        meter = NodeMeter(last, clock.cpu_ns())
        while True:
            token = self._now.token()
            await clock.wait(self._now, token, wait / 1e6)
            now = clock.monotonic_us()
            late = now - last - wait
            last = now
            if late > self._unnoticed_us:
                # We were frozen: read the sockets before judging any deadline (T1).
                for host in self._running.values():
                    host.replica.shift(late + period, now)
                await trio.lowlevel.checkpoint()
            if meter.due(now):
                meter.look(now, clock.cpu_ns(), [host.measure() for host in self._running.values()])
            rest = RESTING_TICKS * period
            for host in self._running.values():
                if host.error is None:
                    rest = min(rest, self._look_at(host, now))
            wait = max(rest // period, 1) * period

    def _look_at(self, host: ReplicaHost, now: int) -> int:
        """Checks the deadlines of a replica; returns for how long none is due."""
        replica = host.replica
        if (full := replica.serving.full()) and (given_up := replica.serving.make_room(now)):
            self._env.trace.event("evicted", replica=host.name, consumers=given_up)
            host.work.wake()  # there is room, and no other event may come after the end of all inputs
        for lag in replica.watch_skew(now):
            self._env.trace.event("input_skew", replica=host.name, lag=lag)
            say(
                f"{host.name}: {lag}, more than αX allows: results stay tentative until it catches up",
                Level.WARNING,
                event="input_skew",
                replica=host.name,
            )
        rests = replica.rests(now)
        if not rests:
            host.work.wake()
        if replica.logging is not None and replica.reading.upstream_full():
            host.log_waits()
        # A standstill that goes unnoticed must not end a rest at a deadline.
        return 0 if full else rests - self._unnoticed_us
