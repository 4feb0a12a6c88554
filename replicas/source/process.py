"""The source process serves a source proxy to all subscribers.

A replayed source is a slow stable producer (rule S3): its state is always STABLE, it holds everything from id 1 on that
was not deleted (rule E1), and it never sends tentative tuples.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from functools import partial
from pathlib import Path, PurePosixPath

import trio

from replicas.connectors import Live, Replay, open_reader
from replicas.connectors.sink_registry import Place
from replicas.link.connection import Identity
from replicas.link.directory import DirectoryKeeper, revision_file
from replicas.link.signal import Signal
from replicas.producer.feed import Accepted
from replicas.producer.log_entry import Substream
from replicas.producer.server import Injector, Server
from replicas.producer.service import Handler, Service, Visitor
from replicas.producer.subscription import Overtaken
from replicas.producer.substream import substream
from replicas.retention.archiving import OpenArchive, open_archive
from replicas.source.late_rows import LateRows
from replicas.source.own_sink import OwnSink, RowsInLog
from replicas.source.proxy import SourceProxy
from replicas.source.push import PushIntake
from replicas.source.rejected_inputs import RejectedInputs
from replicas.source.retention import NOTHING_HELD, SourceRetention, own_sink_name
from spe.log.source_log import source_folder
from spe.plan.directory import Directory
from spe.plan.plan import Plan
from spe.runtime.env import Env
from spe.runtime.log_line import Level, say
from spe.status import SourceStatus
from spe.stream.batch import Batch, Boundary, Element, Int64Array
from spe.stream.hashing import partition_of
from spe.stream.history import LogBehind, Sent
from spe.stream.ids import Channel
from spe.stream.names import NodeState, StreamId
from spe.stream.times import BEFORE_TIME
from spe.wire.fields import Mode
from spe.wire.messages.feeds import (
    Heartbeat,
    HeartbeatAnswer,
    NotReady,
    OtherLog,
    OutputStatus,
    StateChange,
    Subscribe,
    Subscribed,
    Truncated,
)
from spe.wire.messages.message import Message
from spe.wire.messages.pushes import CommitPushed, DropParts, EndPushed, StagePart


class Division:
    """Computes the partition of each row of the newest batch once, not for each replica that reads it."""

    def __init__(self) -> None:
        self._newest: dict[tuple[int, Sequence[int]], tuple[Batch, Int64Array]] = {}

    def partitions(self, batch: Batch, count: int, key: Sequence[int]) -> Int64Array:
        known, indices = self._newest.get((count, key), (None, None))
        if known is not batch or indices is None:
            columns = batch.rows.columns
            indices = partition_of([columns[k] for k in key], count)
            self._newest[count, key] = (batch, indices)
        return indices


class SourceSubscription:
    """A cursor over a source's durable log (replicas.producer.subscription.Subscription)."""

    def __init__(
        self, proxy: SourceProxy, division: Division, position: int, frontier: int, share: Substream | None
    ) -> None:
        self._proxy = proxy
        self._division = division
        self._position = position
        self._frontier = frontier
        self._share = share

    def pull(self, max_bytes: int) -> list[Element | StateChange]:
        if self._position < self._proxy.base_id:
            raise Overtaken(f"ids up to {self._proxy.base_id} are deleted, {self._position + 1} comes next")
        out: list[Element | StateChange] = []
        for element in self._proxy.read_from(self._position, self._frontier, max_bytes):
            if isinstance(element, Batch):
                self._position = element.upto_id
                out.append(self._shared(element))
            elif isinstance(element, Boundary):
                self._frontier = element.time
                out.append(element)
        return out

    def _shared(self, batch: Batch) -> Batch:
        """Returns the consumer's share of the rows; the covered ids stay those of the full stream."""
        if self._share is None:
            return batch
        index, count, key = self._share
        return batch.select(self._division.partitions(batch, count, key) == index)

    def set_mode(self, mode: Mode) -> None:
        """Does nothing: everything that a source sends is stable."""

    def close(self) -> None:
        """Does nothing: a subscription to a source holds nothing."""


class SourceProcess:
    """Serves one source.

    Args:
      folder: folder of the source's log, relative to the environment's storage.
      begun_us: wall time at which the replay of all sources of this run began; None: now.
      injector: makes faults happen in this process, for experiments.
      reader: replaces the configured reader.
      archives: opens the archives that ``retain`` names.
      place: opens the storage of the folder of a sink for late or rejected rows, if there is one.
      sinks_root: base folder of relative paths of sinks.
    """

    def __init__(
        self,
        env: Env,
        plan: Plan,
        directory: Directory,
        stream: StreamId,
        *,
        token: str = "",
        folder: PurePosixPath | None = None,
        begun_us: int | None = None,
        injector: Injector | None = None,
        reader: Live | Replay | None = None,
        archives: OpenArchive = open_archive,
        place: Place | None = None,
        sinks_root: Path | None = None,
    ) -> None:
        self._env = env
        self._plan = plan
        self._signature = directory.signature
        self._address = directory.sources[stream]
        self._source = plan.sources[stream]
        self._folder = folder
        self._begun_us = begun_us
        self._injector = injector
        self._reader = reader
        self._me = Identity("source", f"source:{stream}", env.clock.wall_us(), token)
        folder = source_folder(stream) if folder is None else folder
        self._archives = archives
        self._retention: SourceRetention | None = None
        self._place = place
        self._sinks_root = Path() if sinks_root is None else sinks_root
        #: Acknowledged id of each client in this session: the position of start "left" (F8).
        self._acknowledged: dict[str, int] = {}
        #: Sinks by the kind of their rows.
        self._own_sinks: dict[str, OwnSink] = {}
        self._keeper = DirectoryKeeper(env, directory, self._me, revision_file(folder, plan))
        self._signal = Signal()
        self._proxy: SourceProxy | None = None
        self._intake: PushIntake | None = None
        self._division = Division()
        #: Set while the process runs.
        self.server: Server | None = None

    async def run(self, *, task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED) -> None:
        """Serves until cancelled, even after the input has ended, because consumers may still need the log.

        Raises:
          SpeError: the log or the input cannot be used; says which, and the reason.
        """
        proxy = await SourceProxy.open(
            self._env, self._source, self._folder, begun_us=self._begun_us, signature=self._signature
        )
        self._proxy = proxy
        reader = await self._opened(proxy)
        if self._source.retain is not None:
            self._retention = self._retaining(proxy)
        if self._source.late is not None:
            self._add_sink(LateRows(self._source, proxy), proxy)
        if self._source.rejected is not None:
            self._add_sink(RejectedInputs(self._source, proxy), proxy)
        self.server = server = Server(self._env, self._plan, self._keeper, self.service(), self._injector)
        try:
            async with trio.open_nursery() as nursery:
                self._keeper.nursery = nursery
                address = await nursery.start(self._env.network.serve, self._address, server.handle)
                task_status.started(address)
                if self._retention is not None:
                    nursery.start_soon(self._retention.run)
                for sink in self._own_sinks.values():
                    nursery.start_soon(sink.run, self._signal)
                await proxy.run(self._publish, partial(say, level=Level.WARNING), reader)
                self._signal.wake()
                if (fault := proxy.status().fault) is not None:
                    say(
                        f"{self._me.name} FAILED: {fault}; what it has logged is still served",
                        Level.ERROR,
                        event="failed",
                    )
        finally:
            proxy.close()

    def service(self) -> Service:
        name = self._me.name
        handlers: dict[type[Message], Handler] = {
            Subscribe: lambda visitor, message: self.subscribe(message),
            Heartbeat: self._heartbeat,
        }
        if (intake := self._intake) is None:
            return Service(name, self.status, handlers)
        handlers |= {
            StagePart: lambda writer, message: intake.stage(writer.connection, writer.name, message),
            CommitPushed: lambda writer, message: intake.commit(writer.name, message),
            EndPushed: lambda writer, message: intake.end(writer.name),
            DropParts: lambda writer, message: intake.drop(writer.name, message),
        }
        return Service(name, self.status, handlers, hung_up=intake.hung_up, waits=self._waits)

    def _waits(self) -> str:
        proxy, intake = self._proxy, self._intake
        assert proxy is not None, "S1: a source is served when its log is open"
        assert intake is not None, "W1: only a source with writers is pushed to"
        return proxy.disk_full or intake.waits()

    def _add_sink(self, rows: RowsInLog, proxy: SourceProxy) -> None:
        """Opens a sink.  Raises SpeError: it cannot be opened, or another process writes it."""
        assert self._place is not None, "E8: a sink needs a place"
        safe = partial(self._are_safe, own_sink_name(rows.what))
        self._own_sinks[rows.what] = OwnSink(
            self._env, self._plan, self._source, rows, proxy.identity, self._place, self._sinks_root, safe
        )

    def _are_safe(self, sink: str, upto_id: int) -> None:
        if self._retention is not None:
            self._retention.acknowledged(sink, self._me.incarnation, upto_id)

    def _retaining(self, proxy: SourceProxy) -> SourceRetention:
        retention = proxy.retention(self._archives, ())
        retention.follow(self._plan, self._keeper.current)
        self._keeper.on_change(lambda directory: retention.follow(self._plan, directory))
        return retention

    async def _opened(self, proxy: SourceProxy) -> Live | Replay | None:
        """Opens a reader that replaces the configured one, for pushed rows or logs.  Raises LogCorrupt."""
        reader = self._reader
        if reader is None and self._source.writers:
            intake = open_reader(self._source)
            assert isinstance(intake, PushIntake)
            folder = source_folder(self._source.stream) if self._folder is None else self._folder
            await intake.open(self._env, folder, proxy.consumed, proxy.settled, ended=proxy.ended)
            self._intake = reader = intake
        return reader

    def too_much(self, dead: Set[str] = frozenset()) -> str:
        """Reports holders of segments that are due, or free segments that were not deleted; "" where neither exists.

        Args:
          dead: processes that do not return.
        """
        return "" if self._retention is None else self._retention.too_much(dead)

    def _publish(self, elements: list[Element]) -> None:
        """Lets subscriptions take elements that have become durable."""
        proxy, history = self._proxy, self._env.history
        if history is not None and proxy is not None:
            high = max((e.rows.span()[2] for e in elements if isinstance(e, Batch) and len(e)), default=BEFORE_TIME)
            channel = Channel(self._source.stream, 0)
            history(Sent(self._env.clock.monotonic_us(), channel, proxy.last_id, high, proxy.frontier))
        self._signal.wake()

    def subscribe(self, message: Subscribe) -> Accepted | Truncated | NotReady | OtherLog:
        proxy = self._proxy
        if proxy is None or message.stream != self._source.stream or message.partition:
            return NotReady(f"{self._me.name} serves {self._source.stream}/0")
        try:
            share = substream(self._plan, message)
        except KeyError as error:
            return NotReady(f"no such substream: {error}")
        if why := self._other_log(proxy, message):
            return OtherLog(why)
        first = proxy.base_id + 1
        position = self._begins(proxy, message) if message.start else message.position
        if position + 1 < first:
            self._tell_behind(message, proxy)
            return Truncated(first)
        greeting = Subscribed(
            NodeState.STABLE, False, proxy.last_id, proxy.frontier, BEFORE_TIME, first, 0, proxy.identity, position
        )
        cursor = SourceSubscription(proxy, self._division, position, message.frontier, share)
        return Accepted(greeting, cursor, self._source.schema, self._signal)

    def _begins(self, proxy: SourceProxy, message: Subscribe) -> int:
        """Returns the starting position of a client that holds nothing (F8)."""
        if message.start == "now":
            return proxy.last_id
        left = self._acknowledged.get(message.consumer, 0) if message.start == "left" else 0
        return max(proxy.base_id, min(left, proxy.last_id))

    def _tell_behind(self, message: Subscribe, proxy: SourceProxy) -> None:
        if self._env.history is not None:
            channel, now = Channel(self._source.stream, 0), self._env.clock.monotonic_us()
            self._env.history(LogBehind(now, channel, message.consumer, message.position, proxy.base_id))

    def _other_log(self, proxy: SourceProxy, message: Subscribe) -> str | None:
        """Explains why this log is not the one that a consumer has read; None if it is.

        Only synced records are sent (S3), so no consumer has read beyond the end of the log.
        """
        consumer, position = message.consumer, message.position
        if message.origin and message.origin != proxy.identity:
            return (
                f"the log of {self._me.name} is {proxy.identity}; {consumer} has read log {message.origin}"
                f" up to id {position}. Its folder was lost, or is not mounted"
            )
        if position > proxy.last_id:
            return (
                f"the log of {self._me.name} ends at id {proxy.last_id}; {consumer} has read it up to id {position}."
                " Its folder is an older copy, or was cut"
            )
        return None

    def _heartbeat(self, visitor: Visitor, message: Heartbeat) -> HeartbeatAnswer:
        peer, proxy = visitor.name, self._proxy
        outputs, guest = [], self._keeper.current.is_guest(peer)
        for ack in message.acks:
            if ack.stream != self._source.stream:
                continue
            if self._retention is not None:
                self._retention.acknowledged(ack.consumer, message.incarnation, ack.id)
            if peer.startswith("client:") and not guest:
                self._acknowledged[ack.consumer] = ack.id
        if proxy is not None:
            outputs.append(
                OutputStatus(
                    self._source.stream,
                    0,
                    NodeState.STABLE,
                    False,
                    proxy.last_id,
                    proxy.frontier,
                    BEFORE_TIME,
                    proxy.base_id + 1,
                    0.0,
                    origin=proxy.identity,
                )
            )
        return HeartbeatAnswer(message.number, self._me.incarnation, outputs, guest=guest)

    def status(self) -> SourceStatus:
        proxy, name, incarnation = self._proxy, self._me.name, self._me.incarnation
        if proxy is None:
            return SourceStatus(name=name, incarnation=incarnation, log=None)
        full = {"log": why} if (why := proxy.disk_full) else {}
        away = {"reader": why} if (why := proxy.away) else {}
        away |= {what: sink.why for what, sink in self._own_sinks.items() if sink.why}
        held = NOTHING_HELD if self._retention is None else self._retention.status()
        return SourceStatus(name=name, incarnation=incarnation, log=proxy.status(held), disk_full=full, away=away)
