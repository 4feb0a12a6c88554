"""One real process over all its starts: spawned with a link to its supervisor, signalled, waited for, reaped."""

from __future__ import annotations

import enum
import os
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final

import trio

from replicas.local.supervised_process import LineLink
from spe.errors import SpeError

#: Maximum length of a quoted log.
_TAIL_BYTES: Final = 4_000


class Phase(enum.StrEnum):
    """State of a process, for its supervisor."""

    STARTING = "starting"
    RUNNING = "running"
    FROZEN = "frozen"
    KILLED = "killed"  # on purpose
    STOPPED = "stopped"  # on purpose, to be started again
    ENDED = "ended"  # on purpose, or with status 0
    LOST = "lost"  # with the machine that ran it; it is to be started again
    DIED = "died"  # by itself


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """Specification of a process to start.

    Attributes:
      command: words; the number of the supervision descriptor is appended as ``--supervisor-fd N``.
      log: file for its output and errors.
      environment: in addition to ours.
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
      starts: number of its starts.
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
        """Sends a signal; ignored if the process has ended."""
        if self.alive and self._child is not None:
            self._child.send_signal(number)

    async def wait(self) -> int:
        """Returns the exit status of the running process at its end."""
        assert self._child is not None
        try:
            pidfd = os.pidfd_open(self._child.pid)
        except (AttributeError, OSError):  # not Linux, or an old kernel
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

    def end_now(self) -> None:
        """Kills and reaps it without letting other tasks run: the last resort."""
        self.signal(signal.SIGKILL)
        if self.alive and self._child is not None:
            self.status = self._child.wait()

    def last_words(self) -> str:
        """Returns the end of the latest start's output."""
        try:
            with self.spec.log.open("rb") as log:
                log.seek(max(self._log_from, log.seek(0, os.SEEK_END) - _TAIL_BYTES))
                return log.read().decode(errors="replace").strip()
        except OSError:
            return ""
