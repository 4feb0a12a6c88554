"""The parts of a simulated host besides network and disk: its tasks, its processor, its trace."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

import trio
import trio.lowlevel

from replicas.simulation.world.clock import current_clock, now_us
from replicas.simulation.world.loop import fits, make_loop
from spe.stream.history import History, Note, SchedulerRounds

#: Host of the current task.
HOST: ContextVar[str] = ContextVar("host", default="")

#: Rounds of the scheduler in one second of virtual time beyond which a run is broken off.
ROUNDS_PER_SECOND: Final = 100_000


@contextmanager
def seeded_scheduling(seed: int) -> Iterator[None]:
    """Makes trio's task order a function of ``seed`` (trio's private switch for Hypothesis), with a cheaper loop."""
    switches, changed = vars(trio._core._run), ("_ALLOW_DETERMINISTIC_SCHEDULING", "unrolled_run")
    before = {name: switches[name] for name in changed}
    switches["_ALLOW_DETERMINISTIC_SCHEDULING"] = True
    switches["_r"].seed(seed)
    if fits():
        switches["unrolled_run"] = make_loop(switches["unrolled_run"], switches["_r"])
    try:
        yield
    finally:
        switches.update(before)


def _run_queue() -> deque[trio.lowlevel.Task]:
    """Returns trio's queue of runnable tasks."""
    return trio._core._run.GLOBAL_RUN_CONTEXT.runner.runq


class Processors(trio.abc.Instrument):
    """Stops and continues hosts.

    As with SIGSTOP, runnable tasks of a frozen host wait until it is thawed, while time goes on.  Trio calls this
    instrument for each step of each task only while a host is frozen.
    """

    def __init__(self) -> None:
        self.frozen: dict[str, list[trio.lowlevel.Task]] = {}

    def task_scheduled(self, task: trio.lowlevel.Task) -> None:
        waiting = self.frozen.get(task.context.get(HOST, ""))
        if waiting is not None:
            assert _run_queue().pop() is task
            waiting.append(task)

    def freeze(self, host: str) -> None:
        if not self.frozen:
            trio.lowlevel.add_instrument(self)
        self.frozen.setdefault(host, [])

    def thaw(self, host: str) -> None:
        if host in self.frozen:
            _run_queue().extend(self.frozen.pop(host))
            if not self.frozen:
                trio.lowlevel.remove_instrument(self)


class Rounds(trio.abc.Instrument):
    """Counts the rounds of the scheduler: an endless loop makes rounds without advancing time.

    Args:
      busy: called once when a second of virtual time exceeds its rounds.
    """

    def __init__(self, history: History, busy: Callable[[str], None]) -> None:
        self._history = history
        self._busy = busy
        self._clock = trio.lowlevel.current_clock()
        self._second = 0
        self._count = 0

    def before_io_wait(self, timeout: float) -> None:
        self._count += 1
        if self._count > ROUNDS_PER_SECOND and self._count % ROUNDS_PER_SECOND == 1:
            tasks = ", ".join(sorted({task.name for task in _run_queue()}))
            self._busy(f"{self._count:,} rounds in second {self._second}, now of {tasks}")
        second = int(self._clock.current_time())
        if second > self._second:
            self._history(SchedulerRounds((self._second + 1) * 1_000_000, self._count))
            self._second, self._count = second, 0


class SimCompute:
    """Computing in virtual time: in threads it takes none, each slice of work on the loop ``turn_us``."""

    def __init__(self, turn_us: int = 0) -> None:
        self._turn_s = turn_us / 1e6

    async def run(self, function: Callable[[], Any]) -> Any:
        await trio.lowlevel.checkpoint()
        return function()

    async def turn(self) -> None:
        await current_clock().sleep(self._turn_s)


class StoryTrace:
    """Records events, for checkers and for people who read a failure."""

    def __init__(self, story: list[str], history: History, host: str) -> None:
        self._story = story
        self._history = history
        self._host = host

    def event(self, name: str, /, **fields: Any) -> None:
        text = " ".join(f"{k}={v}" for k, v in fields.items())
        self._story.append(f"{trio.current_time():9.3f} {self._host:12} {name} {text}")
        self._history(Note(now_us(), self._host, name, text))
