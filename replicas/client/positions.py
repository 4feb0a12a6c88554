"""How far an output is, and how far it is acknowledged, without reading it: for whoever reads it elsewhere, in pieces.

An application that shares its reading among many processes (a Spark query) has one :class:`OutputPositions`, which
asks every replica for its state and carries the acknowledgements; each piece is read by
:func:`replicas.client.excerpt.excerpt`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import trio

from replicas.consumer.feed import Action
from replicas.consumer.input import Input
from replicas.consumer.upstream import Upstream
from replicas.link.connection import Identity, dial
from replicas.link.directory import DirectoryKeeper
from replicas.link.signal import Signal
from spe.errors import LinkBroken, LinkClosed, OtherOrigin, PeerRefused, RemoteProtocolError
from spe.plan.directory import Directory
from spe.plan.plan import Plan
from spe.runtime.env import Env
from spe.stream.ids import Channel
from spe.stream.names import NodeState, StreamId
from spe.stream.strings import StringPool
from spe.stream.times import BEFORE_TIME
from spe.wire.messages import HeartbeatAnswer, OtherLog, OutputStatus, Subscribe, Subscribed, Truncated


class OutputPositions:
    """The heartbeats of one client and one output.

    Args:
      client: its name in the configuration.
      after: incarnation of who acknowledged before; acknowledgements of a lower one would not count.

    Attributes:
      committed: what is acknowledged, by partition; grows only.
      channels: of the output, by partition.
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
    ) -> None:
        self._env = env
        self._plan = plan
        self.name = f"client:{client}"
        self.channels = tuple(Channel(output, p) for p in range(plan.partitions_of(output)))
        self.committed: dict[int, int] = {}
        #: Largest last id ever heard, by partition.
        self._latest: dict[int, int] = {}
        #: What each replica that answers said last, by partition.
        self._said: dict[int, dict[str, OutputStatus]] = {c.partition: {} for c in self.channels}
        self._heard = Signal()
        #: A partition has had nobody who serves it for a while.
        self._unserved = False
        self._me = Identity("client", self.name, max(env.clock.wall_us(), after + 1), token)
        self._keeper = DirectoryKeeper(env, directory, self._me)
        self._upstream = Upstream(
            env, plan, self._keeper, pool=StringPool(), heard=self._answered, gone=self._gone, other_message=_ignore
        )
        self._upstream.add(self)
        self._keeper.on_change(lambda directory: self._upstream.redirect(directory, self.peers()))

    @property
    def incarnation(self) -> int:
        """Ours; to be kept for the next one."""
        return self._me.incarnation

    @property
    def directory(self) -> Directory:
        """The newest that we know."""
        return self._keeper.current

    def peers(self) -> dict[str, str]:
        """Name -> address of every process that makes the output; of all others too, while nobody of these serves it.

        Partitions may have moved to where we do not know of, and any process has the newest directory (D5).
        """
        found = (self.directory.producer_addresses(self._plan, channel) for channel in self.channels)
        others = self.directory.addresses() if self._unserved else {}
        return others | {name: address for some in found for name, address in some.items()}

    def unreachable(self) -> dict[str, str]:
        """Who does not answer us, and why."""
        return self._upstream.unreachable()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Asks until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._look_around)
            await self._upstream.run(self.peers(), task_status=task_status)

    async def _look_around(self) -> None:
        """Asks the others, too, while a partition has had no producer for a while."""
        clock, timing = self._env.clock, self._plan.timing
        served = clock.monotonic_us()
        while True:
            await clock.sleep(timing.heartbeat_us / 1e6)
            if self._served():
                served = clock.monotonic_us()
            unserved = clock.monotonic_us() - served >= timing.gone_us()
            if unserved != self._unserved:
                self._unserved = unserved
                self._upstream.watch(self.peers())

    def _served(self) -> bool:
        """Does some replica of every partition answer that serves it?"""
        return all(any(map(_serves, said.values())) for said in self._said.values())

    def acknowledge(self, ids: Mapping[int, int]) -> None:
        """Nothing up to these ids, by partition, is needed any more; told with the next heartbeats (rule A1)."""
        for partition, upto in ids.items():
            self.committed[partition] = max(upto, self.committed.get(partition, 0))

    def latest(self) -> dict[int, int]:
        """Last stable id of each partition, as far as anybody has said one."""
        return dict(self._latest)

    def oldest(self) -> dict[int, int]:
        """Smallest stable id of each partition that can still be had from somebody who answers."""
        found = {p: [o.first for o in said.values() if _serves(o)] for p, said in self._said.items()}
        return {p: min(first) for p, first in found.items() if first}

    def states(self) -> dict[int, str]:
        """State of each partition's best replica; "unreachable" where none answers."""
        order = list(NodeState)
        best = {p: min((order.index(o.state) for o in said.values()), default=None) for p, said in self._said.items()}
        return {p: "unreachable" if at is None else order[at].name for p, at in best.items()}

    async def heard_of_all(self) -> None:
        """Returns when some replica of every partition has answered that serves it."""
        while True:
            token = self._heard.token()
            if self._served():
                return
            await self._heard.wait(token)

    async def origin(self, channel: Channel, position: int, known: str) -> str:
        """Where a channel comes from (rule S6), asked of its replicas; "" where none says it now.

        Args:
          position: last id that we hold.
          known: origin of what we hold; "" where we hold nothing.

        Raises:
          OtherOrigin: it does not continue what we hold; or nobody has what follows ``position`` any more.
        """
        gone: list[int] = []
        foreign = ""
        addresses = self.directory.producer_addresses(self._plan, channel)
        for peer, address in addresses.items():
            try:
                answer = await self._greeting(peer, address, channel, position, known)
            except (LinkBroken, LinkClosed, PeerRefused, RemoteProtocolError) as error:
                self._env.trace.event("origin_not_learnt", producer=peer, channel=str(channel), why=str(error))
                continue
            if isinstance(answer, Subscribed) and answer.origin:
                return answer.origin
            if isinstance(answer, OtherLog):
                foreign = answer.reason
            elif isinstance(answer, Truncated):
                gone.append(answer.first)
        if foreign:
            raise OtherOrigin(f"{self.name} cannot go on with {channel}: {foreign}")
        if gone and len(gone) == len(addresses):
            raise OtherOrigin(
                f"{self.name} needs {channel} from id {position + 1} on, and has acknowledged that before: the nodes"
                f" begin at id {min(gone)}; start from the checkpoint that goes on there, or use another name"
            )
        return ""

    async def _greeting(self, peer: str, address: str, channel: Channel, position: int, known: str) -> object:
        """The answer to a subscription that is ended at once."""
        connection, _ = await dial(self._env, self._plan, self._me, peer, address)
        try:
            with trio.move_on_after(self._plan.timing.connect_us / 1e6):
                await connection.send(
                    Subscribe(
                        stream=channel.stream,
                        partition=channel.partition,
                        consumer=self.name,
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

    def _answered(self, peer: str, answer: HeartbeatAnswer) -> None:
        for one in answer.outputs:
            if one.stream == self.channels[0].stream and one.partition in self._said:
                self._said[one.partition][peer] = one
                self._latest[one.partition] = max(one.last_id, self._latest.get(one.partition, 0))
        self._heard.wake()

    def _gone(self, peer: str) -> None:
        for said in self._said.values():
            said.pop(peer, None)

    # --- an owner without inputs (replicas.consumer.upstream) ---

    inputs: Sequence[Input] = ()

    def choose(self, now: int, peer: str | None) -> list[tuple[int, Action]]:
        return []

    def redirect(self, directory: Directory, now: int) -> list[tuple[int, Action]]:
        return []

    def acks(self) -> list[tuple[Channel, int]]:
        return [(self.channels[p], upto) for p, upto in self.committed.items()]

    def substream(self, channel: Channel) -> tuple[int, int]:
        return (0, 1)

    def delivered(self, rows: int, nbytes: int, step_ns: int) -> None:
        """Nothing is read here."""

    async def room(self, index: int) -> None:
        """Nothing is read here."""


def _serves(output: OutputStatus) -> bool:
    return output.state is not NodeState.RECOVERING


async def _ignore(peer: str, message: object) -> None:
    """What nodes announce of X is for clients that measure it."""
