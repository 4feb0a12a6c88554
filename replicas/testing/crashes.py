"""Plays a connector repeatedly, with a crash at each of its awaits, against a server that persists."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from random import Random
from typing import Any, Final, Protocol

import trio

from consistency.faults.kind import LinkFaults
from replicas.connectors.server_sink import ANSWER_S, GONE
from replicas.link.signal import Signal
from replicas.simulation.world.clock import EPOCH_US, JumpClock, SimClock, Stuck
from replicas.simulation.world.disk import SimDisk, torn
from replicas.simulation.world.host import HOST, Processors, SimCompute, seeded_scheduling
from replicas.simulation.world.network import HostNetwork, SimNetwork
from replicas.testing.blame import PromiseBroken
from spe.errors import SpeError, leaves
from spe.runtime.env import Env, Network
from spe.runtime.network import TcpNetwork
from spe.runtime.production import NullTrace, SystemClock, ThreadCompute

_PROCESS: Final = "process"
_SERVER: Final = "server"
_LINK: Final = LinkFaults(delay_us=1_000)
#: Duration of a disk sync, and interval of checking whether all is done.
_SYNC_S: Final = 0.01
_LOOK_S: Final = 0.02
#: How long a server is down, and how long it hangs: longer than a sink waits for it.
_DOWN_S: Final = 0.7
_HANGS_S: Final = ANSWER_S + 5
#: In virtual time and in real time: a play that is not over after so long never will be.
_LONGEST_S: Final = 600.0
_LONGEST_REAL_S: Final = 60.0
#: Seconds of computing that a play in virtual time may take.
_CPU_S: Final = 30.0
#: Largest number of steps from one crash to a second one.
_SOON: Final = 40
#: Marks task steps of the connector's process.
_INSIDE: ContextVar[bool] = ContextVar("_INSIDE", default=False)


class How(StrEnum):
    """An event at an await."""

    KILLED = "the process is killed"
    POWER_LOST = "its machine loses power"
    SERVER_KILLED = "the server is killed"
    SERVER_PAUSED = "the server hangs, and then goes on"


class PlayedServer(Protocol):
    """A server for a connector.  Made anew for each play; its attributes survive when it is killed.

    An attribute ``storage`` is set to the disk of the connector's process: for sinks of files.  An attribute
    ``deployed`` is set to the plan and the directory of the source: for servers that speak the protocol of the cluster.
    """

    async def serve(self, network: Network, *, task_status: trio.TaskStatus[str]) -> None:
        """Serves until it is cancelled, which kills it, as ``network.serve`` does; called again afterwards."""


@dataclass(frozen=True)
class Crash:
    """A crash at steps of the connector's tasks, each counted from the previous one."""

    steps: Sequence[int]
    how: How

    def __str__(self) -> str:
        return f"{self.how} at step {', then '.join(map(str, self.steps))}" if self.steps else "without a crash"


class Performance(Protocol):
    """A play on a stage."""

    stage: Stage

    async def play(self) -> None: ...

    def check(self) -> None:
        """Checks the result after the play.  Raises PromiseBroken."""


class Stage(trio.abc.Instrument):
    """One play: a process that is restarted after each crash, and a server.

    Args:
      wall_us: least wall clock at the beginning of virtual time.

    Attributes:
      disk: disk of the process.
      steps: number of steps of the connector's tasks, until it was over.
      unfinished: why it ended without being over; "" if it was over.
    """

    def __init__(self, server: Any, crash: Crash, seed: int, *, virtual: bool, wall_us: int = 0) -> None:
        self._wall_us = wall_us
        self._server = server
        self._set_disk(SimDisk())
        self._left = list(crash.steps)
        self._how = crash.how
        self._virtual = virtual
        self._random = Random(seed)
        self._network = SimNetwork(Random(seed), _LINK)
        self.steps = 0
        self._starts = 0
        self._over = False
        self._serves = trio.Event()
        self._pause = Signal()
        self.unfinished = ""
        self._process_scope: trio.CancelScope | None = None
        self._server_scope: trio.CancelScope | None = None

    def _set_disk(self, disk: SimDisk) -> None:
        self.disk = disk
        disk.sync_s = _SYNC_S
        if hasattr(self._server, "storage"):
            self._server.storage = disk

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        if self._over or not task.context.get(_INSIDE):
            return
        self.steps += 1
        if not self._left:
            return
        of_server = self._how in (How.SERVER_KILLED, How.SERVER_PAUSED)
        scope = self._server_scope if of_server else self._process_scope
        if self.steps >= self._left[0] and scope is not None:
            del self._left[0]
            self.steps = 0
            if self._how is How.SERVER_PAUSED:
                self._pause.wake()
                return
            if self._how is How.SERVER_KILLED:
                self._serves = trio.Event()
            scope.cancel()

    def _env(self) -> Env:
        self._starts += 1
        random = Random(f"{self._random.random()}/{self._starts}")
        if self._virtual:
            network: Network = HostNetwork(self._network, _PROCESS)
            clock = SimClock()
            clock.skew_us = max(0, self._wall_us - EPOCH_US)
            return Env(clock, network, self.disk, SimCompute(), random, NullTrace())
        return Env(SystemClock(), TcpNetwork(), self.disk, ThreadCompute(), random, NullTrace())

    async def play(
        self, process: Callable[[Env], Awaitable[None]], over: Callable[[], bool], look: Callable[[], Awaitable[None]]
    ) -> None:
        """Plays until it is over, and for a second more; or for very long, which sets ``unfinished``.

        Args:
          look: called at the end, while the server still runs.

        Raises:
          PromiseBroken: the process ended with an error.
        """
        with trio.move_on_after(_LONGEST_S if self._virtual else _LONGEST_REAL_S) as limit:
            async with trio.open_nursery() as nursery:
                if not hasattr(self._server, "serve"):
                    self._serves.set()
                else:
                    await nursery.start(self._serve)
                    nursery.start_soon(self._hang)
                nursery.start_soon(self._live, process)
                while not over():  # noqa: ASYNC110 - a server does not report when it has everything
                    await trio.sleep(_LOOK_S)
                await trio.sleep(1.0 if self._virtual else 0.2)
                self._over = True
                await self._serves.wait()
                await look()
                nursery.cancel_scope.cancel()
        if limit.cancelled_caught:
            longest_s = _LONGEST_S if self._virtual else _LONGEST_REAL_S
            self.unfinished = f"it does not come to an end within {longest_s:g} s"

    async def _hang(self) -> None:
        """Freezes the server whenever a crash requires it."""
        processors = Processors()
        while True:
            await self._pause.wait(self._pause.token())
            processors.freeze(_SERVER)
            try:
                await trio.sleep(_HANGS_S)
            finally:
                processors.thaw(_SERVER)

    async def _serve(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Runs the server, and restarts it."""
        HOST.set(_SERVER)
        network: Network = _ServersNetwork(self._network, _SERVER) if self._virtual else TcpNetwork()
        while True:
            async with trio.open_nursery() as nursery:
                self._server_scope = nursery.cancel_scope
                await nursery.start(partial(self._server.serve, network))
                self._serves.set()
                task_status.started()
                task_status = trio.TASK_STATUS_IGNORED
            self._server_scope = None
            self._network.gone(_SERVER)
            await trio.sleep(_DOWN_S)

    async def _live(self, process: Callable[[Env], Awaitable[None]]) -> None:
        """Runs the process, and restarts it."""
        while True:
            with trio.CancelScope() as scope:
                self._process_scope = scope
                await self._once(process)
            self._process_scope = None
            self._network.gone(_PROCESS)
            disk = self.disk
            if self._how is How.POWER_LOST:
                disk = disk.power_loss(lambda _, synced, written: torn(self._random, synced, written))
            self._set_disk(disk.restarted())
            await trio.sleep(self._random.choice([0.0, 0.0005, 0.1]))

    async def _once(self, process: Callable[[Env], Awaitable[None]]) -> None:
        token = _INSIDE.set(True)
        try:
            async with trio.open_nursery() as nursery:  # its tasks are inside
                nursery.start_soon(process, self._env())
        except* SpeError as group:
            raise PromiseBroken(f"it ends: {next(leaves(group))}") from group
        finally:
            _INSIDE.reset(token)
        await trio.sleep_forever()  # it has nothing more to do


class _ServersNetwork(HostNetwork):
    """A network whose server goes on when a connection ends, as over a real network."""

    async def serve(
        self,
        address: str,
        handler: Callable[[trio.abc.Stream], Awaitable[None]],
        *,
        task_status: trio.TaskStatus[str],
    ) -> None:
        async def handle(stream: trio.abc.Stream) -> None:
            with suppress(*GONE):
                await handler(stream)

        await super().serve(address, handle, task_status=task_status)


def play_all(
    perform: Callable[[Crash], Performance], *, serves: bool, virtual: bool, most: int | None, seed: int
) -> int:
    """Plays with a crash at each step, until the play is over before the crash; returns the number of plays.

    Args:
      perform: makes a new play.
      serves: the server can be killed; in virtual time it can hang, too.
      most: number of plays of each kind; beyond it, steps are left out.

    Raises:
      PromiseBroken: says after which crash.
    """
    random, plays = Random(seed), 0

    def play(crash: Crash) -> Stage:
        nonlocal plays
        plays += 1
        performance = perform(crash)
        try:
            _run(performance, seed + plays, virtual)
            performance.check()
            if performance.stage.unfinished:
                raise PromiseBroken(performance.stage.unfinished)
        except (AssertionError, Stuck) as error:
            raise PromiseBroken(f"{crash}: {error}") from error
        return performance.stage

    hows = [How.KILLED, How.POWER_LOST, *([How.SERVER_KILLED] if serves else [])]
    for how in [*hows, *([How.SERVER_PAUSED] if serves and virtual else [])]:
        steps = range(1, play(Crash((), how)).steps + 1)
        for step in steps if most is None or most >= len(steps) else sorted(random.sample(steps, most)):
            # Every other time it crashes again soon, while it recovers.
            play(Crash((step,) if random.random() < 0.5 else (step, random.randint(1, _SOON)), how))
    return plays


def _run(performance: Performance, seed: int, virtual: bool) -> None:
    stage = performance.stage
    try:
        if virtual:
            with seeded_scheduling(seed):
                trio.run(performance.play, clock=JumpClock(cpu_s=_CPU_S), instruments=[stage])
        else:
            trio.run(performance.play, instruments=[stage])
    except BaseExceptionGroup as group:
        broken = next((e for e in leaves(group) if isinstance(e, AssertionError)), None)
        if broken is None:
            raise
        raise broken from None
