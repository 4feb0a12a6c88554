"""Asks a producer which source logs an output comes from, by a subscription that is ended at once (rule S6)."""

from __future__ import annotations

from collections.abc import Mapping

import trio

from replicas.link.connection import Identity, dial
from spe.errors import LinkBroken, LinkClosed, PeerRefused, RemoteProtocolError
from spe.plan.plan import Plan
from spe.runtime.env import Env
from spe.stream.ids import Channel
from spe.stream.times import BEFORE_TIME
from spe.wire.messages.feeds import Subscribe, Subscribed
from spe.wire.messages.message import Message

#: Errors of a producer that gives no answer.
UNANSWERED = (LinkBroken, LinkClosed, PeerRefused, RemoteProtocolError)


class Greeter:
    """Asks in the name of one client."""

    def __init__(self, env: Env, plan: Plan, me: Identity) -> None:
        self._env = env
        self._plan = plan
        self._me = me

    async def ask(self, peer: str, address: str, channel: Channel, position: int, known: str) -> Message:
        """Returns the answer of a producer.  Raises UNANSWERED.

        Args:
          position, known: last id held, and the origin of what is held; "" if there is nothing.
        """
        connection, _ = await dial(self._env, self._plan, self._me, peer, address)
        try:
            with trio.move_on_after(self._plan.timing.connect_us / 1e6):
                await connection.send(
                    Subscribe(
                        stream=channel.stream,
                        partition=channel.partition,
                        consumer=self._me.name,
                        mode="corrections",
                        position=position,
                        frontier=BEFORE_TIME,
                        held=False,
                        t_star=BEFORE_TIME,
                        substream_index=0,
                        substream_count=1,
                        origin=known,
                    )
                )
                return await connection.receive_message()
            raise LinkBroken(f"{peer} did not answer the subscription")
        finally:
            with trio.CancelScope(shield=True):
                await connection.aclose()

    async def answers(
        self, addresses: Mapping[str, str], channel: Channel, position: int, known: str
    ) -> dict[str, Message]:
        """Asks producers in turn, until one knows its origin; returns the answers.  The trace names who gave none."""
        answers: dict[str, Message] = {}
        for peer, address in addresses.items():
            try:
                answer = answers[peer] = await self.ask(peer, address, channel, position, known)
            except UNANSWERED as error:
                self._env.trace.event("origin_not_learnt", producer=peer, channel=str(channel), why=str(error))
                continue
            if isinstance(answer, Subscribed) and answer.origin:
                break
        return answers
