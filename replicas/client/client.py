"""A client reads output streams as a downstream neighbour does, and hands every change to the application.

    async with open_client(env, plan, directory, "dashboard") as client:
        async for change in client.changes():      # stable, tentative, undo, boundary, rec_done
            ...
        async for rows in client.stable("totals"):  # final tuples only
            ...

A change is acknowledged when the application has processed it, not on arrival: a change that was being processed when
the process died comes again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import PurePosixPath
from typing import Final

import trio

from replicas.client.lookout import Lookout
from replicas.client.view import ClientPort, StableView
from replicas.consumer.feed import Action
from replicas.consumer.input import Input, choose_among
from replicas.consumer.upstream import Upstream
from replicas.link.announcements import Announcements
from replicas.link.connection import Identity
from replicas.link.directory import DirectoryKeeper
from replicas.link.signal import Signal
from spe.errors import SpeError
from spe.plan.directory import ClientSettings as ClientPlan
from spe.plan.directory import Directory
from spe.plan.plan import Plan
from spe.plan.timing import stall_us
from spe.problems import check_known
from spe.runtime.env import Env
from spe.status import InputStatus, UnreachedStatus
from spe.stream.batch import Batch, Boundary, Element, Rows
from spe.stream.change import Change
from spe.stream.history import Delivered
from spe.stream.ids import Channel, PartitionId
from spe.stream.names import Kind, StreamId
from spe.stream.times import END_OF_TIME
from spe.wire.fields import Start
from spe.wire.messages.feeds import Announced, Announcement, HeartbeatAnswer
from spe.wire.messages.message import Message, expect

#: Largest number of changes that wait for the application before reading pauses.
WAITING_CHANGES: Final = 1_000
#: The same for a reader of an excerpt, or one that stores all it takes: each change may have thousands of rows.
FEW_CHANGES: Final = 8
#: Longest silence of a producer before a client looks for another, if no node's X gives a limit.
PATIENCE_US: Final = 1_000_000


class Client:
    """Reads channels of output streams; see the module.

    Args:
      plan: plan of the cluster.
      name: the client's name in the configuration.
      revision: file for the newest revision of the directory; None: it is not stored.
      channels: channels to read; None: every partition of all configured streams.
      acknowledges: False where another process acknowledges for this client: of two, the one that began later counts.
      guest: a reader of ``channels`` that is not in the configuration: nodes store nothing for it (F8).
      start: where to begin channels that :meth:`goes_on` does not name; "": at id 1.
      announced: called with new announcements of nodes about their X and waits (rule T8).
      waiting: largest number of changes that wait for the application before reading pauses; None: WAITING_CHANGES.

    Raises:
      ConfigError: the plan has no such client.
      OtherConfiguration: the stored revision is of another configuration.
    """

    def __init__(
        self,
        env: Env,
        plan: Plan,
        directory: Directory,
        name: str,
        *,
        token: str = "",
        revision: PurePosixPath | None = None,
        channels: Sequence[Channel] | None = None,
        acknowledges: bool = True,
        announced: Callable[[Sequence[Announcement]], None] | None = None,
        waiting: int | None = None,
        guest: bool = False,
        start: Start = "",
    ) -> None:
        if not guest:
            check_known("client", name, directory.clients)
        self._env = env
        self._plan = plan
        self.plan: ClientPlan = ClientPlan(name, ()) if guest else directory.clients[name]
        self.name = f"client:{name}"
        self.me = Identity("client", self.name, env.clock.wall_us(), token)
        self.keeper = DirectoryKeeper(env, directory, self.me, revision)
        directory = self.keeper.current
        self._waiting: deque[Change] = deque()
        #: The change that the application is processing.
        self._taken: Change | None = None
        self._waiting_max = WAITING_CHANGES if waiting is None else waiting
        self._arrived = Signal()
        self._room = Signal()
        self._processed: dict[Channel, int] = {}
        self._acknowledges = acknowledges and not guest
        self._guest = guest
        #: A producer whose configuration lacks this client.
        self._unknown_to = ""
        #: Limits acknowledgements: stable tuples up to this id are on disk, where a kill cannot lose them.
        self.safe: Callable[[Channel], int] | None = None
        self._ended: set[Channel] = set()
        if channels is None:
            channels = [Channel(s, p) for s in self.plan.reads for p in range(plan.partitions_of(s))]
        self.channels = tuple(channels)
        self.inputs = [
            Input(
                channel,
                list(directory.producer_addresses(plan, channel)),
                ClientPort(channel, self._emit),
                consumer=self.name,
                stall_us=stall_us(plan, channel),
                useless_us=_useless_us(plan, directory, channel),
                x_us=_x_us(directory),
                corrections=False,
            )
            for channel in channels
        ]
        for input in self.inputs:
            input.start = start
        self._announcements = Announcements(plan, directory)
        self._announced = announced
        self._upstream = Upstream(env, plan, self.keeper, heard=self._heard, other_message=self._other_message)
        self._upstream.add(self)
        self.lookout = Lookout(env, plan, self.keeper, self.channels, self._served, self._upstream.watch)
        self.keeper.on_change(self._redirect)

    def goes_on(self, channel: Channel, position: int, frontier: int, origin: str) -> None:
        """Continues a channel after an earlier session, before :meth:`run`: its last stable id, and a boundary.

        Args:
          origin: source logs that the tuples come from (rule S6); "" where unknown.
        """
        channel_input = next(i for i in self.inputs if i.channel == channel)
        channel_input.port.position, channel_input.port.frontier, channel_input.origin = position, frontier, origin
        channel_input.start = ""
        if position:
            self._processed[channel] = position  # to be acknowledged even if nothing more comes
        if frontier >= END_OF_TIME:
            self._ended.add(channel)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Maintains the connections until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.lookout.run)
            await self._upstream.run(self.lookout.peers(), task_status=task_status)

    def unreachable(self) -> dict[str, UnreachedStatus]:
        """Processes that do not answer, with the reasons."""
        return self._upstream.unreachable()

    def _served(self) -> bool:
        """Returns whether every input has a producer, or its stream has ended."""
        return all(input.main is not None or input.channel in self._ended for input in self.inputs)

    def _redirect(self, directory: Directory) -> None:
        """Adopts another directory."""
        self._announcements.directory = directory
        self._upstream.redirect(directory, self.lookout.peers())

    def _heard(self, peer: str, answer: HeartbeatAnswer) -> None:
        if answer.guest and self._acknowledges and not self._unknown_to:
            self._unknown_to = peer
            self._arrived.wake()

    async def _other_message(self, peer: str, message: Message) -> None:
        news = self._announcements.heard(expect(message, Announced).items)
        if news and self._announced is not None:
            self._announced(news)

    async def changes(self) -> AsyncGenerator[Change, None]:
        """Yields every change of every stream read, as it arrives; ends when all streams have ended.

        A change is acknowledged when the next one is asked for.

        Raises:
          SpeError: the next tuples are no longer stored, or nodes store nothing for this client; says how to go on.
        """
        while (change := await self.next_change()) is not None:
            yield change

    async def next_change(self) -> Change | None:
        """Returns the next change; None: all streams have ended.  Raises as :meth:`changes`.  Cancelling loses
        nothing.
        """
        if self._taken is not None:
            self._done(self._taken)
            self._taken = None
        while not self._waiting:
            token = self._arrived.token()
            self._room.wake()
            if self.finished:
                return None
            self._check_not_forgotten()
            await self._arrived.wait(token)
        self._taken = self._waiting.popleft()
        return self._taken

    def _check_not_forgotten(self) -> None:
        if self._unknown_to:
            raise SpeError(
                f"{self.name} is not in the configuration that {self._unknown_to} runs with, so nothing is kept for it:"
                " restart the cluster with this configuration, or read as somebody else, with start='now', 'stored' or"
                " 'beginning'"
            )
        for input in self.inputs:
            if input.main is None and input.selector.truncated():
                first = min(p.first for p in input.producers.values() if p.alive)
                if input.start:
                    raise SpeError(
                        f"{self.name}: {input.channel} is stored from id {first} on, for spill files are damaged; what"
                        " is not acknowledged begins earlier. start='stored' goes on without what is lost"
                    )
                raise SpeError(not_stored(self.name, input.channel, input.port.position, first, guest=self._guest))

    @property
    def finished(self) -> bool:
        """Whether all streams have ended, and the application has taken every change."""
        return len(self._ended) == len(self.channels)

    async def stable(self, stream: str) -> AsyncIterator[Rows]:
        """Yields the final tuples of one stream, merged over its partitions in time order."""
        view = StableView(self._plan, StreamId(stream))
        async for change in self.changes():
            if change.channel.stream == stream and (rows := view.apply(change)) is not None:
                yield rows

    # --- an owner of inputs (replicas.consumer.upstream) ---

    def choose(self, now: int, peer: str | None) -> list[tuple[int, Action]]:
        if any(input.main is None and input.selector.truncated() for input in self.inputs):
            self._arrived.wake()  # wakes a task that waits for changes
        return choose_among(self.inputs, now, peer)

    def redirect(self, directory: Directory, now: int) -> list[tuple[int, Action]]:
        for input in self.inputs:
            input.set_waits(useless_us=_useless_us(self._plan, directory, input.channel), x_us=_x_us(directory))
        return [
            (at, action)
            for at, input in enumerate(self.inputs)
            for action in input.set_producers(directory.producer_addresses(self._plan, input.channel))
        ]

    def acks(self) -> list[tuple[Channel, int]]:
        safe = self.safe
        if not self._acknowledges:
            return []
        return [(c, p if safe is None else min(p, safe(c))) for c, p in self._processed.items()]

    def substream(self, channel: Channel) -> tuple[int, int]:
        return (0, 1)

    def delivered(self, rows: int, nbytes: int, step_ns: int) -> None:
        self._arrived.wake()

    async def room(self, index: int) -> None:
        while len(self._waiting) >= self._waiting_max:
            token = self._room.token()
            await self._room.wait(token)

    def status(self) -> tuple[InputStatus, ...]:
        """Returns the progress and the producers of each channel."""
        return tuple(input.status() for input in self.inputs)

    def _emit(self, channel: Channel, element: Element) -> None:
        self._waiting.append(Change(channel, element, self._env.clock.wall_us()))
        if self._env.history is not None:
            self._env.history(Delivered(self._env.clock.monotonic_us(), self.name, channel, element))

    def _done(self, change: Change) -> None:
        element = change.element
        if isinstance(element, Batch | Boundary) and element.kind is Kind.STABLE:
            self._processed[change.channel] = max(self._processed.get(change.channel, 0), element.upto_id)
            if isinstance(element, Boundary) and element.time >= END_OF_TIME:
                self._ended.add(change.channel)


def not_stored(name: str, channel: Channel, position: int, first: int, *, guest: bool) -> str:
    """Explains why a client at a position gets no more, and what to do.

    Args:
      first: first stored id.
    """
    there = f"{channel} is stored from id {first} on"
    if guest and not position:
        return f"{name}: {there}, not from the beginning: start='stored' begins there, 'now' with the next results"
    if guest:
        return (
            f"{name} has read {channel} up to id {position}, but {there}: nothing is kept for a client that the"
            " configuration does not have. Read faster, or begin again with start='stored'; a client of the"
            " configuration is waited for"
        )
    return (
        f"{name} needs id {position + 1}, but {there}: an earlier process of this name has acknowledged what is"
        " missing. Go on with what that process kept (recording, sinks, checkpoint); a reader of another name gets"
        " what is stored with start='stored'"
    )


def _x_us(directory: Directory) -> int:
    return max((n.x_us for n in directory.nodes.values()), default=PATIENCE_US)


def _useless_us(plan: Plan, directory: Directory, channel: Channel) -> int:
    """Half of the shortest αX of a channel's producers: within it they give results, or others do (F4)."""
    unit = plan.producer.get(channel.stream)
    if unit is None:
        return PATIENCE_US  # a source has no other producer
    nodes = directory.hosts(PartitionId(unit.id, channel.partition))
    return min(directory.share(plan, unit.id, node).alpha_x_us for node in nodes) // 2


@asynccontextmanager
async def open_client(
    env: Env, plan: Plan, directory: Directory, name: str, *, token: str = ""
) -> AsyncIterator[Client]:
    """Yields a running client for the length of the block; an error of the block is raised as it is, not in a group.

    Raises:
      ConfigError: the directory has no such client.
    """
    async with running(Client(env, plan, directory, name, token=token)) as client:
        yield client


@asynccontextmanager
async def running(client: Client) -> AsyncIterator[Client]:
    """Runs a client for the length of the block; raises as :func:`open_client` does."""
    failed: Exception | None = None
    async with trio.open_nursery() as nursery:
        await nursery.start(client.run)
        try:
            yield client
        except Exception as error:
            failed = error
        finally:
            nursery.cancel_scope.cancel()
    if failed is not None:
        raise failed
