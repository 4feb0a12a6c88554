"""Plays the faults of a schedule at their times, and those injected during the run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import trio

from consistency.faults.kinds import HEAL, KINDS
from replicas.faults.model import READS, STATE, Fault
from replicas.faults.state import Action, FaultState
from spe.runtime.env import Clock

#: How long a fault waits for a node to be in a state, and how often it checks.
PATIENCE_S: Final = 3.0
LOOK_S: Final = 0.01
#: Performs an action on a process; returns "" or an error.
Perform = Callable[[Action], Awaitable[str]]


@dataclass(slots=True)
class Happening:
    """A fault of this run.

    Attributes:
      planned_us: when it is due, wall time; None: it was injected.
      began_us, ended_us: when it really began and ended, wall time; None: not (yet).
      number: its number in the state; 0 before it began.
      errors: failed actions.
    """

    fault: Fault
    planned_us: int | None = None
    began_us: int | None = None
    ended_us: int | None = None
    number: int = 0
    errors: list[str] = field(default_factory=list)

    @property
    def pending(self) -> bool:
        """Will it still begin or end by itself?"""
        return self.began_us is None or (self.fault.for_us is not None and self.ended_us is None)


class FaultRunner:
    """The faults of one run.

    Args:
      state: the faults that hold.
      perform: performs actions on processes.
      reads: returns the node that a client reads now, for targets such as ``reads:screen``; None: none.
      in_state: returns a node with a replica in a state now, for targets such as ``state:STABILIZATION``; None: none.
      once: causes a fault without duration (reset, half-open, flip); returns "" or why not.
      report: called when a fault begins, ends, or fails: "began", "ended", "failed".

    Attributes:
      happenings: past and planned faults, in order of planning.
    """

    def __init__(
        self,
        clock: Clock,
        state: FaultState,
        perform: Perform,
        *,
        report: Callable[[str, Happening], None] = lambda event, happening: None,
        reads: Callable[[str], str | None] = lambda client: None,
        in_state: Callable[[str], str | None] = lambda state: None,
        once: Callable[[Fault], Awaitable[str]] | None = None,
    ) -> None:
        self._clock = clock
        self._state = state
        self._perform = perform
        self._report = report
        self._reads = reads
        self._in_state = in_state
        self._once = once
        self._nursery: trio.Nursery | None = None
        #: Set when the last decided action on a process has been performed.
        self._turns: dict[str, trio.Event] = {}
        self.happenings: list[Happening] = []

    async def run(
        self, faults: Sequence[Fault], begin_us: int, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Plays a schedule whose times count from ``begin_us`` (wall); then waits for injected faults."""
        self.happenings += [Happening(f, begin_us + f.at_us) for f in faults]
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            for happening in self.happenings:
                nursery.start_soon(self._play, happening)
            task_status.started()
            await trio.sleep_forever()

    async def inject(self, fault: Fault) -> str:
        """Makes a fault happen now; returns "" or an error."""
        if self._nursery is None:
            return "the run has not begun"
        happening = Happening(fault)
        self.happenings.append(happening)
        await self._begin(happening)
        if fault.for_us is not None:
            self._nursery.start_soon(self._end_later, happening)
        return "; ".join(happening.errors)

    @property
    def pending(self) -> bool:
        """Will more faults begin or end by themselves?"""
        return any(h.pending for h in self.happenings)

    async def _play(self, happening: Happening) -> None:
        assert happening.planned_us is not None
        await self._sleep_until(happening.planned_us)
        await self._begin(happening)
        if happening.fault.for_us is not None:
            await self._end_later(happening)

    async def _begin(self, happening: Happening) -> None:
        happening.began_us = self._clock.wall_us()
        if why := await self._resolve(happening):
            happening.ended_us = happening.began_us
            happening.errors.append(why)
            self._report("failed", happening)
            return
        happening.began_us = self._clock.wall_us()
        happening.number, actions = self._state.begin(happening.fault)
        self._report("began", happening)
        if happening.fault.kind == HEAL:
            self._note_healed()
        await self._do(happening, actions)
        if KINDS[happening.fault.kind].once is not None:
            error = "not here" if self._once is None else await self._once(happening.fault)
            if error:
                happening.errors.append(error)
                self._report("failed", happening)

    async def _resolve(self, happening: Happening) -> str:
        """Replaces ``reads:CLIENT`` and ``state:STATE`` by a node; returns "", or why there is none."""
        node_of: dict[str, str] = {}
        fault = happening.fault
        for name in (*fault.first, *fault.second):
            if name.startswith(READS):
                node = self._reads(name.removeprefix(READS))
                if node is None:
                    return f"client {name.removeprefix(READS)} reads nobody"
                node_of[name] = node
            elif name.startswith(STATE):
                node = await self._wait_for(name.removeprefix(STATE))
                if node is None:
                    return f"nobody was in {name.removeprefix(STATE)} within {PATIENCE_S:g} s"
                node_of[name] = node
        first, second = (tuple(node_of.get(n, n) for n in names) for names in (fault.first, fault.second))
        happening.fault = replace(fault, first=first, second=second)
        return ""

    async def _wait_for(self, state: str) -> str | None:
        with trio.move_on_after(PATIENCE_S):
            while (node := self._in_state(state)) is None:  # noqa: ASYNC110  (no event says so)
                await trio.sleep(LOOK_S)
            return node
        return None

    async def _end_later(self, happening: Happening) -> None:
        assert happening.began_us is not None
        assert happening.fault.for_us is not None
        await self._sleep_until(happening.began_us + happening.fault.for_us)
        if happening.ended_us is not None:
            return
        happening.ended_us = self._clock.wall_us()
        actions = self._state.end(happening.number)
        self._report("ended", happening)
        await self._do(happening, actions)

    def _note_healed(self) -> None:
        """Notes the lasting faults that a heal has just ended completely."""
        for happening in self.happenings:
            kind = KINDS[happening.fault.kind]
            if (
                (kind.lasts or kind.once is not None)
                and happening.number
                and happening.ended_us is None
                and not self._state.is_active(happening.number)
            ):
                happening.ended_us = self._clock.wall_us()
                self._report("ended", happening)

    async def _do(self, happening: Happening, actions: Sequence[Action]) -> None:
        """Performs actions on one process in order, also of several faults; on several processes at the same time."""
        by_process: dict[str, list[Action]] = {}
        for action in actions:
            by_process.setdefault(action.process, []).append(action)
        before = len(happening.errors)
        async with trio.open_nursery() as nursery:
            for process, each in by_process.items():
                last, self._turns[process] = self._turns.get(process), trio.Event()
                nursery.start_soon(self._do_in_order, happening, each, last, self._turns[process])
        if len(happening.errors) > before:
            self._report("failed", happening)

    async def _do_in_order(
        self, happening: Happening, actions: Sequence[Action], last: trio.Event | None, done: trio.Event
    ) -> None:
        try:
            if last is not None:
                await last.wait()
            for action in actions:
                error = await self._perform(action)
                if error:
                    happening.errors.append(f"{action.do} {action.process}: {error}")
        finally:
            done.set()

    async def _sleep_until(self, wall_us: int) -> None:
        await trio.sleep(max(0, wall_us - self._clock.wall_us()) / 1e6)
