"""The producing side of connections: hello, then either one subscription or a conversation of control messages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple, TypeVar

import trio

from replicas.link.connection import HELLO_SECONDS, Connection
from replicas.link.directory import DirectoryExchange, DirectoryKeeper
from replicas.link.rights import check_right, no_host, wrong_claim
from replicas.producer.connection_limits import Reception
from replicas.producer.feed import Accepted, Feeds
from replicas.producer.service import Handler, Service, Visitor
from spe.errors import LinkBroken, LinkClosed, LogError, RemoteProtocolError
from spe.plan.directory import Version
from spe.plan.plan import Plan
from spe.runtime.env import Env
from spe.runtime.rate_limited_trace import RateLimitedTrace
from spe.runtime.tls import TlsNetwork, holder_of
from spe.status import DirectoryStatus, ProcessStatus, ReaderOfOtherLog, ServerStatus
from spe.wire.fields import SNAPSHOT_PART_BYTES
from spe.wire.framing import CONTROL_BYTES
from spe.wire.greeting import check_hello
from spe.wire.messages.commands import Inject, InjectAnswer, Status, StatusRequest
from spe.wire.messages.connection import DirectoryAnswer, DirectoryRequest, Hello, Refused, Welcome
from spe.wire.messages.feeds import ANNOUNCEMENTS_MAX, Announced, Heartbeat, NotReady, OtherLog, SetMode, Subscribe
from spe.wire.messages.message import Message
from spe.wire.messages.pushes import CommitPushed, EndPushed, PushWaits, StagePart
from spe.wire.messages.replicas import (
    OrderAnswer,
    PartnerAnswer,
    PartnerRequest,
    SnapshotPart,
    SnapshotRefused,
    SnapshotRequest,
)

T = TypeVar("T")
#: Injects a fault into this process, for experiments; returns an error, or "".
Injector = Callable[[Mapping[str, Any]], Awaitable[str]]

#: Consumers that have read another log: the status lists at most so many.
OTHER_LOGS_MAX = 64
#: Longest silence of a writer: then its task hangs, and another one needs its place.
WRITER_SILENT_S: Final = 60.0
#: A writer that waits for an answer gets a sign of life each time this has passed.
WRITER_TOLD_S: Final = 1.0
#: Longest time to send an answer.  A feed has no such limit: its consumer may be under back-pressure, and only the
#: kernel knows whether it still reads (spe.runtime.network).
ANSWER_SECONDS = 10.0
#: Longest time that a partner may work on a snapshot without sending a byte: its disk may hang.
AT_WORK_S: Final = 60.0
#: Shortest time between two announcements to one peer.
ANNOUNCE_US: Final = 1_000_000
#: Roles that pass on, or record, announcements of nodes.
_CONSUMERS: Final = ("node", "client")
_UNREAD: Final = f"the peer does not read what it asked for within {ANSWER_SECONDS:g} s"


class _SentAnnouncements(NamedTuple):
    """Version of the announcements that a peer has, and the time of sending; None: more are to be sent at once."""

    version: int
    at_us: int | None


@dataclass(slots=True)
class _Visit:
    """A conversation of control messages on one connection."""

    hello: Hello
    by: Visitor
    exchange: DirectoryExchange
    announced: _SentAnnouncements


class Server:
    """Accepts connections, and hands each message to its handler.

    Args:
      keeper: our name and incarnation, the token that every peer must present, and the current directory.
      injector: injects faults into this process, for experiments; None: not possible.
    """

    def __init__(
        self,
        env: Env,
        plan: Plan,
        keeper: DirectoryKeeper,
        service: Service,
        injector: Injector | None = None,
    ) -> None:
        self._env = env
        self._plan = plan
        self._keeper = keeper
        self._me = keeper.me
        self._service = service
        self._injector = injector
        #: Handlers of messages that need more than one answer.
        self._table: Mapping[type[Message], Callable[[_Visit, Any], Awaitable[None]]] = {
            Subscribe: self._subscription,
            Heartbeat: self._heartbeat,
            DirectoryRequest: self._directory_request,
            DirectoryAnswer: self._directory_answer,
            PartnerRequest: self._partner_request,
            SnapshotRequest: self._snapshot,
            StagePart: self._push,
            CommitPushed: self._push,
            EndPushed: self._push,
            StatusRequest: self._status_request,
            Inject: self._inject,
        }
        self._feeds = Feeds(env.clock, plan.limits.frame_bytes)
        self._reception = Reception(plan, keeper.current, keeper.me)
        keeper.on_change(self._reception.redirect)
        #: Traces errors of peers, at a limited rate.
        self._complaints = RateLimitedTrace(env.trace)
        #: Consumers that have read another log than ours (S6), with the number of requests and the reason of refusal.
        self._other_logs: dict[str, tuple[int, str]] = {}

    async def handle(self, stream: trio.abc.Stream) -> None:
        """Serves one connection to its end.  Errors of the peer are never raised."""
        connection = Connection(stream)
        peer: Hello | None = None
        welcome: Welcome | None = None
        try:
            with trio.move_on_after(HELLO_SECONDS):
                peer, welcome = await self._greeted(connection)
            if peer is not None and welcome is not None:
                await self._receive_peer(connection, peer, welcome)
        except (LinkBroken, LinkClosed):
            pass
        except RemoteProtocolError as error:
            self._complaints.event("bad_peer", peer=None if peer is None else peer.name, why=str(error))
        finally:
            with trio.CancelScope(shield=True):
                await connection.aclose()

    async def _greeted(self, connection: Connection) -> tuple[Hello, Welcome | None]:
        """Returns the hello and the welcome to send; None: the peer was refused."""
        hello = await connection.receive_message()
        if not isinstance(hello, Hello):
            raise RemoteProtocolError(f"expected Hello, got {type(hello).__name__}")
        answer = check_hello(
            hello,
            cluster=self._plan.cluster,
            fingerprint=self._plan.fingerprint,
            token=self._me.token,
            name=self._me.name,
            incarnation=self._me.incarnation,
            directory=self._keeper.version,
        )
        if isinstance(answer, Welcome):
            shown = connection.certified()
            if shown is not None and shown != holder_of(hello.name):
                answer = Refused(f"the certificate is that of {shown!r}, the hello that of {hello.name!r}")
            elif why := wrong_claim(self._plan, self._keeper.current, hello.role, hello.name):
                answer = Refused(why)
        if isinstance(answer, Refused):
            await connection.send(answer)
            self._complaints.event("refused", peer=hello.name, why=answer.reason)
            return hello, None
        if hello.role == "coordinator":
            self._keeper.heard_of(hello.incarnation)  # which is its epoch
        connection.allow(CONTROL_BYTES)  # on a subscription, data goes only to the consumer
        connection.named(hello.name)
        return hello, answer

    async def _receive_peer(self, connection: Connection, hello: Hello, welcome: Welcome) -> None:
        with self._reception.visit(hello.name, hello.incarnation) as scope:
            if scope is None:
                tasks = f"as many tasks of {hello.name} as may are at work"
                readers = "as many clients that the configuration does not have are served as may be"
                await _answer(connection, NotReady(tasks if hello.role == "writer" else readers))
                return
            await _answer(connection, welcome)
            try:
                await self._converse(connection, hello)
            finally:
                self._service.hung_up(connection)
        if scope is not None and scope.cancelled_caught:
            self._complaints.event("sent_away", peer=hello.name, why="too many connections of this peer")

    async def _converse(self, connection: Connection, hello: Hello) -> None:
        # A client is not asked for its directory, for it passes none on.
        theirs, asks = Version(hello.epoch, hello.number), hello.role in ("node", "coordinator")
        exchange = DirectoryExchange(self._keeper, theirs, asks=asks)
        visit = _Visit(hello, Visitor(hello.name, connection), exchange, _SentAnnouncements(0, None))
        while True:
            message = await _next(connection, hello)
            check_right(self._keeper.current, hello.role, hello.name, message)
            await self._table.get(type(message), self._reply)(visit, message)
            if isinstance(message, Subscribe):
                return

    def _handler(self, message: Message) -> Handler:
        kind = type(message)
        if (handler := self._service.handlers.get(kind)) is not None:
            return handler
        return lambda visitor, message: message.refusal(self._service.name)

    async def _reply(self, visit: _Visit, message: Message) -> None:
        """Sends the answer of the message's handler."""
        reply = self._handler(message)(visit.by, message)
        if isinstance(reply, Awaitable):
            reply = await reply
        if reply is not None:
            assert isinstance(reply, Message), "a control message is answered by one"
            await _answer(visit.by.connection, reply)

    async def _heartbeat(self, visit: _Visit, message: Heartbeat) -> None:
        hello, connection = visit.hello, visit.by.connection
        await self._reply(visit, message)
        if hello.role == "coordinator" and (over := self._keeper.over(hello.incarnation)):
            await _answer(connection, OrderAnswer(0, self._keeper.epoch, over))  # it ends by that
        if hello.role in _CONSUMERS:
            await self._announce(visit)
        if (request := visit.exchange.due(self._env.clock.monotonic_us())) is not None:
            await _answer(connection, request)

    async def _directory_request(self, visit: _Visit, message: DirectoryRequest) -> None:
        if (newer := visit.exchange.requested(message)) is not None:
            await _answer(visit.by.connection, newer)

    async def _directory_answer(self, visit: _Visit, message: DirectoryAnswer) -> None:
        self._keeper.received(message)

    async def _partner_request(self, visit: _Visit, message: PartnerRequest) -> None:
        if no_host(self._keeper.current, message.unit, message.partition, visit.by.name):
            refusal = PartnerAnswer(message.unit, message.partition, message.number, False)
            await _answer(visit.by.connection, refusal)
        else:
            await self._reply(visit, message)

    async def _status_request(self, visit: _Visit, message: StatusRequest) -> None:
        await _answer(visit.by.connection, Status(self.status()))

    async def _inject(self, visit: _Visit, message: Inject) -> None:
        inject = self._injector
        error = "this process injects no faults" if inject is None else await inject(message.fault)
        await _answer(visit.by.connection, InjectAnswer(not error, error))

    async def _push(self, visit: _Visit, message: Message) -> None:
        """Answers a writer, and reports to it what the answer waits for, so that it does not take us for dead."""
        reply = self._handler(message)(visit.by, message)
        if isinstance(reply, Awaitable):
            waits = self._service.waits
            reply = await self._in_touch(visit.by.connection, reply, WRITER_TOLD_S, lambda: PushWaits(waits()))
        if reply is not None:
            assert isinstance(reply, Message), "W1: a writer gets an answer"
            await _answer(visit.by.connection, reply)

    async def _in_touch(
        self, connection: Connection, answer: Awaitable[T], period_s: float, sign: Callable[[], Message]
    ) -> T:
        """Returns an answer; sends a sign of life in each period until it is ready.

        Raises:
          LinkBroken: the peer does not read the signs; raised after the answer is ready.
        """
        failed: Exception | None = None
        unread: list[LinkBroken] = []

        async def send_signs() -> None:
            try:
                while True:
                    await self._env.clock.sleep(period_s)
                    with trio.CancelScope(shield=True):  # half a message would break the connection
                        await _answer(connection, sign())
            except LinkBroken as error:
                unread.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send_signs)
            try:
                reply = await answer
            except Exception as error:
                failed = error
            nursery.cancel_scope.cancel()
        if failed is not None:
            raise failed
        if unread:  # no answer may follow: a part of a sign may have been sent
            raise unread[0]
        return reply

    def status(self) -> ProcessStatus:
        """Returns the status of the process, with its connections."""
        others = (ReaderOfOtherLog(reader=r, count=n, why=why) for r, (n, why) in self._other_logs.items())
        server = ServerStatus(
            connections=self._reception.connections(),
            sent_away=self._reception.sent_away,
            other_logs=tuple(others),
        )
        epoch, number = self._keeper.version
        network = self._env.network
        return replace(
            self._service.status(),
            server=server,
            directory=DirectoryStatus(epoch=epoch, number=number),
            certificate=network.certificate() if isinstance(network, TlsNetwork) else None,
        )

    async def _announce(self, visit: _Visit) -> None:
        """Sends new announcements behind the answer to a heartbeat; waits change often, so not behind each."""
        now = self._env.clock.monotonic_us()
        if visit.announced.at_us is not None and now - visit.announced.at_us < ANNOUNCE_US:
            return
        version, items = self._service.announced(visit.announced.version)
        if items:
            await _answer(visit.by.connection, Announced(items))
        visit.announced = _SentAnnouncements(version, None if len(items) >= ANNOUNCEMENTS_MAX else now)

    async def _snapshot(self, visit: _Visit, message: SnapshotRequest) -> None:
        connection = visit.by.connection
        if why := no_host(self._keeper.current, message.unit, message.partition, visit.by.name):
            await _answer(connection, SnapshotRefused(why))
            return
        data = self._handler(message)(visit.by, message)
        if isinstance(data, Awaitable):  # empty parts say that it is being made
            period_s = max(message.period_us, self._plan.timing.tick_us) / 1e6
            data = await self._in_touch(connection, data, period_s, lambda: SnapshotPart(0, False, b""))
        if isinstance(data, SnapshotRefused):
            await _answer(connection, data)
            return
        assert isinstance(data, memoryview), "A3: a snapshot is bytes, or refused"
        last = (len(data) - 1) // SNAPSHOT_PART_BYTES if data else 0
        for index in range(last + 1):
            part = data[index * SNAPSHOT_PART_BYTES : (index + 1) * SNAPSHOT_PART_BYTES]
            await _answer(connection, SnapshotPart(index, index == last, bytes(part)))

    async def _subscription(self, visit: _Visit, message: Subscribe) -> None:
        connection, opened = visit.by.connection, self._handler(message)(visit.by, message)
        if isinstance(opened, OtherLog):
            self._note_other_log(message.consumer, opened.reason)
        if not isinstance(opened, Accepted):
            assert isinstance(opened, Message), "F1: a subscription is opened, or refused"
            await _answer(connection, opened)
            return
        await connection.send(opened.greeting)
        trace = self._env.trace.event
        trace(
            "subscribed", consumer=message.consumer, channel=f"{message.stream}/{message.partition}", mode=message.mode
        )
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._listen, connection, opened, nursery.cancel_scope)
                try:
                    await self._feeds.run(connection, opened)
                except (LinkBroken, LinkClosed, LogError) as error:
                    trace("subscription_ended", consumer=message.consumer, why=str(error))
                nursery.cancel_scope.cancel()
        finally:
            opened.subscription.close()

    def _note_other_log(self, reader: str, why: str) -> None:
        count, _ = self._other_logs.pop(reader, (0, ""))
        self._other_logs[reader] = count + 1, why
        if len(self._other_logs) > OTHER_LOGS_MAX:
            del self._other_logs[next(iter(self._other_logs))]
        self._complaints.event("reader_of_other_log", reader=reader, why=why)

    async def _listen(self, connection: Connection, opened: Accepted, scope: trio.CancelScope) -> None:
        """Takes changes of the feed's mode from the consumer, until it closes the connection (F1)."""
        try:
            while True:
                message = await connection.receive_message()
                if not isinstance(message, SetMode):
                    raise RemoteProtocolError(f"unexpected {type(message).__name__} on a subscription")
                opened.subscription.set_mode(message.mode)
                opened.signal.wake()
        except (LinkBroken, LinkClosed, RemoteProtocolError):
            scope.cancel()


async def _next(connection: Connection, hello: Hello) -> Message:
    """Receives the next message of a peer.  Raises LinkBroken where a writer is silent."""
    if hello.role != "writer":
        return await connection.receive_message()
    with trio.move_on_after(WRITER_SILENT_S):
        return await connection.receive_message()
    raise LinkBroken(f"{hello.name} said nothing for {WRITER_SILENT_S:g} s")


async def _answer(connection: Connection, message: Message) -> None:
    """Sends an answer.  Raises LinkBroken also where the peer does not read answers."""
    await connection.send_within(message, ANSWER_SECONDS, _UNREAD)


async def request(connection: Connection, message: Message) -> Message:
    """Sends a request on a connection of its own, and returns the answer."""
    await connection.send(message)
    return await connection.receive_message()


async def fetch_snapshot(connection: Connection, message: SnapshotRequest, patience_s: float) -> bytearray | str:
    """Returns a partner's snapshot as it was encoded, or why there is none.

    Args:
      patience_s: longest silence.  The whole may take longer: empty parts come while it is made.

    Raises:
      LinkBroken: nothing more of it came, or it was at work on it for AT_WORK_S, as where its disk does not answer.
    """
    await connection.send(message)
    data, until = bytearray(), trio.current_time() + AT_WORK_S
    while True:
        if trio.current_time() > until:
            raise LinkBroken(f"nothing of the snapshot within {AT_WORK_S:g} s, though it is at work on it")
        with trio.move_on_after(patience_s) as waiting:
            part = await connection.receive_message()
        if waiting.cancelled_caught:
            raise LinkBroken(f"nothing more of the snapshot within {patience_s:g} s")
        if isinstance(part, SnapshotRefused):
            return part.reason
        if not isinstance(part, SnapshotPart):
            raise RemoteProtocolError(f"expected SnapshotPart, got {type(part).__name__}")
        data += part.data
        if part.data:
            until = trio.current_time() + AT_WORK_S
        if part.last:
            return data
