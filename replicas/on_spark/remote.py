"""The process of a node on Spark, for its supervisor: like a local one, except that it may be lost."""

from __future__ import annotations

import os
import signal
from typing import Any, Protocol

import trio

from replicas.local.process import Managed, Phase, ProcessSpec
from replicas.local.supervised_process import LineLink
from spe.errors import LinkClosed


class NodeStarter(Protocol):
    """Starts nodes elsewhere, and carries messages and signals to them."""

    def start(self, node: str) -> None:
        """Finds a place for a node, and starts it there."""

    def send(self, node: str, message: dict[str, Any]) -> bool:
        """Sends a node a message of its supervisor; returns False if it has no place."""

    def signal(self, node: str, number: signal.Signals) -> bool:
        """Sends a node a signal; returns False if it has no place."""


class _RemoteLink(LineLink):
    """The supervision link of one start, through the directory."""

    def __init__(self, process: RemoteProcess) -> None:
        self._process = process
        self._said, self._to_hear = trio.open_memory_channel[dict[str, Any]](16)

    def heard(self, message: dict[str, Any]) -> None:
        self._said.send_nowait(message)

    def over(self) -> None:
        self._said.close()

    async def send(self, message: dict[str, Any]) -> None:
        self._process.tell(message)
        await trio.lowlevel.checkpoint()

    async def receive(self) -> dict[str, Any]:
        try:
            return await self._to_hear.receive()
        except (trio.EndOfChannel, trio.ClosedResourceError):
            raise LinkClosed("the process has ended") from None

    async def aclose(self) -> None:
        await self._to_hear.aclose()


class RemoteProcess(Managed):
    """One node over all its starts.

    Attributes:
      begin_us: when the sources begin; None: not known yet.
    """

    def __init__(self, spec: ProcessSpec, directory: NodeStarter) -> None:
        super().__init__(spec)
        self._directory = directory
        self._runs = False
        self._end = trio.Event()
        self.begin_us: int | None = None

    @property
    def alive(self) -> bool:
        """Does it run, or shall it?  It may still be without a place."""
        return self._runs

    def spawn(self) -> None:
        assert not self.alive, self.spec.name
        self.spec.log.parent.mkdir(parents=True, exist_ok=True)
        with self.spec.log.open("ab") as log:
            self._log_from = log.seek(0, os.SEEK_END)
        self.starts += 1
        self.pid, self.status, self.phase = None, None, Phase.STARTING
        self.ready, self.gone, self._end = trio.Event(), trio.Event(), trio.Event()
        self.link = self._link = _RemoteLink(self)
        self._runs = True
        self._directory.start(self.spec.name)

    def tell(self, message: dict[str, Any]) -> None:
        """Sends a message of the supervisor; until there is a place, messages are stored."""
        if "begin_us" in message:
            self.begin_us = int(message["begin_us"])
        self._directory.send(self.spec.name, message)

    def signal(self, number: signal.Signals) -> None:
        ends = number in (signal.SIGTERM, signal.SIGKILL)
        if self.alive and not self._directory.signal(self.spec.name, number) and ends:
            self._over(-number)

    async def wait(self) -> int:
        await self._end.wait()
        assert self.status is not None
        return self.status

    def end_now(self) -> None:
        """Ends it as far as possible without waiting: its task ends it."""
        self.signal(signal.SIGKILL)
        if self.alive:
            self._over(-signal.SIGKILL)

    def heard(self, message: dict[str, Any]) -> None:
        """Handles a message of its task."""
        if not self.alive:
            return
        if (started := message.get("started")) is not None:
            self.pid = int(started["pid"])
        if "ready" in message:
            self._link.heard({"ready": message["ready"]})
        if (status := message.get("ended")) is not None:
            self._over(int(status))

    def lost(self) -> None:
        """Notes that its place is gone; ignored if it did not run, or was ending anyway."""
        if self.alive:
            if self.phase in (Phase.STARTING, Phase.RUNNING, Phase.FROZEN):
                self.phase = Phase.LOST
            self._over(-signal.SIGKILL)

    def _over(self, status: int) -> None:
        self._runs = False
        self.status = status
        self._link.over()
        self._end.set()
