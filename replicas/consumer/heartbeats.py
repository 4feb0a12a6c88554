"""Sends heartbeats to one process for ever, takes its answers, and notes when it is lost (rule F3)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

import trio

from replicas.link.connection import Connection, dial
from replicas.link.directory import DirectoryExchange, DirectoryKeeper
from spe.errors import LinkBroken, LinkClosed, PeerRefused, RemoteProtocolError, SpeError
from spe.plan.directory import Version
from spe.plan.plan import MISSES, Plan
from spe.runtime.env import Env
from spe.status import UnreachedStatus
from spe.wire.messages.connection import DirectoryAnswer, DirectoryRequest, Welcome
from spe.wire.messages.feeds import Ack, Heartbeat, HeartbeatAnswer
from spe.wire.messages.message import Message

#: Acknowledgements in one heartbeat; more are sent in turn.
ACKS_MAX: Final = 1_024
#: Shortest wait for the answer to a hello on a control connection.
HELLO_US: Final = 2_000_000
#: Attempts at once to reach a process that does not answer, each of which takes up to ``timing.connect``.
ATTEMPTS = 4

#: Time between two reports of a process that cannot be reached.
TELL_AGAIN_US: Final = 60_000_000
GONE = (LinkBroken, LinkClosed, PeerRefused)


class Heartbeats:
    """Keeps a control connection to one process, and sends heartbeats on it.

    Args:
      keeper: our identity and the current directory.
      acks: returns the acknowledgements for the next heartbeat.
      heard: called with each answer.
      other: called with each other message that is not about the directory.
      lost: called when the process does not answer any more.

    Attributes:
      address: address of the process.
      scope: cancels the heartbeats.
      connection: the control connection; None: not connected.
      exchange: exchange of directory versions; None: nothing was heard yet.
      trouble: why it does not answer; None while it does, and before the first attempt has failed.
    """

    def __init__(
        self,
        env: Env,
        plan: Plan,
        keeper: DirectoryKeeper,
        peer: str,
        address: str,
        *,
        acks: Callable[[str], list[Ack]],
        heard: Callable[[str, HeartbeatAnswer], None],
        other: Callable[[str, Message], Awaitable[None]] | None,
        lost: Callable[[str], None],
    ) -> None:
        self._env = env
        self._plan = plan
        self._keeper = keeper
        self._peer = peer
        self._acks = acks
        self._heard = heard
        self._other = other
        self._lost = lost
        self.address = address
        self.scope = trio.CancelScope()
        self.connection: Connection | None = None
        self.exchange: DirectoryExchange | None = None
        self.trouble: UnreachedStatus | None = None
        #: The last traced failure since the peer was reached, and its time.
        self._traced: tuple[str, int] | None = None

    async def run(self) -> None:
        """Runs until ``scope`` is cancelled."""
        with self.scope:
            await self._ask_for_ever()

    async def _ask_for_ever(self) -> None:
        period = self._plan.timing.heartbeat_us / 1e6
        lost = False
        while True:
            connection, welcome = await self._reach()
            self.connection = connection
            self.exchange = exchange = DirectoryExchange(self._keeper, Version(welcome.epoch, welcome.number))
            if lost:
                self._env.trace.event("peer_reached", peer=self._peer)
            lost = True
            try:
                async with trio.open_nursery() as nursery:
                    # The first answer may take as long as a connection: a slow link is not dead.
                    answered = [self._env.clock.monotonic_us() + self._plan.timing.connect_us]
                    nursery.start_soon(self._answers, connection, answered, exchange)
                    await self._ask(connection, answered, exchange)
            except* (*GONE, RemoteProtocolError) as group:
                error = group.exceptions[0]
                assert isinstance(error, SpeError), "GONE and protocol errors are ours"
                self.trouble = UnreachedStatus.of(error)
                self._env.trace.event("peer_lost", peer=self._peer, why=self.trouble.why)
            finally:
                self.connection = None
                with trio.CancelScope(shield=True):
                    await connection.aclose()
            self._lost(self._peer)
            await self._env.clock.sleep(period / 2)

    def _unreached(self, error: SpeError) -> None:
        """Notes a failed attempt; the same failure is traced at times only."""
        self.trouble = UnreachedStatus.of(error)
        why, now = str(error), self._env.clock.monotonic_us()
        if self._traced is None or self._traced[0] != why or now - self._traced[1] >= TELL_AGAIN_US:
            self._traced = why, now
            self._env.trace.event("unreachable", peer=self._peer, why=why)

    async def _reach(self) -> tuple[Connection, Welcome]:
        """Returns a control connection, however long that takes.

        Packets that are lost during a network failure are sent again by the kernel after a second only.  To notice the
        end of a failure soon, a new attempt begins every other heartbeat while earlier ones still wait for an answer;
        less often where they may wait for more than six heartbeats.
        """
        self._traced = None
        pause_us = 2 * self._plan.timing.heartbeat_us
        # A frozen process answers all attempts when it resumes: many attempts would not help.
        hello_us = max(HELLO_US, self._plan.timing.connect_us)
        #: Pauses between two attempts at once.
        apart = waited = self._plan.timing.connect_us // ((ATTEMPTS - 1) * pause_us)
        reached_by: list[tuple[Connection, Welcome]] = []

        async def attempt() -> None:
            try:
                reached = await dial(
                    self._env, self._plan, self._keeper.me, self._peer, self.address, hello_us=hello_us
                )
            except (*GONE, RemoteProtocolError) as error:
                self._unreached(error)
                return
            reached_by.append(reached)
            attempts.cancel_scope.cancel()

        try:
            async with trio.open_nursery() as attempts:
                while True:
                    beside = len(attempts.child_tasks)
                    if not beside or (beside < ATTEMPTS and waited >= apart):
                        attempts.start_soon(attempt)
                        waited = 0
                    await self._env.clock.sleep(pause_us / 1e6)
                    waited += 1
            return reached_by.pop()
        finally:
            with trio.CancelScope(shield=True):
                for unwanted, _ in reached_by:  # two came at once, or we were cancelled then
                    await unwanted.aclose()

    async def _ask(self, connection: Connection, answered: list[int], exchange: DirectoryExchange) -> None:
        timing, clock = self._plan.timing, self._env.clock
        number = sent = 0
        woke_late = False
        while True:
            number += 1
            asked_at = clock.monotonic_us()
            acks = self._acks(self._peer)
            sent = sent if sent < len(acks) else 0
            period_us = timing.heartbeat_us * max(1, -(-len(acks) // ACKS_MAX))
            heartbeat = Heartbeat(number, self._keeper.me.incarnation, period_us, acks[sent : sent + ACKS_MAX])
            patience_s = timing.heartbeat_us * MISSES / 1e6
            await connection.send_within(heartbeat, patience_s, "it does not read our heartbeats")
            if (request := exchange.due(asked_at)) is not None:
                await connection.send_within(request, patience_s, "it does not read what we ask")
            sent += ACKS_MAX
            await self._env.clock.sleep(timing.heartbeat_us / 1e6)
            now, was_late = clock.monotonic_us(), woke_late
            late_us = now - asked_at - timing.heartbeat_us
            woke_late = late_us > timing.heartbeat_us
            if woke_late:  # we were frozen: that is no silence of the peer (T1)
                answered[0] = max(answered[0], min(now, answered[0] + late_us))
            if woke_late and not was_late:
                continue  # read the socket first
            if now - answered[0] > (MISSES + 1) * timing.heartbeat_us:
                raise LinkBroken(f"more than {MISSES} heartbeats without an answer")

    async def _answers(self, connection: Connection, answered: list[int], exchange: DirectoryExchange) -> None:
        while True:
            message = await connection.receive_message()
            await trio.lowlevel.checkpoint_if_cancelled()  # the peer was lost, or has moved, as this came
            if isinstance(message, HeartbeatAnswer):
                self.trouble = None
                answered[0] = self._env.clock.monotonic_us()
                self._heard(self._peer, message)
            elif isinstance(message, DirectoryRequest):
                if (answer := exchange.requested(message)) is not None:
                    await connection.send(answer)
            elif isinstance(message, DirectoryAnswer):
                self._keeper.received(message)
            elif self._other is not None:
                await self._other(self._peer, message)


async def send(connection: Connection, message: Message) -> None:
    """Sends a message; ignores a broken connection, which its own task notices."""
    with suppress(LinkBroken):
        await connection.send(message)
