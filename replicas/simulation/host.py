"""What a simulated host is made of, beside its network and its disk: its tasks, its processor, its story."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

import trio
import trio.lowlevel

from consistency.checking.history import History, Note, Steps
from replicas.simulation.clock import now_us

#: Which host a task belongs to.
HOST: ContextVar[str] = ContextVar("host", default="")

#: Steps of the scheduler in one second of virtual time beyond which somebody must be going round in circles.
STEPS_PER_SECOND: Final = 400_000


@contextmanager
def seeded_scheduling(seed: int) -> Iterator[None]:
    """trio's task order as a function of ``seed`` (its own, private, switch for Hypothesis)."""
    switches, name = vars(trio._core._run), "_ALLOW_DETERMINISTIC_SCHEDULING"
    before = switches[name]
    switches[name] = True
    switches["_r"].seed(seed)
    try:
        yield
    finally:
        switches[name] = before


class Processors(trio.abc.Instrument):
    """Lets hosts stand still, and counts what is done.

    SIGSTOP: what becomes runnable on a frozen host waits, with the time going on, until it is thawed.

    Args:
      busy: called once when a second of virtual time has more steps than it may.
    """

    def __init__(self, history: History, busy: Callable[[str], None]) -> None:
        self.frozen: dict[str, list[trio.lowlevel.Task]] = {}
        self._history = history
        self._busy = busy
        self._second = 0
        self._steps = 0

    def task_scheduled(self, task: trio.lowlevel.Task) -> None:
        self._steps += 1
        if self._steps > STEPS_PER_SECOND and self._steps % STEPS_PER_SECOND == 1:
            self._busy(f"{self._steps:,} steps in second {self._second}, the last by {task.name}")
        waiting = self.frozen.get(task.context.get(HOST, "")) if self.frozen else None
        if waiting is not None:
            queue = trio._core._run.GLOBAL_RUN_CONTEXT.runner.runq
            assert queue.pop() is task
            waiting.append(task)

    def before_io_wait(self, timeout: float) -> None:
        second = int(trio.current_time())
        if second > self._second:
            self._history(Steps((self._second + 1) * 1_000_000, self._steps))
            self._second, self._steps = second, 0

    def freeze(self, host: str) -> None:
        self.frozen.setdefault(host, [])

    def thaw(self, host: str) -> None:
        trio._core._run.GLOBAL_RUN_CONTEXT.runner.runq.extend(self.frozen.pop(host, ()))


class SimCompute:
    """What computing takes in virtual time: in threads nothing, each slice of work on the loop ``turn_us``."""

    def __init__(self, turn_us: int = 0) -> None:
        self._turn_s = turn_us / 1e6

    async def run(self, function: Callable[[], Any]) -> Any:
        await trio.lowlevel.checkpoint()
        return function()

    async def turn(self) -> None:
        await trio.sleep(self._turn_s)


class StoryTrace:
    """Keeps what happened, for checkers and for people reading a failure."""

    def __init__(self, story: list[str], history: History, host: str) -> None:
        self._story = story
        self._history = history
        self._host = host

    def event(self, name: str, /, **fields: Any) -> None:
        text = " ".join(f"{k}={v}" for k, v in fields.items())
        self._story.append(f"{trio.current_time():9.3f} {self._host:12} {name} {text}")
        self._history(Note(now_us(), self._host, name, text))
