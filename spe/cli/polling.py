"""Asking processes for their status, again and again, and telling them things."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import trio

from replicas.link.connection import Connection, Identity, dial
from replicas.producer.server import request
from spe.errors import SpeError
from spe.plan.plan import Plan
from spe.runtime.env import Env
from spe.wire.messages import Inject, InjectAnswer, Message, Status, StatusRequest, expect

#: A process that takes longer to answer is busy, frozen or cut off: we go on without it.
ANSWER_S: Final = 1.0
PERIOD_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class Seen:
    """The last status of a process.

    Attributes:
      at_us: wall time at which it came.
    """

    data: Mapping[str, Any]
    at_us: int


class Poller:
    """Statuses of processes.

    Args:
      addresses: of whom to ask, by name.
      heard: called with each status.

    Attributes:
      seen: the last status of each that ever answered.
    """

    def __init__(
        self,
        env: Env,
        plan: Plan,
        addresses: Mapping[str, str],
        token: str,
        *,
        heard: Callable[[str, Mapping[str, Any]], None] = lambda name, data: None,
    ) -> None:
        self._env = env
        self._plan = plan
        self._addresses = addresses
        self._me = Identity("control", "control", env.clock.wall_us(), token)
        self._heard = heard
        self.seen: dict[str, Seen] = {}
        #: Why the last try failed; not there when it did not.
        self.errors: dict[str, str] = {}

    async def ask(self, name: str, message: Message, *, wait_s: float = ANSWER_S) -> Message:
        """One question on a connection of its own.

        Raises:
          SpeError: no answer in time, or not reachable.
        """
        answer: Message | None = None
        with trio.move_on_after(wait_s):
            connection, _ = await dial(self._env, self._plan, self._me, name, self._addresses[name])
            try:
                answer = await request(connection, message)
            finally:
                with trio.CancelScope(shield=True):
                    await connection.aclose()
        if answer is None:
            raise SpeError(f"{name} did not answer within {wait_s:g} s")
        return answer

    async def inject(self, name: str, fault: Mapping[str, Any], *, wait_s: float = ANSWER_S) -> str:
        """Asks a process to make a fault happen; "" or why it did not."""
        try:
            answer = expect(await self.ask(name, Inject(fault), wait_s=wait_s), InjectAnswer)
        except SpeError as error:
            return str(error)
        return "" if answer.ok else answer.error

    async def ask_status(self, name: str) -> bool:
        """Asks once; False where no answer came."""
        try:
            self._take(name, await self.ask(name, StatusRequest()))
        except SpeError as error:
            self.errors[name] = str(error)
            return False
        return True

    async def follow(self, name: str) -> None:
        """Asks for ever, on one connection while it lasts."""
        while True:
            try:
                connection, _ = await dial(self._env, self._plan, self._me, name, self._addresses[name])
                try:
                    await self._follow(connection, name)
                finally:
                    with trio.CancelScope(shield=True):
                        await connection.aclose()
            except SpeError as error:
                self.errors[name] = str(error)
            await trio.sleep(PERIOD_S)

    async def _follow(self, connection: Connection, name: str) -> None:
        while True:
            answer: Message | None = None
            with trio.move_on_after(ANSWER_S):
                answer = await request(connection, StatusRequest())
            if answer is None:
                self.errors[name] = f"no answer within {ANSWER_S:g} s"
                return
            self._take(name, answer)
            await trio.sleep(PERIOD_S)

    def _take(self, name: str, answer: Message) -> None:
        data = expect(answer, Status).data
        self.errors.pop(name, None)
        self.seen[name] = Seen(data, self._env.clock.wall_us())
        self._heard(name, data)
