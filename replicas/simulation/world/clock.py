"""Virtual time: it stands still while a task can run, and jumps to the next deadline when none can."""

from __future__ import annotations

import heapq
import math
import time
from typing import Final

import trio
import trio.lowlevel

from replicas.link.signal import WOKEN
from spe.runtime.env import Awaited

#: Wall clock of every host at the beginning.
EPOCH_US: Final = 1_700_000_000_000_000
#: Number of rounds without a deadline, and their length in real time, before that counts as a fault.
_IDLE_MAX: Final = 100
_IDLE_S: Final = 0.01
#: Jumps between two checks of the CPU time: the kernel call takes longer than a jump.
_CPU_JUMPS: Final = 64


class JumpClock(trio.abc.Clock):
    """The clock of trio in a simulation.

    All waits are for a deadline or an alarm of this clock, including messages under way and disks, so nothing has to be
    polled. A run without any deadline can only wait forever.

    Attributes:
      cpu_s: seconds of computing after which the run is broken off (checked at every 64th jump of time); real time is
        no measure, because other processes use the machine.
      now, now_us: seconds and microseconds since the run began.
    """

    def __init__(self, cpu_s: float = math.inf) -> None:
        self.cpu_s = cpu_s
        self.now = 0.0
        self.now_us = 0
        self._idle = 0
        self._jumps = 0
        self._began = time.process_time()
        #: A heap: the time, a number that keeps the order, and the action, unless it is over by then.
        self._alarms: list[tuple[float, int, _Alarm]] = []
        self._alarm_count = 0

    def wake_at(self, when: float, signal: Awaited) -> None:
        """Wakes the waiters of a signal at ``when``, unless it is woken before.

        For the many waits for messages under way: a trio deadline would need a cancelled scope for each.
        """
        self._add(when, _Wake(signal))

    async def sleep(self, seconds: float) -> None:
        """Sleeps as ``trio.sleep``, without a cancelled scope and an exception each time."""
        if seconds <= 0:
            await trio.lowlevel.checkpoint()
            return
        alarm = _Sleep()
        self._add(self.now + seconds, alarm)
        await trio.lowlevel.wait_task_rescheduled(alarm.abort)

    def _add(self, when: float, alarm: _Alarm) -> None:
        self._alarm_count += 1
        heapq.heappush(self._alarms, (when, self._alarm_count, alarm))

    def start_clock(self) -> None:
        self._began = time.process_time()

    def current_time(self) -> float:
        return self.now

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Advances to the deadline, or to the next alarm; called only when no task is runnable."""
        alarms = self._alarms
        while alarms and alarms[0][2].is_over():
            heapq.heappop(alarms)
        if alarms and alarms[0][0] < deadline:
            deadline = alarms[0][0]
        if deadline == math.inf:
            self._idle += 1
            if self._idle > _IDLE_MAX:
                raise Stuck(f"at {self.now:.3f} s nobody is runnable, and nobody has a deadline")
            return _IDLE_S  # trio itself waits for its own end, on a real socket
        self._idle = 0
        self._jumps += 1
        if not self._jumps % _CPU_JUMPS and time.process_time() - self._began > self.cpu_s:
            raise Stuck(f"at {self.now:.3f} s: the run took more than {self.cpu_s:g} s of computing")
        if deadline > self.now:
            self.now = deadline
            self.now_us = round(deadline * 1e6)
        while alarms and alarms[0][0] <= self.now:
            heapq.heappop(alarms)[2].go_off()
        return 0.0


class _Wake:
    """Wakes the waiters of a signal."""

    __slots__ = ("_signal", "_token")

    def __init__(self, signal: Awaited) -> None:
        self._signal, self._token = signal, signal.token()

    def is_over(self) -> bool:
        return self._signal.token() != self._token

    def go_off(self) -> None:
        if self._signal.token() == self._token:
            self._signal.wake()


class _Sleep:
    """Wakes a sleeping task."""

    __slots__ = ("_task",)

    def __init__(self) -> None:
        self._task: trio.lowlevel.Task | None = trio.lowlevel.current_task()

    def abort(self, _: object) -> trio.lowlevel.Abort:
        self._task = None
        return trio.lowlevel.Abort.SUCCEEDED

    def is_over(self) -> bool:
        return self._task is None

    def go_off(self) -> None:
        if self._task is not None:
            trio.lowlevel.reschedule(self._task, WOKEN)


_Alarm = _Wake | _Sleep


class Stuck(Exception):
    """A simulated run that cannot go on."""


class SimClock:
    """The clocks of one host; its wall clock may be off.

    Attributes:
      computed_ns: computing time of its processes, as far as it is modelled.
    """

    def __init__(self) -> None:
        self.skew_us = 0
        self.computed_ns = 0
        self._clock = trio.lowlevel.current_clock()
        #: The JumpClock, if it is one: it is asked for the time at nearly every step.
        self._jumping = self._clock if isinstance(self._clock, JumpClock) else None

    def monotonic_us(self) -> int:
        if self._jumping is not None:
            return self._jumping.now_us
        return round(self._clock.current_time() * 1e6)

    def wall_us(self) -> int:
        return self.monotonic_us() + EPOCH_US + self.skew_us

    def step_ns(self) -> int:
        return self.computed_ns

    def cpu_ns(self) -> int:
        return self.computed_ns

    async def sleep(self, seconds: float) -> None:
        if self._jumping is not None:
            await self._jumping.sleep(seconds)
        else:  # a test of a few steps, on another clock
            await trio.sleep(seconds)

    async def wait(self, signal: Awaited, token: int, seconds: float) -> None:
        if (clock := self._jumping) is not None:
            clock.wake_at(clock.now + seconds, signal)
            await signal.wait(token)
        else:
            with trio.move_on_after(seconds):
                await signal.wait(token)


def current_clock() -> JumpClock:
    """Returns the clock of the current simulation.  Raises TypeError: it is another clock."""
    clock = trio.lowlevel.current_clock()
    if not isinstance(clock, JumpClock):
        raise TypeError(f"a simulation needs the clock JumpClock, found {type(clock).__name__}")
    return clock


async def sleep_until_us(at_us: int) -> None:
    """Sleeps until a virtual time; one that has passed is a checkpoint."""
    await trio.sleep(max(0.0, at_us / 1e6 - trio.current_time()))


def now_us() -> int:
    """Returns the microseconds since the run began."""
    return round(trio.current_time() * 1e6)
