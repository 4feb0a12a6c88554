"""A local cluster: starts, kills, freezes and restarts real processes, and ends all of them at its end.

Whatever way the supervisor ends, its processes end too: on a normal end, an exception, Ctrl-C or a signal they get
SIGTERM and, if need be, SIGKILL; when the supervisor itself is killed, the kernel kills them
(replicas.local.supervised_process).
Each is in a session of its own, so that a Ctrl-C in the terminal reaches the supervisor only.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any, Final

import trio

from replicas.local.process import Managed, Phase, ProcessSpec
from spe.errors import LinkClosed, RemoteProtocolError, SpeError

#: Between SIGTERM and SIGKILL.
GRACE_S: Final = 5.0
#: A process that is not ready by then never will be.
READY_S: Final = 60.0
#: Who is lost is looked at again after this: it is being started elsewhere.
_LOST_S: Final = 0.1
#: Told of everything that happens to a process: event name, process, further facts.
Told = Callable[[str, str, dict[str, Any]], None]


class Cluster:
    """Processes by name.  Use :func:`open_cluster`, which leaves none behind.

    Args:
      told: called at each event: started, ready, killed, frozen, resumed, stopped, ended, lost, died.
      make: how a process is run; a child of this one by default.
    """

    def __init__(
        self,
        specs: Iterable[ProcessSpec],
        *,
        told: Told = lambda event, name, facts: None,
        make: Callable[[ProcessSpec], Managed] = Managed,
    ) -> None:
        self.processes = {s.name: make(s) for s in specs}
        self._told = told
        self._nursery: trio.Nursery | None = None
        self._scope = trio.CancelScope(shield=True)
        self._begin_us: int | None = None

    # --- one process ---

    async def start(self, name: str) -> None:
        """Starts a process that does not run; its address and storage are the same as before."""
        one = self.processes[name]
        if one.alive:
            return
        assert self._nursery is not None, "the cluster is not open"
        one.spawn()
        self._tell("started", one, pid=one.pid, start=one.starts)
        self._nursery.start_soon(self._watch, one)
        self._nursery.start_soon(self._listen, one)
        if self._begin_us is not None:
            await self._send(one, {"begin_us": self._begin_us})

    async def kill(self, name: str) -> bool:
        """kill -9, and waits until it is gone.  False where it did not run."""
        one = self.processes[name]
        if not one.alive:
            return False
        one.phase = Phase.KILLED
        one.signal(signal.SIGKILL)
        await one.gone.wait()
        return True

    def freeze(self, name: str) -> bool:
        """SIGSTOP.  False where it does not run."""
        return self._pause(name, signal.SIGSTOP, Phase.FROZEN, "frozen")

    def resume(self, name: str) -> bool:
        """SIGCONT.  False where it does not run."""
        return self._pause(name, signal.SIGCONT, Phase.RUNNING, "resumed")

    def _pause(self, name: str, number: signal.Signals, phase: Phase, event: str) -> bool:
        one = self.processes[name]
        if not one.alive:
            return False
        one.signal(number)
        one.phase = phase
        self._tell(event, one)
        return True

    # --- all of them ---

    async def start_all(self) -> None:
        """Starts all and waits until each is ready.

        Raises:
          SpeError: one ended before it was ready (with what it said), or did not get ready.
        """
        for name in self.processes:
            await self.start(name)
        with trio.move_on_after(READY_S) as waiting:
            for one in self.processes.values():
                await self._ready_or_gone(one)
        if waiting.cancelled_caught:
            late = [n for n, p in self.processes.items() if not p.ready.is_set()]
            raise SpeError(f"not ready after {READY_S:g} s: {', '.join(late)}")

    async def begin(self, wall_us: int) -> None:
        """Tells every process, also those started later, when the sources begin."""
        self._begin_us = wall_us
        for one in self.processes.values():
            if one.alive:
                await self._send(one, {"begin_us": wall_us})

    async def stop(
        self, names: Iterable[str] | None = None, grace_s: float = GRACE_S, phase: Phase = Phase.ENDED
    ) -> None:
        """SIGTERM to all (or some), then SIGKILL to those that have not ended in time; returns when all have.

        Args:
          phase: STOPPED where they are to be started again.
        """
        chosen = [self.processes[n] for n in (self.processes if names is None else names)]
        running = [p for p in chosen if p.alive]
        for one in running:
            one.phase = phase
            one.signal(signal.SIGTERM)
            one.signal(signal.SIGCONT)  # a frozen process does not get SIGTERM before SIGCONT
        with trio.move_on_after(grace_s):
            for one in running:
                await one.gone.wait()
        for one in running:
            if one.alive:
                self._tell("killed at the end", one)
                one.signal(signal.SIGKILL)
        with trio.move_on_after(grace_s):
            for one in running:
                await one.gone.wait()

    # --- inside ---

    async def _run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Watches the processes, also while everything around is being cancelled, until ``_close``."""
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    self._nursery = nursery
                    nursery.start_soon(trio.sleep_forever)
                    task_status.started()
        finally:
            self._nursery = None
            self._end_now()

    async def _close(self) -> None:
        try:
            with trio.CancelScope(shield=True):
                await self.stop()
        finally:
            self._scope.cancel()

    def _end_now(self) -> None:
        """Kills all processes at once, without awaiting anything: the last resort."""
        for one in self.processes.values():
            one.end_now()

    async def _watch(self, one: Managed) -> None:
        status = await one.wait()
        if one.phase in (Phase.KILLED, Phase.STOPPED, Phase.ENDED, Phase.LOST):
            self._tell(str(one.phase), one, status=status)
        else:
            one.phase = Phase.ENDED if status == 0 else Phase.DIED
            self._tell(str(one.phase), one, status=status, said=one.last_words()[-500:])
        one.gone.set()
        one.ready.set()

    async def _listen(self, one: Managed) -> None:
        link = one.link
        assert link is not None
        try:
            while True:
                message = await link.receive()
                if "ready" in message and one.phase is Phase.STARTING:
                    one.phase = Phase.RUNNING
                    self._tell("ready", one)
                    one.ready.set()
        except (LinkClosed, RemoteProtocolError):
            await link.aclose()

    async def _send(self, one: Managed, message: dict[str, Any]) -> None:
        assert one.link is not None
        with contextlib.suppress(LinkClosed):
            await one.link.send(message)

    async def _ready_or_gone(self, one: Managed) -> None:
        await one.ready.wait()
        while one.phase is Phase.LOST:
            await trio.sleep(_LOST_S)
            await one.ready.wait()
        if not one.alive:
            said = one.last_words() or f"exit status {one.status}"
            raise SpeError(f"{one.spec.name} ended before it was ready:\n{said}")

    def _tell(self, event: str, one: Managed, **facts: Any) -> None:
        self._told(event, one.spec.name, facts)


@contextlib.asynccontextmanager
async def open_cluster(
    specs: Iterable[ProcessSpec],
    *,
    told: Told = lambda event, name, facts: None,
    make: Callable[[ProcessSpec], Managed] = Managed,
) -> AsyncIterator[Cluster]:
    """A cluster whose processes end with the block, however it ends; none is started yet."""
    cluster = Cluster(specs, told=told, make=make)
    async with trio.open_nursery() as nursery:
        await nursery.start(cluster._run)
        try:
            yield cluster
        finally:
            await cluster._close()
