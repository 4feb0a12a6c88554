"""Pushes batches of rows into a source: parts from many processes, and a commit that makes all of them its input.

Each request is repeated until it is answered; a source answers a repeated request as if it were new.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import trio

from replicas.link.connection import Connection, Identity, dial
from spe.errors import LinkBroken, LinkClosed, NotReachable, PeerBusy, PeerRefused, RemoteProtocolError, SpeError
from spe.plan.directory import Directory
from spe.plan.plan import Plan
from spe.runtime.env import Env
from spe.runtime.log_line import Level, say
from spe.stream.names import StreamId
from spe.wire.fields import SNAPSHOT_PART_BYTES
from spe.wire.messages.message import Message, expect
from spe.wire.messages.pushes import (
    CommitPushed,
    DropParts,
    EndPushed,
    PartStaged,
    PushCommitted,
    PushEnded,
    PushWaits,
    StagePart,
)

T = TypeVar("T", bound=Message)

#: Seconds between two attempts to reach a source.
_AGAIN_S = 0.25
#: Approximate time until a task that found all places taken tries again.
_BUSY_S = 1.0


class _Waiting:
    """Ends a request that makes no progress for too long.

    Attributes:
      why: last reason of the source for a delay; "" without one.

    Args:
      told: called with the reason each time that patience would have ended.
    """

    def __init__(self, scope: trio.CancelScope, patience_s: float, warn: Callable[[str], None]) -> None:
        self.why = ""
        self._told = warn
        self._told_s = trio.current_time() + patience_s
        self._scope = scope
        self._patience_s = patience_s
        self._furthest = -1
        self.again()

    async def answer(self, connection: Connection, kind: type[T]) -> T:
        """Returns the answer of a source, which may announce for a long time that it is still to come."""
        while isinstance(message := await connection.receive_message(), PushWaits):
            self.why = message.reason
            self.again()
            if trio.current_time() >= self._told_s:
                self._told_s += self._patience_s
                self._told(self.why)
        return expect(message, kind)

    def again(self) -> None:
        """Restarts the time limit, because the source has answered."""
        self._scope.deadline = trio.current_time() + self._patience_s

    def reached(self, piece: int) -> None:
        """Notes that a piece was sent.  A repeated piece is no progress."""
        if piece > self._furthest:
            self._furthest = piece
            self.again()


class Pusher:
    """One writer of one source.

    Args:
      writer: its name in the configuration of the source.
      patience_s: time limit without an answer and without progress in sending, after which a request fails.

    Raises:
      SpeError: the source has no such writer.
    """

    def __init__(
        self,
        env: Env,
        plan: Plan,
        directory: Directory,
        source: StreamId,
        writer: str,
        *,
        patience_s: float,
        token: str = "",
    ) -> None:
        name = f"writer:{writer}"
        if name not in plan.sources[source].writers:
            known = ", ".join(w.removeprefix("writer:") for w in plan.sources[source].writers) or "nobody"
            raise SpeError(f"source {source!r} takes no rows from writer {writer!r}; it takes them from {known}")
        self._env = env
        self._plan = plan
        self._peer = f"source:{source}"
        self._address = directory.sources[source]
        self._patience_s = patience_s
        self._me = Identity("writer", name, env.clock.wall_us(), token)

    async def stage(self, query: str, batch: int, data: bytes | bytearray) -> str:
        """Returns the name of a part when it is on the source's disk.  Waits while other tasks have all places.

        Args:
          data: encoded by :func:`spe.log.pushed_batches.encode_part`.

        Raises:
          SpeError: the source refuses it, or does not answer.
        """
        last = max(0, len(data) - 1) // SNAPSHOT_PART_BYTES

        async def send(connection: Connection, waiting: _Waiting) -> PartStaged:
            async def answered() -> None:
                answers.append(await waiting.answer(connection, PartStaged))
                nursery.cancel_scope.cancel()

            answers: list[PartStaged] = []
            part = f"{self._env.random.getrandbits(128):032x}"  # an interrupted attempt is another part
            async with trio.open_nursery() as nursery:
                nursery.start_soon(answered)  # a refusal may come before all is sent
                for index in range(last + 1):
                    piece = bytes(data[index * SNAPSHOT_PART_BYTES : (index + 1) * SNAPSHOT_PART_BYTES])
                    await connection.send(StagePart(query, batch, part, index, index == last, piece))
                    waiting.reached(index)
            return answers[0]

        staged = await self._repeated(send)
        self._check(staged.error)
        return staged.part

    async def commit(self, query: str, batch: int, parts: Sequence[str], replaces: str = "") -> None:
        """Returns when a batch is durable, even if it was durable before.

        Args:
          replaces: earlier query that this one replaces.

        Raises:
          SpeError: the source refuses it, or does not answer; then the result is unknown, and it must be committed
            again.
        """

        async def send(connection: Connection, waiting: _Waiting) -> PushCommitted:
            await connection.send(CommitPushed(query, batch, tuple(parts), replaces))
            return await waiting.answer(connection, PushCommitted)

        self._check((await self._repeated(send)).error)

    async def end(self) -> PushEnded:
        """Returns when the end of this writer is durable, even if it was durable before.

        Raises:
          SpeError: the source refuses it, or does not answer; then the result is unknown, and the call must be
            repeated.
        """

        async def send(connection: Connection, waiting: _Waiting) -> PushEnded:
            await connection.send(EndPushed())
            return await waiting.answer(connection, PushEnded)

        answer = await self._repeated(send)
        self._check(answer.error)
        return answer

    async def drop(self, parts: Sequence[str]) -> None:
        """Tells the source that parts will not be committed, if it can be reached; otherwise it finds out later."""
        with trio.move_on_after(self._plan.timing.connect_us / 1e6):
            try:
                connection, _ = await dial(self._env, self._plan, self._me, self._peer, self._address)
            except (LinkBroken, LinkClosed, PeerRefused, RemoteProtocolError):
                return
            try:
                await connection.send(DropParts(tuple(parts)))
            except LinkBroken:
                return
            finally:
                with trio.CancelScope(shield=True):
                    await connection.aclose()

    def _check(self, error: str) -> None:
        if error:
            raise SpeError(f"{self._peer} refuses what {self._me.name} pushes: {error}")

    def _told(self, why: str) -> None:
        say(f"{self._peer} has not taken yet what {self._me.name} pushes: {why}", Level.WARNING)

    async def _repeated(self, send: Callable[[Connection, _Waiting], Awaitable[T]]) -> T:
        why = ""
        with trio.CancelScope() as scope:
            waiting = _Waiting(scope, self._patience_s, self._told)
            while True:
                try:
                    return await self._once(send, waiting)
                except PeerBusy:
                    waiting.again()
                    await self._env.clock.sleep(_BUSY_S * (0.5 + self._env.random.random()))
                    continue
                except (LinkBroken, LinkClosed) as error:
                    why = str(error)
                except ExceptionGroup as group:
                    gone, other = group.split((LinkBroken, LinkClosed))
                    if other is not None or gone is None:
                        raise
                    why = str(gone.exceptions[0])
                await self._env.clock.sleep(_AGAIN_S)
        raise NotReachable(
            f"{self._peer} at {self._address} did not answer {self._me.name} for {self._patience_s:g} s: "
            + (why or f"it is connected, and says nothing{waiting.why and f' since it waited: {waiting.why}'}")
        )

    async def _once(self, send: Callable[[Connection, _Waiting], Awaitable[T]], waiting: _Waiting) -> T:
        connection, _ = await dial(self._env, self._plan, self._me, self._peer, self._address)
        try:
            return await send(connection, waiting)
        finally:
            with trio.CancelScope(shield=True):
                await connection.aclose()
