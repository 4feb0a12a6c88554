"""A local cluster: starts, kills, freezes and restarts real processes, and ends all of them at its end.

However the supervisor ends, its processes end too: on a normal end, an exception, Ctrl-C or a signal they get
SIGTERM and, if need be, SIGKILL; when the supervisor itself is killed, the kernel kills them
(replicas.local.supervised_process).
Each has its own session, so that a Ctrl-C in the terminal reaches the supervisor only.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any, Final

import trio

from replicas.local.process import Managed, Phase, ProcessSpec
from spe.errors import LinkClosed, RemoteProtocolError, SpeError

#: Time between SIGTERM and SIGKILL.
GRACE_S: Final = 5.0
#: Time after which a process that is not ready never will be.
READY_S: Final = 60.0
#: Time between two checks of a lost process: it is being started elsewhere.
_LOST_S: Final = 0.1
#: Receives every event of a process: event name, process, further facts.
EventReport = Callable[[str, str, dict[str, Any]], None]


class Cluster:
    """Processes by name.  Use :func:`open_cluster`, which leaves none behind.

    Args:
      report: called at each event: started, ready, killed, frozen, resumed, stopped, ended, lost, died.
      make: makes a process; by default a child of this one.
    """

    def __init__(
        self,
        specs: Iterable[ProcessSpec],
        *,
        report: EventReport = lambda event, name, facts: None,
        make: Callable[[ProcessSpec], Managed] = Managed,
    ) -> None:
        self.processes = {s.name: make(s) for s in specs}
        self._report = report
        self._nursery: trio.Nursery | None = None
        self._scope = trio.CancelScope(shield=True)
        self._begin_us: int | None = None

    # --- one process ---

    async def start(self, name: str) -> None:
        """Starts a process that does not run; it keeps its address and storage."""
        process = self.processes[name]
        if process.alive:
            return
        assert self._nursery is not None, "the cluster is not open"
        process.spawn()
        self._tell("started", process, pid=process.pid, start=process.starts)
        self._nursery.start_soon(self._watch, process)
        self._nursery.start_soon(self._listen, process)
        if self._begin_us is not None:
            await self._send(process, {"begin_us": self._begin_us})

    async def kill(self, name: str) -> bool:
        """Sends SIGKILL, and waits for the end.  Returns False if it did not run."""
        process = self.processes[name]
        if not process.alive:
            return False
        process.phase = Phase.KILLED
        process.signal(signal.SIGKILL)
        await process.gone.wait()
        return True

    def freeze(self, name: str) -> bool:
        """Sends SIGSTOP.  Returns False if it does not run."""
        return self._pause(name, signal.SIGSTOP, Phase.FROZEN, "frozen")

    def resume(self, name: str) -> bool:
        """Sends SIGCONT.  Returns False if it does not run."""
        return self._pause(name, signal.SIGCONT, Phase.RUNNING, "resumed")

    def _pause(self, name: str, number: signal.Signals, phase: Phase, event: str) -> bool:
        process = self.processes[name]
        if not process.alive:
            return False
        process.signal(number)
        process.phase = phase
        self._tell(event, process)
        return True

    # --- all of them ---

    async def start_all(self) -> None:
        """Starts all and waits until each is ready.

        Raises:
          SpeError: one ended before it was ready (with its output), or did not get ready.
        """
        for name in self.processes:
            await self.start(name)
        with trio.move_on_after(READY_S) as waiting:
            for process in self.processes.values():
                await self._ready_or_gone(process)
        if waiting.cancelled_caught:
            late = [n for n, p in self.processes.items() if not p.ready.is_set()]
            raise SpeError(f"not ready after {READY_S:g} s: {', '.join(late)}")

    async def begin(self, wall_us: int) -> None:
        """Tells every process, also those started later, when the sources begin."""
        self._begin_us = wall_us
        for process in self.processes.values():
            if process.alive:
                await self._send(process, {"begin_us": wall_us})

    async def stop(
        self, names: Iterable[str] | None = None, grace_s: float = GRACE_S, phase: Phase = Phase.ENDED
    ) -> None:
        """Sends SIGTERM to all (or some), then SIGKILL to those that have not ended in time; returns when all have.

        Args:
          phase: STOPPED if they will be started again.
        """
        chosen = [self.processes[n] for n in (self.processes if names is None else names)]
        running = [p for p in chosen if p.alive]
        for process in running:
            process.phase = phase
            process.signal(signal.SIGTERM)
            process.signal(signal.SIGCONT)  # a frozen process does not get SIGTERM before SIGCONT
        with trio.move_on_after(grace_s):
            for process in running:
                await process.gone.wait()
        for process in running:
            if process.alive:
                self._tell("killed at the end", process)
                process.signal(signal.SIGKILL)
        with trio.move_on_after(grace_s):
            for process in running:
                await process.gone.wait()

    # --- inside ---

    async def _run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Watches the processes, also while the surrounding block is being cancelled, until ``_close``."""
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
        for process in self.processes.values():
            process.end_now()

    async def _watch(self, process: Managed) -> None:
        status = await process.wait()
        if process.phase in (Phase.KILLED, Phase.STOPPED, Phase.ENDED, Phase.LOST):
            self._tell(str(process.phase), process, status=status)
        else:
            process.phase = Phase.ENDED if status == 0 else Phase.DIED
            self._tell(str(process.phase), process, status=status, said=process.last_words()[-500:])
        process.gone.set()
        process.ready.set()

    async def _listen(self, process: Managed) -> None:
        link = process.link
        assert link is not None
        try:
            while True:
                message = await link.receive()
                if "ready" in message and process.phase is Phase.STARTING:
                    process.phase = Phase.RUNNING
                    self._tell("ready", process)
                    process.ready.set()
        except (LinkClosed, RemoteProtocolError):
            await link.aclose()

    async def _send(self, process: Managed, message: dict[str, Any]) -> None:
        assert process.link is not None
        with contextlib.suppress(LinkClosed):
            await process.link.send(message)

    async def _ready_or_gone(self, process: Managed) -> None:
        await process.ready.wait()
        while process.phase is Phase.LOST:
            await trio.sleep(_LOST_S)
            await process.ready.wait()
        if not process.alive:
            words = process.last_words() or f"exit status {process.status}"
            raise SpeError(f"{process.spec.name} ended before it was ready:\n{words}")

    def _tell(self, event: str, process: Managed, **facts: Any) -> None:
        self._report(event, process.spec.name, facts)


@contextlib.asynccontextmanager
async def open_cluster(
    specs: Iterable[ProcessSpec],
    *,
    report: EventReport = lambda event, name, facts: None,
    make: Callable[[ProcessSpec], Managed] = Managed,
) -> AsyncIterator[Cluster]:
    """Yields a cluster whose processes end with the block, however it ends; none is started yet."""
    cluster = Cluster(specs, report=report, make=make)
    async with trio.open_nursery() as nursery:
        await nursery.start(cluster._run)
        try:
            yield cluster
        finally:
            await cluster._close()
