"""Prints what happens in a run, and keeps what its processes have reported."""

from __future__ import annotations

import signal
from typing import Any, Final

import trio
from rich.console import Console
from rich.text import Text

from replicas.cli.view.formats import moment, seconds
from replicas.faults.runner import Happening
from replicas.local.history import EventList
from replicas.local.job import Job
from replicas.local.log_errors import LogErrors
from replicas.local.story import Story
from spe.runtime.env import Env
from spe.status import ClientStatus, ProcessStatus

_AGAIN_S: Final = 0.5
_TELL_S: Final = 5.0


class Narrator:
    """Takes the events of a run, prints them as lines, and traces them.

    Attributes:
      history: statuses of all processes.
      died: reasons why processes have ended by themselves.
      log_errors: errors that processes have logged.
      begun_us: wall time at which the sources begin; None: not yet.
      is_drawn: the live view is on, so only errors are printed.
    """

    def __init__(self, job: Job, console: Console) -> None:
        self._clients = job.directory.clients
        self._console = console
        self._story = Story()
        self.history = EventList()
        self.died: dict[str, str] = {}
        self.log_errors = LogErrors({spec.name: spec.log for spec in job.specs})
        self.begun_us: int | None = None
        self.is_drawn = False
        self.env: Env

    def say(self, text: str, *, style: str = "", always: bool = False) -> None:
        """Prints a line, unless the live view is on."""
        if always or not self.is_drawn:
            at = "" if self.begun_us is None else f"{seconds(self.env.clock.wall_us() - self.begun_us):>6} s  "
            self._console.print(Text(f"{at}{text}", style), soft_wrap=True)

    def process_changed(self, event: str, name: str, facts: dict[str, Any]) -> None:
        """Takes an event about a process."""
        self.env.trace.event(f"process_{event.replace(' ', '_')}", process=name, **facts)
        if event == "died":
            self.died[name] = how_it_died(facts["status"], facts["said"])
            self.say(f"{name} died: {self.died[name]}")
        elif event == "started" and facts["start"] > 1:
            self.say(f"{name} is started again")

    def heard(self, status: ProcessStatus) -> None:
        """Takes the status of a process."""
        for replica, before, after in self.history.heard(status):
            self.env.trace.event("state", replica=replica, before=before, after=after)
            if before:
                self.say(f"{replica} {before} → {after}")
        for line in self._story.heard(status):
            self.env.trace.event("told", text=line)
            self.say(line)

    def fault_changed(self, event: str, happening: Happening) -> None:
        """Takes an event about a fault."""
        self.env.trace.event(f"fault_{event}", **happening.fault.to_data(), errors=happening.errors)
        if event == "failed":
            self.say(f"fault {happening.fault}: {'; '.join(happening.errors)}")
        else:
            self.say(f"fault {happening.fault}: {event}")

    async def watch_logs(self) -> None:
        while True:
            self.show_errors()
            await trio.sleep(_AGAIN_S)

    def show_errors(self) -> None:
        """Prints errors that processes have logged, also above the live view."""
        for name, text in self.log_errors.read():
            self.say(f"{name}: {text}", style="bold red", always=True)

    async def print_progress(self) -> None:
        """Prints a line for each channel now and then."""
        while True:
            await trio.sleep(_TELL_S)
            for client in self._clients:
                status = self.history.last(f"client:{client}", ClientStatus)
                for channel in () if status is None else status.channels:
                    self.say(
                        f"{client} {channel.channel}: {channel.stable:,} stable, {channel.tentative:,} tentative, "
                        f"at {moment(channel.frontier) or 'the beginning'}"
                    )

    def producer_of(self, client: str) -> str | None:
        """Returns the node that a client reads its first channel from."""
        status = self.history.last(f"client:{client}", ClientStatus)
        return None if status is None else next((c.producer for c in status.channels if c.producer), None)


def how_it_died(status: int, output: str) -> str:
    """Returns ``killed by SIGSEGV``, or the exit status with the last line of output."""
    if status < 0:
        return f"killed by {signal.Signals(-status).name}"
    lines = [line.strip(" |+-") for line in output.splitlines()]
    last = next((line for line in reversed(lines) if line), "")
    return f"exit status {status}{f': {last}' if last else ''}"
