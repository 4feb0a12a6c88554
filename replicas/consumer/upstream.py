"""The connections of a consuming process: heartbeats to every producer, and the feeds that its inputs choose.

One :class:`Upstream` per process.  It serves any number of owners (partition replicas on a node, the one view of a
client), asks every producer's process once per heartbeat for the states of its streams, and sends the owners'
acknowledgements with the question (rules F3, A1).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

import trio
import trio.lowlevel

from replicas.consumer.feed import Action, Close, Open, SwitchMode
from replicas.consumer.heartbeats import GONE, Heartbeats, send
from replicas.consumer.input import Input
from replicas.link.connection import Connection, dial
from replicas.link.directory import DirectoryKeeper
from spe.errors import LinkBroken, LinkClosed, OtherOrigin, RemoteProtocolError
from spe.plan.directory import Directory, Version
from spe.plan.plan import Plan
from spe.runtime.env import Env
from spe.runtime.log_line import Level, say
from spe.status import UnreachedStatus
from spe.stream.batch import Batch
from spe.stream.history import Closed, FeedMode, Opened, Promoted, Received
from spe.stream.ids import Channel
from spe.stream.names import NodeState
from spe.stream.strings import StringPool
from spe.wire.codec import ElementDecoder
from spe.wire.framing import Frame
from spe.wire.messages.connection import Welcome
from spe.wire.messages.feeds import (
    Ack,
    HeartbeatAnswer,
    NotReady,
    OtherLog,
    StateChange,
    Subscribe,
    Subscribed,
    Truncated,
)
from spe.wire.messages.feeds import SetMode as SetModeMessage
from spe.wire.messages.message import Message, decode_message


class Owner(Protocol):
    """An owner of inputs: a partition replica, a standby, or the view of a client."""

    name: str

    @property
    def inputs(self) -> Sequence[Input]: ...

    def choose(self, now: int, peer: str | None) -> list[tuple[int, Action]]:
        """Returns connection work with its input index, for inputs that may read ``peer``; None: for all inputs."""
        ...

    def redirect(self, directory: Directory, now: int) -> list[tuple[int, Action]]:
        """Follows a changed directory; returns connection work with its input index."""
        ...

    def acks(self) -> list[tuple[Channel, int]]: ...

    def substream(self, channel: Channel) -> tuple[int, int]:
        """Returns (index, count) of the substream that is read of a channel; (0, 1) is the whole."""
        ...

    def delivered(self, rows: int, nbytes: int, step_ns: int) -> None:
        """Counts elements that have arrived; called once per read, not per element.

        Args:
          rows: number of rows.
          nbytes: bytes of the read.
          step_ns: time of decoding and delivering them.
        """
        ...

    async def room(self, index: int) -> None:
        """Waits until there is room for more data of an input: back-pressure."""
        ...


class Upstream:
    """Keeps the connections of a consuming process.

    Args:
      keeper: our identity and the current directory.
      other_message: called with (peer, message) for messages on a control connection that are not heartbeat answers.
      acks: returns the acknowledgements for a peer; None: those of the owners.
      heard: called with the peer's name and its HeartbeatAnswer.
      gone: called with the peer's name when it does not answer any more.
    """

    def __init__(
        self,
        env: Env,
        plan: Plan,
        keeper: DirectoryKeeper,
        *,
        acks: Callable[[str], list[Ack]] | None = None,
        heard: Callable[[str, HeartbeatAnswer], None] | None = None,
        gone: Callable[[str], None] | None = None,
        other_message: Callable[[str, Message], Awaitable[None]] | None = None,
    ) -> None:
        self._env = env
        self._plan = plan
        self._keeper = keeper
        self._me = keeper.me
        self._acks = self._acks_for if acks is None else acks
        self._heard = heard
        self._gone = gone
        self._other_message = other_message
        self._owners: dict[str, Owner] = {}
        #: Dictionaries for strings that arrive, by owner: no owner's data may keep texts of another in memory.
        self._pools: dict[str, StringPool] = {}
        #: Last producer that each input (owner, index) read.
        self._read: dict[tuple[str, int], str] = {}
        #: Cache: the producers of each channel.
        self._makers: dict[Channel, frozenset[str]] = {}
        self._feeds: dict[tuple[str, int, int], tuple[trio.CancelScope, list[Connection]]] = {}
        #: Incarnation that does not continue the owner's log, by (owner, channel, producer) (S6).
        self._refused: dict[tuple[str, Channel, str], int] = {}
        self._watched: dict[str, Heartbeats] = {}
        self._nursery: trio.Nursery | None = None

    async def run(
        self, peers: dict[str, str], *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Runs until cancelled.  ``peers``: name -> address of every process to ask for heartbeats."""
        async with trio.open_nursery() as nursery:
            self._nursery = self._keeper.nursery = nursery
            self._watch_all(nursery, peers)
            task_status.started()
            await trio.sleep_forever()  # there may be nobody to ask yet

    def redirect(self, directory: Directory, peers: Mapping[str, str]) -> None:
        """Follows a changed directory, for all owners and for the processes that get heartbeats."""
        self._makers.clear()
        now = self._env.clock.monotonic_us()
        for owner in list(self._owners.values()):
            for index, action in owner.redirect(directory, now):
                self._perform(owner, index, action)
        if self._nursery is not None:
            self.watch(peers)
            self.choose()

    def watch(self, peers: Mapping[str, str]) -> None:
        """Sets the processes that get heartbeats."""
        assert self._nursery is not None, "F3: it runs"
        self._watch_all(self._nursery, peers)

    def _watch_all(self, nursery: trio.Nursery, peers: Mapping[str, str]) -> None:
        for name in [n for n, heartbeats in self._watched.items() if peers.get(n) != heartbeats.address]:
            self._watched.pop(name).scope.cancel()
            self._lose(name)
        for name, address in peers.items():
            if name not in self._watched:
                heartbeats = self._watched[name] = Heartbeats(
                    self._env,
                    self._plan,
                    self._keeper,
                    name,
                    address,
                    acks=self._acks,
                    heard=self._answered,
                    other=self._other_message,
                    lost=self._lose,
                )
                nursery.start_soon(heartbeats.run)

    def add(self, owner: Owner) -> None:
        self._owners[owner.name] = owner
        self._pools[owner.name] = StringPool()

    def remove(self, name: str) -> None:
        """Closes all feeds of an owner."""
        self._owners.pop(name, None)
        self._pools.pop(name, None)
        for key in [k for k in self._feeds if k[0] == name]:
            self._feeds.pop(key)[0].cancel()
        for place in [p for p in self._read if p[0] == name]:
            del self._read[place]
        self._refused = {refused: incarnation for refused, incarnation in self._refused.items() if refused[0] != name}

    def tell(self, peer: str, message: Message) -> None:
        """Sends a message on the control connection to a peer, if there is one, without waiting for a slow peer."""
        heartbeats = self._watched.get(peer)
        if heartbeats is not None and heartbeats.connection is not None and self._nursery is not None:
            self._nursery.start_soon(send, heartbeats.connection, message)

    def versions(self) -> dict[str, Version]:
        """Returns the known version of the directory that each process follows."""
        return {
            peer: heartbeats.exchange.theirs
            for peer, heartbeats in self._watched.items()
            if heartbeats.exchange is not None
        }

    def unreachable(self) -> dict[str, UnreachedStatus]:
        """Returns the processes that do not answer, with the reasons."""
        return {
            peer: heartbeats.trouble for peer, heartbeats in self._watched.items() if heartbeats.trouble is not None
        }

    def choose(self, peer: str | None = None) -> None:
        """Lets every owner decide for all inputs, or those that may read ``peer``, and performs the actions."""
        for owner in list(self._owners.values()):
            self._choose_for(owner, peer)

    # --- heartbeats ---

    def _answered(self, peer: str, answer: HeartbeatAnswer) -> None:
        self._tell_inputs(peer, answer)
        if self._refused:  # after a restart it may continue our log
            refused, now = self._refused, answer.incarnation
            self._refused = {key: was for key, was in refused.items() if key[2] != peer or was >= now}
        if self._heard is not None:
            self._heard(peer, answer)
        self.choose(peer)

    def _tell_inputs(self, peer: str, answer: HeartbeatAnswer) -> None:
        states = {(o.stream, o.partition): o for o in answer.outputs}
        now = self._env.clock.monotonic_us()
        for owner in self._owners.values():
            for input in owner.inputs:
                if peer not in input.producers:
                    continue
                news = states.get((input.channel.stream, input.channel.partition))
                if news is None:
                    input.selector.lost(peer)
                    continue
                input.selector.heard(peer, answer.incarnation, news, now)

    def _lose(self, peer: str) -> None:
        for owner in self._owners.values():
            for input in owner.inputs:
                if peer in input.producers:
                    input.selector.lost(peer)
        if self._gone is not None:
            self._gone(peer)
        self.choose()

    def _acks_for(self, peer: str) -> list[Ack]:
        """Returns the acknowledgements for a peer: every producer of a channel gets them, for all buffer it (A1)."""
        return [
            Ack(channel.stream, channel.partition, owner.name, upto)
            for owner in self._owners.values()
            for channel, upto in owner.acks()
            if peer in self._producers(channel)
            if not self._refused or (owner.name, channel, peer) not in self._refused  # its ids are not ours
        ]

    def _producers(self, channel: Channel) -> Collection[str]:
        makers = self._makers.get(channel)
        if makers is None:
            makers = self._makers[channel] = frozenset(self._keeper.current.producer_addresses(self._plan, channel))
        return makers

    # --- feeds ---

    def _choose_for(self, owner: Owner, peer: str | None = None) -> None:
        if self._nursery is None or self._owners.get(owner.name) is not owner:  # the owner was just removed
            return
        for index, action in owner.choose(self._env.clock.monotonic_us(), peer):
            self._perform(owner, index, action)
            self._note_switch(owner, index)

    def _note_switch(self, owner: Owner, index: int) -> None:
        input = owner.inputs[index]
        if input.main is None:
            return
        place, producer = (owner.name, index), input.main.producer
        before = self._read.get(place, producer)
        self._read[place] = producer
        if before != producer:
            self._env.trace.event(
                "switched", consumer=owner.name, channel=str(input.channel), producer=producer, before=before
            )

    def _perform(self, owner: Owner, index: int, action: Action) -> None:
        assert self._nursery is not None
        key = (owner.name, index, action.generation)
        trace = self._env.trace.event
        channel = str(owner.inputs[index].channel)
        self._tell_history(owner, index, action)
        if isinstance(action, Open):
            trace("subscribe", consumer=owner.name, channel=channel, producer=action.producer, mode=action.mode)
            feed = self._feeds[key] = (trio.CancelScope(), [])
            # Passed, not looked up: the feed may be closed before its task first runs.
            self._nursery.start_soon(self._feed, owner, index, action, *feed)
        elif isinstance(action, Close):
            trace("unsubscribe", consumer=owner.name, channel=channel, why=action.reason)
            closing = self._feeds.pop(key, None)
            if closing is not None:
                closing[0].cancel()
        else:
            trace("set_mode", consumer=owner.name, channel=channel, mode=action.mode)
            for connection in self._feeds[key][1] if key in self._feeds else []:
                self._nursery.start_soon(send, connection, SetModeMessage(action.mode))

    def _tell_history(self, owner: Owner, index: int, action: Action) -> None:
        history = self._env.history
        if history is None:
            return
        now, channel = self._env.clock.monotonic_us(), owner.inputs[index].channel
        match action:
            case Open() if owner.inputs[index].start:
                pass  # where it begins is known later
            case Open(generation, producer, mode, position, frontier, held, t_star):
                history(Opened(now, owner.name, channel, producer, generation, mode, position, frontier, held, t_star))
            case Close(generation, reason):
                history(Closed(now, owner.name, channel, generation, reason))
            case SwitchMode(generation, mode):
                history(Promoted(now, owner.name, channel, generation, mode))

    async def _feed(
        self, owner: Owner, index: int, action: Open, scope: trio.CancelScope, connections: list[Connection]
    ) -> None:
        """Runs one subscription, from connecting to its end."""
        input, generation = owner.inputs[index], action.generation
        key = (owner.name, index, generation)
        clock = self._env.clock
        why, incarnation = "closed", 0
        with scope:
            try:
                address = self._keeper.current.producer_addresses(self._plan, input.channel).get(action.producer)
                if address is None:
                    raise LinkClosed(f"{action.producer} has left")
                connection, welcome = await self._dial(action.producer, address)
                incarnation = welcome.incarnation
                try:
                    with trio.move_on_after(self._plan.timing.connect_us / 1e6) as waiting:
                        await self._subscribe(connection, connections, owner, input, action, incarnation)
                    if waiting.cancelled_caught:
                        raise LinkBroken(f"{action.producer} did not answer the subscription")
                    await self._receive(connection, owner, index, action.producer, generation, incarnation)
                finally:
                    with trio.CancelScope(shield=True):
                        await connection.aclose()
            except GONE as error:
                why = str(error)
            except OtherOrigin as error:
                why = str(error)
                self._refuse(owner, input, action, incarnation, why)
            except RemoteProtocolError as error:
                why = str(error)
                self._quarantine(owner, input, action, incarnation, why)
        if (current := self._feeds.get(key)) is not None and current[0] is scope:
            del self._feeds[key]
        if not scope.cancel_called:
            self._env.trace.event("feed_lost", consumer=owner.name, channel=str(input.channel), why=why)
            self._tell_history(owner, index, Close(generation, why))
            input.closed(generation, clock.monotonic_us())
            if self._owners.get(owner.name) is owner:
                self._choose_for(owner)

    async def _dial(self, producer: str, address: str) -> tuple[Connection, Welcome]:
        """Connects to a producer.  Raises LinkBroken also for a malformed answer: it may be another process (B7)."""
        try:
            return await dial(self._env, self._plan, self._me, producer, address)
        except RemoteProtocolError as error:
            raise LinkBroken(f"while connecting: {error}") from error

    def _quarantine(self, owner: Owner, input: Input, action: Open, incarnation: int, why: str) -> None:
        """Handles a producer that broke the protocol (B7)."""
        channel, producer = str(input.channel), action.producer
        self._env.trace.event("quarantine", producer=producer, channel=channel, why=why)
        if input.quarantine(action.generation, incarnation, self._env.clock.monotonic_us()):
            text = f"{owner.name}: {producer} is not read again until it restarts: {why}"
            say(text, Level.ERROR, event="quarantine", channel=channel, producer=producer)

    def _refuse(self, owner: Owner, input: Input, action: Open, incarnation: int, why: str) -> None:
        """Handles a producer that does not continue our log (S6)."""
        channel, producer = str(input.channel), action.producer
        self._refused[owner.name, input.channel, producer] = incarnation
        self._env.trace.event("other_log", consumer=owner.name, channel=channel, producer=producer, why=why)
        input.foreign(action.generation, incarnation, why, self._env.clock.monotonic_us())

    async def _subscribe(
        self,
        connection: Connection,
        connections: list[Connection],
        owner: Owner,
        input: Input,
        action: Open,
        incarnation: int,
    ) -> None:
        start = input.start
        # A later change of mode is sent after this message; an earlier one is in it (F5).
        connections.append(connection)
        await connection.send(_subscription(owner, input, action))
        answer = await connection.receive_message()
        await trio.lowlevel.checkpoint_if_cancelled()  # the feed was closed as the answer came (F1)
        answer = _accepted(input, action, incarnation, answer)
        input.greeted(action.producer, answer.origin)
        if start:
            input.begin(action.generation, answer.position)
            self._tell_history(owner, owner.inputs.index(input), replace(action, position=answer.position))
        self._refused.pop((owner.name, input.channel, action.producer), None)
        input.selector.heard(action.producer, incarnation, answer, self._env.clock.monotonic_us())
        input.opened(action.generation, self._env.clock.monotonic_us())
        # A heartbeat may have brought a newer state: the rec_done of this one still comes (V1).
        state, generation = NodeState(answer.state), action.generation
        input.state_changed(generation, state, answer.fresh, incarnation=incarnation, sequence=answer.sequence)
        self._choose_for(owner)  # at once: a heartbeat may be a period old (F2)

    async def _receive(
        self, connection: Connection, owner: Owner, index: int, producer: str, generation: int, incarnation: int
    ) -> None:
        input = owner.inputs[index]
        channel = input.channel
        pool = self._pools.get(owner.name, StringPool())
        decoder = ElementDecoder(self._plan.query.schema_of(channel.stream), pool)
        clock, history = self._env.clock, self._env.history
        connection.arriving = partial(input.part_came, generation)
        read = 0
        while True:
            input.paused(generation, True)
            await owner.room(index)
            input.paused(generation, False)
            frames = await connection.receive()
            if self._owners.get(owner.name) is not owner:
                await trio.lowlevel.checkpoint()  # the owner was just removed: this ends the task
            now = clock.monotonic_us()
            begun, rows, before, read = clock.step_ns(), 0, read, connection.received
            try:
                for element in decoder.decode_all(frames):
                    if isinstance(element, Frame):
                        await self._take_state(owner, input, generation, incarnation, element)
                        continue
                    if type(element) is Batch:
                        rows += len(element)
                    if history is not None:
                        feed = input.feed(generation)
                        mode: FeedMode = "" if feed is None else feed.mode
                        history(Received(now, owner.name, channel, producer, generation, mode, element))
                    for action in input.element(generation, element, now):
                        self._perform(owner, index, action)
            finally:  # also for elements before a state that ends this feed, or before a malformed frame
                owner.delivered(rows, read - before, clock.step_ns() - begun)
            del frames  # else they stay in memory until more comes

    async def _take_state(self, owner: Owner, input: Input, generation: int, incarnation: int, frame: Frame) -> None:
        """Takes a change of state of a feed's producer."""
        message = decode_message(frame.body)
        if not isinstance(message, StateChange):
            raise RemoteProtocolError(f"unexpected {type(message).__name__} on a subscription")
        state, sequence = NodeState(message.state), message.sequence
        input.state_changed(generation, state, message.fresh, incarnation=incarnation, sequence=sequence)
        # Before an undo that may follow: another producer may still have fresh results (F4).
        self._choose_for(owner)
        if input.feed(generation) is None:
            await trio.lowlevel.checkpoint()  # the feed was closed: this ends the task


def _subscription(owner: Owner, input: Input, action: Open) -> Subscribe:
    index, count = owner.substream(input.channel)
    feed = input.feed(action.generation)
    return Subscribe(
        stream=input.channel.stream,
        partition=input.channel.partition,
        consumer=owner.name,
        mode=action.mode if feed is None else feed.mode,
        position=action.position,
        frontier=action.frontier,
        held=action.held,
        t_star=action.t_star,
        substream_index=index,
        substream_count=count,
        origin=input.origin,
        start=input.start,
    )


def _accepted(input: Input, action: Open, incarnation: int, answer: Message) -> Subscribed:
    """Checks the answer to a subscription.  Raises LinkClosed, OtherOrigin, RemoteProtocolError if it is refused."""
    producer = action.producer
    if producer not in input.producers:
        raise LinkClosed(f"{producer} has left")
    if isinstance(answer, Truncated):
        input.selector.refused(producer, incarnation, answer.first)
        raise LinkClosed(f"{producer} begins at id {answer.first}, behind what we need")
    if isinstance(answer, OtherLog):
        raise OtherOrigin(answer.reason)
    if isinstance(answer, NotReady):
        raise LinkClosed(f"{producer} is not ready: {answer.reason}")
    if not isinstance(answer, Subscribed):
        raise RemoteProtocolError(f"expected Subscribed, got {type(answer).__name__}")
    return answer
