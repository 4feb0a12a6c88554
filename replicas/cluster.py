"""A local cluster: starts real processes, kills, freezes and restarts them, and leaves none behind.

Whatever way the supervisor ends, its processes end too: on a normal end, an exception, Ctrl-C or a signal they get
SIGTERM and, if need be, SIGKILL; when the supervisor itself is killed, the kernel kills them (replicas.supervised).
Each is in a session of its own, so that a Ctrl-C in the terminal reaches the supervisor only.
"""

from __future__ import annotations

import contextlib
import enum
import os
import random
import signal
import socket
import subprocess
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final

import trio

from replicas.supervised import LineLink
from spe.errors import LinkClosed, PortInUse, RemoteProtocolError, SpeError
from spe.network import parse_address

#: Between SIGTERM and SIGKILL.
GRACE_S: Final = 5.0
#: A process that is not ready by then never will be.
READY_S: Final = 60.0
#: Ports below the range that outgoing connections take theirs from, so that none is taken while a process restarts.
PORTS: Final = range(20_000, 32_000)
#: How much of a log a message quotes.
_TAIL_BYTES: Final = 4_000


class Phase(enum.StrEnum):
    """What a process is doing, as its supervisor sees it."""

    STARTING = "starting"
    RUNNING = "running"
    FROZEN = "frozen"
    KILLED = "killed"  # on purpose
    ENDED = "ended"  # on purpose, or with status 0
    DIED = "died"  # by itself


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """How to start a process.

    Attributes:
      command: words; the number of the supervision descriptor is appended as ``--supervisor-fd N``.
      log: file that takes its output and errors.
      environment: on top of ours.
      reads_stdin: it gets the standard input; all others get none.
    """

    name: str
    command: Sequence[str]
    log: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    reads_stdin: bool = False


class Managed:
    """One process of the cluster over all its starts.

    Attributes:
      starts: how often it was started.
      pid: of the latest start; None before the first.
      status: exit status of the latest end (negative: the signal); None while it runs.
    """

    def __init__(self, spec: ProcessSpec) -> None:
        self.spec = spec
        self.phase = Phase.STARTING
        self.starts = 0
        self.pid: int | None = None
        self.status: int | None = None
        self.ready = trio.Event()
        self.gone = trio.Event()
        self.link: LineLink | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._log_from = 0

    @property
    def alive(self) -> bool:
        return self._child is not None and self.status is None

    def spawn(self) -> None:
        """Starts it.  In the main thread: the kernel ties "dies with its parent" to the thread that forks."""
        assert not self.alive, self.spec.name
        ours, theirs = socket.socketpair()
        self.spec.log.parent.mkdir(parents=True, exist_ok=True)
        try:
            with theirs, self.spec.log.open("ab") as log:
                self._log_from = log.tell()
                self._child = self._popen(theirs, log)
        except OSError as error:
            ours.close()
            raise SpeError(f"{self.spec.name} cannot be started: {error}") from error
        self.pid, self.status = self._child.pid, None
        self.starts += 1
        self.phase = Phase.STARTING
        self.ready, self.gone = trio.Event(), trio.Event()
        self.link = LineLink(trio.SocketStream(trio.socket.from_stdlib_socket(ours)))

    def _popen(self, theirs: socket.socket, log: IO[bytes]) -> subprocess.Popen[bytes]:
        fd = theirs.fileno()
        return subprocess.Popen(
            [*self.spec.command, "--supervisor-fd", str(fd)],
            stdin=None if self.spec.reads_stdin else subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=(fd,),
            start_new_session=True,
            env={**os.environ, **self.spec.environment},
        )

    def signal(self, number: signal.Signals) -> None:
        """Nothing where it has ended."""
        if self.alive and self._child is not None:
            self._child.send_signal(number)

    async def wait(self) -> int:
        """Exit status of the running process."""
        assert self._child is not None
        try:
            pidfd = os.pidfd_open(self._child.pid)
        except (AttributeError, OSError):  # no Linux, or an old one
            status = await trio.to_thread.run_sync(self._child.wait, abandon_on_cancel=True)
        else:
            try:
                await trio.lowlevel.wait_readable(pidfd)
            finally:
                trio.lowlevel.notify_closing(pidfd)
                os.close(pidfd)
            status = self._child.wait()
        self.status = status
        return status

    def last_words(self) -> str:
        """The end of what the latest start wrote."""
        try:
            with self.spec.log.open("rb") as log:
                log.seek(max(self._log_from, log.seek(0, os.SEEK_END) - _TAIL_BYTES))
                return log.read().decode(errors="replace").strip()
        except OSError:
            return ""


#: Told of everything that happens to a process: event name, process, further facts.
Told = Callable[[str, str, dict[str, Any]], None]


class Cluster:
    """Processes by name.  Use :func:`open_cluster`, which leaves none behind.

    Args:
      told: called at each event: started, ready, killed, frozen, resumed, ended, died.
    """

    def __init__(self, specs: Iterable[ProcessSpec], *, told: Told = lambda event, name, facts: None) -> None:
        self.processes = {s.name: Managed(s) for s in specs}
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

    async def stop(self, names: Iterable[str] | None = None, grace_s: float = GRACE_S) -> None:
        """SIGTERM to all (or some), then SIGKILL to those that have not ended in time; returns when all have."""
        chosen = [self.processes[n] for n in (self.processes if names is None else names)]
        running = [p for p in chosen if p.alive]
        for one in running:
            one.phase = Phase.ENDED
            one.signal(signal.SIGTERM)
            one.signal(signal.SIGCONT)  # a frozen one could not hear the other
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
        with trio.CancelScope(shield=True):
            await self.stop()
        self._scope.cancel()

    def _end_now(self) -> None:
        """The last resort, without awaiting anything: nobody stays."""
        for one in self.processes.values():
            one.signal(signal.SIGKILL)
            if one.alive and one._child is not None:
                one.status = one._child.wait()

    async def _watch(self, one: Managed) -> None:
        status = await one.wait()
        if one.phase in (Phase.KILLED, Phase.ENDED):
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
        if not one.alive:
            said = one.last_words() or f"exit status {one.status}"
            raise SpeError(f"{one.spec.name} ended before it was ready:\n{said}")

    def _tell(self, event: str, one: Managed, **facts: Any) -> None:
        self._told(event, one.spec.name, facts)


@contextlib.asynccontextmanager
async def open_cluster(
    specs: Iterable[ProcessSpec], *, told: Told = lambda event, name, facts: None
) -> AsyncIterator[Cluster]:
    """A cluster whose processes end with the block, however it ends; none is started yet."""
    cluster = Cluster(specs, told=told)
    async with trio.open_nursery() as nursery:
        await nursery.start(cluster._run)
        try:
            yield cluster
        finally:
            await cluster._close()


def free_addresses(count: int, host: str = "127.0.0.1") -> list[str]:
    """Different addresses that can be listened on now.  Raises PortInUse: there are none."""
    found: list[str] = []
    with contextlib.ExitStack() as held:
        for port in random.SystemRandom().sample(PORTS, len(PORTS)):
            if len(found) == count:
                break
            address = f"{host}:{port}"
            with contextlib.suppress(PortInUse):
                held.enter_context(_bound(address))
                found.append(address)
    if len(found) < count:
        raise PortInUse(f"no {count} free ports in {PORTS.start}-{PORTS.stop} on {host}")
    return found


def check_free(addresses: Mapping[str, str]) -> None:
    """Raises PortInUse, naming whose address it is, where one cannot be listened on."""
    for name, address in addresses.items():
        try:
            with _bound(address):
                pass
        except PortInUse as error:
            raise PortInUse(f"{name}: {error}") from error


def _bound(address: str) -> socket.socket:
    host, port = parse_address(address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    one = socket.socket(family, socket.SOCK_STREAM)
    try:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.bind((host, port))
        one.listen(1)
    except OSError as error:
        one.close()
        raise PortInUse(f"cannot listen on {address}: {error.strerror or error}") from error
    return one
