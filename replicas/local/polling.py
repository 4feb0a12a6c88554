"""Polls processes for their status, and sends them messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import trio

from replicas.link.connection import Connection, Identity, dial
from replicas.local.run_dir import SUPERVISOR, Target
from replicas.producer.server import request
from spe.errors import LinkBroken, RemoteProtocolError, SpeError
from spe.figures.sight import Seen
from spe.plan.directory import COORDINATOR
from spe.plan.plan import Plan
from spe.runtime.env import Env
from spe.status import (
    ClientStatus,
    CoordinatorStatus,
    NodeStatus,
    ProcessStatus,
    SourceStatus,
    SupervisorStatus,
    UnreachedStatus,
)
from spe.wire.messages.commands import Inject, InjectAnswer, Status, StatusRequest
from spe.wire.messages.message import Message, expect

#: Time after which an answer is no longer awaited: the process is busy, frozen or cut off.
ANSWER_S: Final = 1.0
PERIOD_S: Final = 0.2

S = TypeVar("S", bound=ProcessStatus)


def last_of(statuses: Mapping[str, Seen], name: str, kind: type[S]) -> S | None:
    """Returns the last status of a process of this kind; None if it never answered."""
    last = statuses.get(name)
    return last.status if last is not None and isinstance(last.status, kind) else None


def kind_of(name: str) -> type[ProcessStatus]:
    """Returns the kind of status of a process, by its name."""
    if name == COORDINATOR:
        return CoordinatorStatus
    if name == SUPERVISOR:
        return SupervisorStatus
    return {"source": SourceStatus, "client": ClientStatus}.get(name.partition(":")[0], NodeStatus)


class Poller:
    """Polls processes.

    Args:
      addresses: of the processes to poll, by name.
      heard: called with each status.

    Attributes:
      period_s: between two requests to a process that is followed.
      addresses: the same, with nodes that have joined according to the coordinator.
      joined: called with the name of each of these, once.
      seen: the last status of each process that ever answered.
    """

    def __init__(
        self,
        env: Env,
        plan: Plan,
        addresses: Mapping[str, str],
        token: str,
        *,
        heard: Callable[[ProcessStatus], None] = lambda status: None,
    ) -> None:
        self._env = env
        self._plan = plan
        self.addresses = dict(addresses)
        self.joined: Callable[[str], None] = lambda name: None
        self._me = Identity("control", "control", env.clock.wall_us(), token)
        self._heard = heard
        self.period_s = PERIOD_S
        self.seen: dict[str, Seen] = {}
        #: Why the last request failed; absent if it did not.
        self.errors: dict[str, UnreachedStatus] = {}

    @classmethod
    def of(cls, target: Target) -> Poller:
        """Makes the poller of a command."""
        return cls(target.env(), target.plan, target.addresses, target.token)

    def now_us(self) -> int:
        """Returns the wall time by which answers are dated."""
        return self._env.clock.wall_us()

    async def ask(self, name: str, message: Message, *, wait_s: float = ANSWER_S) -> Message:
        """Sends one request on a connection of its own.

        Raises:
          SpeError: no answer in time, not reachable, or refused.
        """
        answer: Message | None = None
        with trio.move_on_after(wait_s):
            connection = await self._dial(name)
            try:
                answer = await request(connection, message)
            finally:
                with trio.CancelScope(shield=True):
                    await connection.aclose()
        if answer is None:
            raise LinkBroken(f"{name} did not answer within {wait_s:g} s")
        return answer

    async def inject(self, name: str, fault: Mapping[str, Any], *, wait_s: float = ANSWER_S) -> str:
        """Asks a process to make a fault happen; returns "" or why it did not."""
        try:
            answer = expect(await self.ask(name, Inject(fault), wait_s=wait_s), InjectAnswer)
        except SpeError as error:
            return str(error)
        return "" if answer.ok else answer.error

    async def ask_status(self, name: str) -> bool:
        """Asks once; returns False if no answer came."""
        began = trio.current_time()
        try:
            self._take(name, await self.ask(name, StatusRequest()), began)
        except SpeError as error:
            self.errors[name] = UnreachedStatus.of(error)
            return False
        return True

    async def ask_all(self) -> None:
        """Asks all processes once, those that have joined too; not the supervisor."""
        async with trio.open_nursery() as nursery:
            self.joined = lambda name: nursery.start_soon(self.ask_status, name)
            for name in self.addresses:
                if name != SUPERVISOR:
                    nursery.start_soon(self.ask_status, name)

    async def nodes(self) -> dict[str, NodeStatus]:
        """Returns the present status of each node that answers; also of nodes that have joined."""
        answered: dict[str, NodeStatus] = {}

        async def ask(name: str) -> None:
            if await self.ask_status(name):
                status = self.seen[name].status
                if isinstance(status, NodeStatus):
                    answered[name] = status
                elif isinstance(status, CoordinatorStatus):
                    for other in status.joined:
                        nursery.start_soon(ask, other)

        async with trio.open_nursery() as nursery:
            for name in list(self.addresses):
                if not name.startswith(("source:", "client:", SUPERVISOR)):
                    nursery.start_soon(ask, name)
        return answered

    async def follow(self, name: str) -> None:
        """Polls a process for ever, on one connection while it lasts."""
        while True:
            try:
                connection = await self._dial(name)
                try:
                    await self._follow(connection, name)
                finally:
                    with trio.CancelScope(shield=True):
                        await connection.aclose()
            except SpeError as error:
                self.errors[name] = UnreachedStatus.of(error)
            await trio.sleep(self.period_s)

    async def _dial(self, name: str) -> Connection:
        connection, _ = await dial(self._env, self._plan, self._me, name, self.addresses[name])
        connection.allow_status()
        return connection

    async def _follow(self, connection: Connection, name: str) -> None:
        while True:
            answer: Message | None = None
            began = trio.current_time()
            with trio.move_on_after(ANSWER_S):
                answer = await request(connection, StatusRequest())
            if answer is None:
                self.errors[name] = UnreachedStatus("silent", f"no answer within {ANSWER_S:g} s")
                return
            self._take(name, answer, began)
            await trio.sleep(self.period_s)

    def _take(self, name: str, answer: Message, began_s: float) -> None:
        """Takes an answer.  Raises RemoteProtocolError: it is not the status of this process."""
        status = expect(answer, Status).process
        if status.name != name or not isinstance(status, kind_of(name)):
            raise RemoteProtocolError(f"expected the status of {name}, got that of {status.kind} {status.name}")
        self.errors.pop(name, None)
        self.seen[name] = Seen(status, self._env.clock.wall_us(), round((trio.current_time() - began_s) * 1e6))
        if isinstance(status, CoordinatorStatus):
            new = [node for node in status.joined if node not in self.addresses]
            self.addresses.update(status.joined)
            for node in new:
                self.joined(node)
        self._heard(status)
