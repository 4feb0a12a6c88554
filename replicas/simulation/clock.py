"""Virtual time: it stands while anybody has something to do, and jumps to the next deadline when nobody has."""

from __future__ import annotations

import heapq
import math
import time
from typing import Final

import trio
import trio.lowlevel

from replicas.link.signal import Signal

#: What the wall clock of every host shows at the beginning.
EPOCH_US: Final = 1_700_000_000_000_000
#: How often, and how long in real time, nobody may have a deadline before that is a fault.
_IDLE_MAX: Final = 100
_IDLE_S: Final = 0.01


class JumpClock(trio.abc.Clock):
    """trio's clock in a simulation.

    Everything that waits, waits on a deadline or an alarm of this clock: messages under way and disks as well, so
    nothing has to be pumped.  A run in which nobody waits for anything can only be waiting for ever.

    Attributes:
      cpu_s: seconds of computing after which the run is broken off (checked where time jumps);
        real time says nothing, for others may use the machine.
    """

    def __init__(self, cpu_s: float = math.inf) -> None:
        self.cpu_s = cpu_s
        self._now = 0.0
        self._idle = 0
        self._began = time.process_time()
        #: A heap: when, a number that keeps their order, who is woken then, and the token that is set once he was.
        self._alarms: list[tuple[float, int, Signal, trio.Event]] = []
        self._alarm_count = 0

    def wake_at(self, when: float, signal: Signal) -> None:
        """Wakes whoever waits for a signal at ``when``, unless he is woken before.

        For the many that wait for what is under way: a deadline of trio's would be a cancelled scope for each of them.
        """
        self._alarm_count += 1
        heapq.heappush(self._alarms, (when, self._alarm_count, signal, signal.token()))

    def start_clock(self) -> None:
        self._began = time.process_time()

    def current_time(self) -> float:
        return self._now

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Asked only when nobody is runnable: so we are at the deadline, or at the next alarm, at once."""
        alarms = self._alarms
        while alarms and alarms[0][3].is_set():
            heapq.heappop(alarms)
        if alarms:
            deadline = min(deadline, alarms[0][0])
        if deadline == math.inf:
            self._idle += 1
            if self._idle > _IDLE_MAX:
                raise Stuck(f"at {self._now:.3f} s nobody is runnable, and nobody has a deadline")
            return _IDLE_S  # trio itself waits for its own end, on a real socket
        self._idle = 0
        if time.process_time() - self._began > self.cpu_s:
            raise Stuck(f"at {self._now:.3f} s: the run took more than {self.cpu_s:g} s of computing")
        self._now = max(self._now, deadline)
        while alarms and alarms[0][0] <= self._now:
            _, _, signal, token = heapq.heappop(alarms)
            if not token.is_set():
                signal.wake()
        return 0.0


class Stuck(Exception):
    """A simulated run that cannot go on."""


class SimClock:
    """The clocks of one host; its wall clock may be off."""

    def __init__(self) -> None:
        self.skew_us = 0

    def monotonic_us(self) -> int:
        return now_us()

    def wall_us(self) -> int:
        return now_us() + EPOCH_US + self.skew_us


def current_clock() -> JumpClock:
    """The clock of the simulation in which this is called.  Raises TypeError where it is another."""
    clock = trio.lowlevel.current_clock()
    if not isinstance(clock, JumpClock):
        raise TypeError(f"a simulation needs the clock JumpClock, found {type(clock).__name__}")
    return clock


def now_us() -> int:
    """Microseconds since the run began."""
    return round(trio.current_time() * 1e6)
