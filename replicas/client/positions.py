"""Tracks and acknowledges the progress of an output without reading it, for an application that reads it in pieces.

An application that shares its reading among many processes (a Spark query) has one :class:`OutputPositions`, which
asks every replica for its state and carries the acknowledgements; each piece is read by
:func:`replicas.client.excerpt.excerpt`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import trio

from replicas.client.greeter import UNANSWERED, Greeter
from replicas.client.lookout import Lookout
from replicas.consumer.feed import Action
from replicas.consumer.heartbeats import ACKS_MAX
from replicas.consumer.input import Input
from replicas.consumer.upstream import Upstream
from replicas.link.connection import Identity
from replicas.link.directory import DirectoryKeeper
from replicas.link.signal import Signal
from spe.errors import OtherOrigin, SpeError
from spe.plan.directory import Directory
from spe.plan.plan import Plan
from spe.runtime.env import Env
from spe.stream.ids import Channel
from spe.stream.names import NodeState, StreamId
from spe.wire.messages.feeds import Ack, HeartbeatAnswer, OtherLog, OutputStatus, Subscribed, Truncated

#: Time limit, seconds, for a conflict with another process that acknowledges for the client: at the start, to allow for
#: the end of a predecessor, and later, for a second process that tries to take over.
TAKEN_S: Final = 10.0
TAKEN_LATER_S: Final = 30.0


class OutputPositions:
    """Sends the heartbeats of one client for one output.

    Only one process acknowledges for a client (A2b), and only to a producer that continues its tuples (S6).

    Args:
      client: its name in the configuration.
      after: incarnation of the previous process of this client; ours is larger.
      acknowledges: False for a reader for which nodes store nothing.

    Attributes:
      committed: last acknowledged id, by partition; grows only.
      channels: channels of the output, by partition.
    """

    def __init__(
        self,
        env: Env,
        plan: Plan,
        directory: Directory,
        client: str,
        output: StreamId,
        *,
        token: str = "",
        after: int = 0,
        acknowledges: bool = True,
    ) -> None:
        self._env = env
        self._plan = plan
        self.name = f"client:{client}"
        self.channels = tuple(Channel(output, p) for p in range(plan.partitions_of(output)))
        self.committed: dict[int, int] = {}
        self._acknowledges = acknowledges
        #: Source logs that the committed tuples come from, by partition.
        self._origins: dict[int, str] = {}
        #: (peer, partition) that continue those tuples, and those that do not, with the reason.
        self._continues: set[tuple[str, int]] = set()
        self._foreign: dict[tuple[str, int], str] = {}
        #: Nodes that report another process for this client, and since when there is one.
        self._taken: set[str] = set()
        self._taken_us: int | None = None
        #: The nodes have accepted this process for the client before.
        self._admitted = False
        #: Largest last id in any status, by partition.
        self._latest: dict[int, int] = {}
        #: Last status of each answering replica, by partition.
        self._said: dict[int, dict[str, OutputStatus]] = {c.partition: {} for c in self.channels}
        self._heard = Signal()
        #: Since when all answering replicas lack the next tuples of a partition.
        self._gone_us: dict[int, int] = {}
        #: How often each peer was lost.
        self._lives: dict[str, int] = {}
        #: Heartbeats on the connection to each peer, and how many of them were answered.
        self._sent: Counter[str] = Counter()
        self._answers: Counter[str] = Counter()
        self._me = Identity("client", self.name, max(env.clock.wall_us(), after + 1), token)
        self._greeter = Greeter(env, plan, self._me)
        self._keeper = DirectoryKeeper(env, directory, self._me)
        self._upstream = Upstream(
            env,
            plan,
            self._keeper,
            acks=self._acks_for,
            heard=self._answered,
            gone=self._gone,
            other_message=_ignore,
        )
        self._upstream.add(self)
        self.lookout = Lookout(env, plan, self._keeper, self.channels, self._served, self._upstream.watch)
        self._keeper.on_change(lambda directory: self._upstream.redirect(directory, self.lookout.peers()))

    @property
    def incarnation(self) -> int:
        """Incarnation of this process; stored for the next one."""
        return self._me.incarnation

    @property
    def directory(self) -> Directory:
        """The newest known directory."""
        return self._keeper.current

    def said(self) -> dict[str, str]:
        """Returns the states of the partitions at each possible producer, or why it does not answer."""
        errors, texts = self._upstream.unreachable(), {}
        for name, address in self.lookout.peers().items():
            states = [f"{self.channels[p]} {s[name].state.name}" for p, s in self._said.items() if name in s]
            silent = errors[name].why if name in errors else "serves none of it"
            texts[f"{name} at {address}"] = ", ".join(states) or silent
        return texts

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Sends heartbeats until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.lookout.run)
            nursery.start_soon(self._compare_origins)
            await self._upstream.run(self.lookout.peers(), task_status=task_status)

    def _served(self) -> bool:
        """Returns whether some replica of every partition answers and serves it."""
        return all(any(map(_serves, statuses.values())) for statuses in self._said.values())

    def acknowledge(self, ids: Mapping[int, int], origins: Mapping[int, str]) -> None:
        """Acknowledges the tuples up to these ids, by partition, with the next heartbeats (rule A1).

        Args:
          origins: source logs that these tuples come from.

        Raises as :meth:`check` does.
        """
        for partition, upto in ids.items():
            self.committed[partition] = max(upto, self.committed.get(partition, 0))
        self._origins.update({p: origin for p, origin in origins.items() if origin})
        self.check()

    def check(self) -> None:
        """Raises an error if this process must not go on.

        Raises:
          OtherOrigin: the producers of a partition have read other source logs than those of the committed tuples.
          SpeError: another process acknowledges for this client.
        """
        for (_, partition), why in self._foreign.items():
            if not any((peer, partition) in self._continues for peer in self._said[partition]):
                raise OtherOrigin(f"{self.name} cannot go on with {self.channels[partition]}: {why}")
        if self._taken_us is None:
            return
        least_s = TAKEN_LATER_S if self._admitted else TAKEN_S
        patience_us = max(round(1e6 * least_s), 2 * self._plan.timing.gone_us())
        if self._env.clock.monotonic_us() - self._taken_us > patience_us:
            raise SpeError(self.in_use())

    def in_use(self) -> str:
        """Returns an error about another process that acknowledges for this client; "" if no node reports one now."""
        if not self._taken:
            return ""
        return (
            f"{self.name} is in use: another process reads and acknowledges in its name, says "
            f"{', '.join(sorted(self._taken))}; end that one, or give each query a client of its own"
        )

    def latest(self) -> dict[int, int]:
        """Returns the largest known stable id of each partition.  Raises as :meth:`check` does."""
        self.check()
        return dict(self._latest)

    def oldest(self) -> dict[int, int]:
        """Returns the smallest stable id of each partition that an answering replica still has."""
        firsts = {p: [o.first for o in statuses.values() if _serves(o)] for p, statuses in self._said.items()}
        return {p: min(first) for p, first in firsts.items() if first}

    def states(self) -> dict[int, str]:
        """Returns the state of each partition's best replica; "unreachable" where none answers."""
        order = list(NodeState)
        best = {
            p: min((order.index(o.state) for o in statuses.values()), default=None)
            for p, statuses in self._said.items()
        }
        return {p: "unreachable" if at is None else order[at].name for p, at in best.items()}

    async def heard_of_all(self) -> None:
        """Returns when a replica of every partition serves it, and this process is accepted for the client.

        Raises as :meth:`check` does.
        """
        while True:
            token = self._heard.token()
            self.check()
            if self._served() and not self._taken:
                return
            await self._heard.wait(token)

    async def told(self) -> None:
        """Returns when all producers have received the current acknowledgements; for a client that does not return.

        Raises as :meth:`check` does.
        """
        goals: dict[tuple[str, int], int] = {}
        while True:
            token = self._heard.token()
            self.check()
            open_ = not self._admitted
            for p in self.committed:
                for peer in [peer for peer, status in self._said[p].items() if _serves(status)]:
                    if (peer, p) in self._continues:
                        rounds = -(-len(self.channels) // ACKS_MAX)  # further channels are acknowledged in turn
                        goal = goals.setdefault((peer, self._lives.get(peer, 0)), self._sent[peer] + rounds)
                        open_ |= self._answers[peer] < goal
                    else:
                        open_ = True
            if not (open_ and self.committed):
                return
            await self._heard.wait(token)

    async def origin(self, channel: Channel, position: int, known: str, patience_s: float = math.inf) -> str:
        """Asks the replicas of a channel for its origin (rule S6); "" where none knows it now.

        Args:
          position: last id held.
          known: origin of the tuples held; "" if there are none.
          patience_s: longest time in which all answering replicas lack the next tuples, while others do not answer.

        Raises:
          OtherOrigin: the channel does not continue the tuples held, or no replica has the tuples after ``position``.
        """
        gone: dict[str, int] = {}
        foreign = ""
        addresses = self.directory.producer_addresses(self._plan, channel)
        answers = await self._greeter.answers(addresses, channel, position, known)
        for peer, answer in answers.items():
            if isinstance(answer, Subscribed) and answer.origin:
                self._origins[channel.partition] = answer.origin
                self._gone_us.pop(channel.partition, None)
                return answer.origin
            if isinstance(answer, OtherLog):
                foreign = answer.reason
            elif isinstance(answer, Truncated):
                gone[peer] = answer.first
        if foreign:
            raise OtherOrigin(f"{self.name} cannot go on with {channel}: {foreign}")
        if not gone:
            self._gone_us.pop(channel.partition, None)
            return ""
        now = self._env.clock.monotonic_us()
        since = self._gone_us.setdefault(channel.partition, now)
        silent = sorted(addresses.keys() - gone.keys())
        if silent and now - since < 1e6 * patience_s:
            return ""
        others = f" ({', '.join(silent)} did not serve it for {patience_s:g} s)" if silent else ""
        raise OtherOrigin(
            f"{self.name} needs {channel} from id {position + 1} on, and has acknowledged that before: the nodes begin"
            f" at id {min(gone.values())}{others}; start from the checkpoint that goes on there, or use another name"
        )

    async def _compare_origins(self) -> None:
        """Asks each new producer whether it continues the tuples held; only then it gets acknowledgements."""
        while True:
            await self._env.clock.sleep(self._plan.timing.heartbeat_us / 1e6)
            for channel in self.channels:
                p = channel.partition
                if not (known := self._origins.get(p)):
                    continue
                addresses = self.directory.producer_addresses(self._plan, channel)
                for peer, before in list(self._said[p].items()):
                    known_of = (peer, p) in self._continues or (peer, p) in self._foreign
                    if peer in addresses and _serves(before) and not known_of:
                        await self._compare(peer, addresses[peer], channel, known)

    async def _compare(self, peer: str, address: str, channel: Channel, known: str) -> None:
        p = channel.partition
        begun = self._lives.get(peer, 0)
        try:
            answer = await self._greeter.ask(peer, address, channel, self.committed.get(p, 0), known)
        except UNANSWERED:
            return
        if self._lives.get(peer, 0) != begun:
            return  # it was lost during the question: the next process there is asked again
        if isinstance(answer, OtherLog):
            self._foreign[peer, p] = answer.reason
            self._heard.wake()
        elif isinstance(answer, Truncated) or (isinstance(answer, Subscribed) and answer.origin == known):
            self._continues.add((peer, p))
            self._foreign.pop((peer, p), None)

    def _answered(self, peer: str, answer: HeartbeatAnswer) -> None:
        self._answers[peer] += 1
        for output in answer.outputs:
            if output.stream == self.channels[0].stream and output.partition in self._said:
                before = self._said[output.partition].get(peer)
                if before is None or not _serves(before) or output.last_id < before.last_id:
                    self._forget(peer, output.partition)
                self._said[output.partition][peer] = output
                self._latest[output.partition] = max(output.last_id, self._latest.get(output.partition, 0))
        if answer.taken:
            self._taken.add(peer)
            if self._taken_us is None:
                self._taken_us = self._env.clock.monotonic_us()
        else:
            self._not_taken(peer)
            self._admitted = self._admitted or (not self._taken and self._served())
        self._heard.wake()

    def _not_taken(self, peer: str) -> None:
        self._taken.discard(peer)
        if not self._taken:
            self._taken_us = None

    def _gone(self, peer: str) -> None:
        self._lives[peer] = self._lives.get(peer, 0) + 1
        self._sent[peer] = self._answers[peer] = 0
        self._not_taken(peer)
        for partition, statuses in self._said.items():
            statuses.pop(peer, None)
            self._forget(peer, partition)
        self._heard.wake()  # a task that waits for this peer in `told` must look again

    def _forget(self, peer: str, partition: int) -> None:
        """Forgets a peer: another process, or another replica with other tuples, may be there now."""
        self._continues.discard((peer, partition))
        self._foreign.pop((peer, partition), None)

    def _acks_for(self, peer: str) -> list[Ack]:
        """Returns the acknowledgements for a peer; id 0 only says that this process acknowledges for the client."""
        self._sent[peer] += 1
        if not self._acknowledges:
            return []
        acks = []
        for stream, partition in self.channels:
            if peer in self.directory.producer_addresses(self._plan, Channel(stream, partition)):
                counts = self._admitted and (peer, partition) in self._continues
                acks.append(Ack(stream, partition, self.name, self.committed.get(partition, 0) if counts else 0))
        return acks

    # --- an owner without inputs (replicas.consumer.upstream) ---

    inputs: Sequence[Input] = ()

    def choose(self, now: int, peer: str | None) -> list[tuple[int, Action]]:
        return []

    def redirect(self, directory: Directory, now: int) -> list[tuple[int, Action]]:
        return []

    def acks(self) -> list[tuple[Channel, int]]:
        return []  # each peer gets its own acknowledgements

    def substream(self, channel: Channel) -> tuple[int, int]:
        return (0, 1)

    def delivered(self, rows: int, nbytes: int, step_ns: int) -> None:
        """Does nothing: no rows are read here."""

    async def room(self, index: int) -> None:
        """Does nothing: no rows are read here."""


def _serves(output: OutputStatus) -> bool:
    return output.state is not NodeState.RECOVERING


async def _ignore(peer: str, message: object) -> None:
    """Ignores announcements of X, which are for clients that measure it."""
