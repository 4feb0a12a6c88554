"""The client process: it records the client's changes, feeds its sinks, measures delays and serves its status.

It acknowledges only tuples that the recording and the sinks have on disk, so that a kill or a power failure loses none.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import trio

from replicas.client.client import Client
from replicas.client.newest import NewestRows
from replicas.client.recorder import SEGMENT_BYTES, SYNC_US, Recorder
from replicas.client.result_folder import ResultFolder
from replicas.client.retention import RecordingRetention
from replicas.client.statistics import ChannelStats
from replicas.connectors.server_sink import GOODBYE_S, ServerSink
from replicas.connectors.sink import Sink
from replicas.connectors.sink_registry import Place, open_sink
from replicas.link.directory import revision_file
from replicas.link.incarnation import claim
from replicas.producer.server import Injector, Server
from replicas.producer.service import Service
from replicas.retention.archiving import OpenArchive, open_archive
from replicas.retention.holders import segment_bytes
from spe.connectors import find_sink
from spe.connectors.files import Folder
from spe.errors import LogFull, SpeError
from spe.log.recording import client_folder
from spe.plan.delays import ReplayEpoch, delay_bound_us
from spe.plan.directory import Directory
from spe.plan.plan import Plan
from spe.plan.results import results_fingerprint
from spe.runtime.env import Env, Storage
from spe.runtime.log_line import say
from spe.runtime.retried_store import UntilStored
from spe.status import ClientStatus, SwitchStatus
from spe.stream.batch import Batch, Boundary
from spe.stream.change import Change
from spe.stream.ids import Channel
from spe.stream.names import Kind
from spe.stream.schema import Schema
from spe.stream.times import BEFORE_TIME
from spe.wire.messages.feeds import Announcement

#: Number of producer switches kept for the summary: a status must fit into a control frame.
SWITCHES_KEPT = 100


class SwitchWatch:
    """Notices for each change whether the channel's producer has changed.  Pure."""

    def __init__(self) -> None:
        self._last: dict[Channel, tuple[str, int]] = {}
        self.switches: list[SwitchStatus] = []
        self.counts: dict[Channel, int] = {}

    def arrived(self, channel: Channel, producer: str | None, now_us: int) -> None:
        if producer is None:
            return
        before = self._last.get(channel)
        if before is not None and before[0] != producer:
            self.counts[channel] = self.counts.get(channel, 0) + 1
            silence_us = now_us - before[1]
            self.switches.append(
                SwitchStatus(
                    channel=str(channel), before=before[0], after=producer, silence_us=silence_us, at_us=now_us
                )
            )
            del self.switches[:-SWITCHES_KEPT]
        self._last[channel] = (producer, now_us)


class ClientProcess:
    """Runs one client of the plan.

    Raises:
      SpeError: its recording or a sink is written by another process, or holds results of another query.

    Args:
      env: its storage holds the recording (folder ``clients/NAME``).
      place: opens the storage of a sink's folder.
      sinks_root: base folder of relative sink paths.
      epochs: relates tuple time to wall time, per output stream; for the delays.
      address: where this process answers (status, faults); None: not served.
      record: whether to record; otherwise a restart begins at the end of the sinks' results, or at the beginning.
      tap: called with each change.
      injector: makes faults happen in this process, for experiments.
      archives: opens the archives that ``retain`` names.
    """

    def __init__(
        self,
        env: Env,
        plan: Plan,
        directory: Directory,
        name: str,
        *,
        place: Place,
        token: str = "",
        sinks_root: Path | None = None,
        epochs: Mapping[str, ReplayEpoch] | None = None,
        address: str | None = None,
        record: bool = True,
        tap: Callable[[Change], None] | None = None,
        injector: Injector | None = None,
        archives: OpenArchive = open_archive,
    ) -> None:
        self._env = env
        self._plan = plan
        self._address = address
        #: Set while the process runs and answers.
        self.server: Server | None = None
        self._injector = injector
        revision = revision_file(client_folder(name), plan)
        self.client = Client(env, plan, directory, name, token=token, revision=revision, announced=self._announced)
        #: Announcements to record, with the times of receipt.
        self._to_record: deque[tuple[int, Announcement]] = deque()
        channels = self.client.channels
        schemas = {c: plan.query.schema_of(c.stream) for c in channels}
        self._stats = {c: ChannelStats(c, epoch=(epochs or {}).get(c.stream)) for c in channels}
        self._newest = NewestRows({c.stream: schema for c, schema in schemas.items()})
        self._bounds_from(self.client.keeper.current)
        self.client.keeper.on_change(self._bounds_from)
        self._watch = SwitchWatch()
        self._folders: dict[str, ResultFolder] = {}
        self._recorder = self._open_recorder(schemas) if record else None
        root = sinks_root if sinks_root is not None else Path()
        self._sinks: list[Sink] = []
        self._sink_names: list[str] = []
        for spec in self.client.plan.sinks:
            self._add_sink(spec, root, schemas, place)
        self._tap = tap
        #: Channels whose origin is noted in the folders (S6).
        self._known_origins: set[Channel] = set()
        #: Stores by name: the recording, a sink, a folder.
        self._stores: dict[str, UntilStored] = {}
        #: Held while a store is written or synced.
        self._writing = trio.Lock()
        retain = self.client.plan.retain
        self._retention: RecordingRetention | None = None
        if retain is not None and self._recorder is not None:
            self._retention = RecordingRetention(env, name, retain, self._recorder, schemas, self._writing, archives)
        self._inputs = {i.channel: i for i in self.client.inputs}
        if self._sinks or self._recorder is not None:
            self.client.safe = self._safe
        if not self._server_sinks():
            self._goes_on()

    def _open_recorder(self, schemas: Mapping[Channel, Schema]) -> Recorder:
        storage, folder = self._env.storage, client_folder(self.client.plan.name)
        taken = self._take(storage, folder, f"recording {folder}")
        size = segment_bytes(self.client.plan.retain, SEGMENT_BYTES, len(schemas))
        recorder = Recorder(storage, folder, schemas, segment_bytes=size)
        self._adopt(taken, [c for c in schemas if recorder.position(c)[0]])
        return recorder

    def _add_sink(self, spec: Mapping[str, Any], root: Path, schemas: Mapping[Channel, Schema], place: Place) -> None:
        if not isinstance(find_sink(spec["kind"]), Folder):
            sink = open_sink(spec, schemas, place)
            self._sink_names.append(f"sink {sink.name}" if isinstance(sink, ServerSink) else f"sink {spec['kind']}")
        else:
            path = root / str(spec["path"])
            taken = self._take(*place(path), f"sink {path}")
            sink = open_sink({**spec, "path": str(path)}, schemas, place=place)
            self._adopt(taken, [c for c in schemas if sink.reached(c)])
            self._sink_names.append(f"sink {path}")
        self._sinks.append(sink)

    def _server_sinks(self) -> list[ServerSink]:
        return [sink for sink in self._sinks if isinstance(sink, ServerSink)]

    def _take(self, storage: Storage, folder: PurePosixPath, name: str) -> ResultFolder:
        """Locks a folder before anything in it is opened; two sinks of different kinds may share one."""
        if name not in self._folders:
            self._folders[name] = ResultFolder(storage, folder, name, self._queries())
        return self._folders[name]

    def _queries(self) -> dict[Channel, str]:
        """Returns the fingerprint of the query of each channel (U14)."""
        return {c: results_fingerprint(self._plan, c.stream) for c in self.client.channels}

    def _kept(self) -> list[ResultFolder | ServerSink]:
        """Returns the stores of results, which also hold the origin of the results."""
        return [*self._folders.values(), *self._server_sinks()]

    def _adopt(self, folder: ResultFolder, begun: Sequence[Channel]) -> None:
        """Continues results without a fingerprint: somebody removed the file that had it."""
        unlabelled = [str(c) for c in begun if folder.unlabelled(c)]
        if unlabelled:
            channels = ", ".join(unlabelled)
            say(f"{self.client.name}: {folder.name} does not say of which query its {channels} is: continued")

    def _safe(self, channel: Channel) -> int:
        """Returns the id up to which recording and sinks hold every stable tuple, even if the power fails now."""
        positions = [s.position(channel) for s in self._sinks]
        if self._recorder is not None:
            positions.append(self._recorder.synced(channel))
        return min(positions)

    def _goes_on(self) -> None:
        """Continues after the shortest of the recording and the sinks.

        Boundaries are only in the recording.  If a sink holds less, the last boundary is beyond the first missing
        tuple, so it is not used.
        """
        for channel in self.client.channels:
            known, boundary = [s.reached(channel) for s in self._sinks], BEFORE_TIME
            if self._recorder is not None:
                position, frontier = self._recorder.position(channel)
                if position <= min(known, default=position):
                    boundary = frontier
                known.append(position)
            self._stats[channel].goes_on(min(known, default=0), boundary)
            self.client.goes_on(channel, min(known, default=0), boundary, self._kept_origin(channel))

    def _kept_origin(self, channel: Channel) -> str:
        """Returns the origin of a channel's stored results.  Raises SpeError where folders disagree."""
        origins = {o: store.name for store in self._kept() if (o := store.origin(channel))}
        if len(origins) > 1:
            named = ", ".join(f"{name} ({origin})" for origin, name in origins.items())
            raise SpeError(f"{self.client.name}: what is kept of {channel} comes from different source logs: {named}")
        return next(iter(origins), "")

    async def run(self, *, task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED) -> None:
        """Takes changes until cancelled; ``task_status`` gets the address of this process ("" if not served).

        Raises:
          SpeError: the recording or a sink cannot be written; a full disk is no error: the client waits for room.
        """
        try:
            self.client.me.incarnation = await claim(self._env, client_folder(self.client.plan.name) / "incarnation")
            for folder in self._folders.values():
                await self._until_room(folder.name, folder.keep)
            async with trio.open_nursery() as nursery:
                address = ""
                if self._address is not None:
                    service = Service(self.client.name, self.status)
                    self.server = server = Server(self._env, self._plan, self.client.keeper, service, self._injector)
                    address = await nursery.start(self._env.network.serve, self._address, server.handle)
                task_status.started(
                    address
                )  # a sink's server may be away for long, which must not delay other processes
                await self._open_server_sinks()
                await nursery.start(self.client.run)
                nursery.start_soon(self._take_changes)
                if self._recorder is not None:
                    nursery.start_soon(self._make_safe, "recording", SYNC_US, self._sync_recording)
                if self._retention is not None:
                    nursery.start_soon(self._retention.run)
                for name, sink in zip(self._sink_names, self._sinks):
                    commit = partial(sink.commit, self._env.compute)
                    nursery.start_soon(self._make_safe, name, sink.period_us, commit)
        finally:
            for sink in self._server_sinks():
                with trio.move_on_after(GOODBYE_S, shield=True), suppress(SpeError, OSError):
                    await sink.disconnect()
            self.close()

    async def _open_server_sinks(self) -> None:
        """Waits until all servers have reported their positions; only then the starting position is known."""
        if not self._server_sinks():
            return
        for name, sink in zip(self._sink_names, self._sinks):
            if isinstance(sink, ServerSink):
                await self._until_room(name, partial(sink.open, self._env, self._queries(), self.client.name))
        self._goes_on()

    async def _take_changes(self) -> None:
        """Takes changes one by one; sinks wait for their disk outside the event loop."""
        await self._commit()
        async with aclosing(self.client.changes()) as changes:
            async for change in changes:
                await self._keep(change)
        await self._commit()

    async def _keep(self, change: Change) -> None:
        async with self._writing:
            if change.channel not in self._known_origins and (origin := self._inputs[change.channel].origin):
                for store in self._kept():
                    await store.keep({change.channel: origin})
                self._known_origins.add(change.channel)
            self._note(change)
            if (recorder := self._recorder) is not None:
                new = _after(change, *recorder.position(change.channel))
                if new is not None:
                    await self._until_room("recording", partial(_at_once, recorder.write, new))
                await self._until_room("recording", recorder.sync_due)
            if self._tap is not None:
                self._tap(change)
            for name, sink in zip(self._sink_names, self._sinks):
                if not isinstance(sink, ServerSink):
                    await self._until_room(name, partial(self._env.compute.run, partial(sink.write, change)))
                    continue
                sink.write(change)
                if sink.due:
                    await self._until_room(name, partial(sink.commit, self._env.compute))

    async def _until_room(self, name: str, store: Callable[[], Awaitable[None]]) -> None:
        """Stores data, however long it takes; nothing is acknowledged in the meantime.

        Raises:
          SpeError: the store refused it permanently.
        """
        if name not in self._stores:
            self._stores[name] = UntilStored(self._env, f"{self.client.name}: {name}")
        await self._stores[name](store)

    def _announced(self, news: Sequence[Announcement]) -> None:
        """Takes new announcements about X and waits, to be recorded with the next sync."""
        if self._recorder is not None:
            now = self._env.clock.wall_us()
            self._to_record.extend((now, announcement) for announcement in news)

    def _record_announced(self, recorder: Recorder) -> None:
        """Records the waiting announcements.  Raises LogFull, OSError."""
        while self._to_record:
            recorder.announced(*self._to_record[0])
            self._to_record.popleft()

    async def _sync_recording(self) -> None:
        """Syncs the recording.  Raises LogFull, OSError."""
        if (recorder := self._recorder) is not None:
            self._record_announced(recorder)
            await recorder.sync()

    async def _make_safe(self, name: str, period_us: int, sync: Callable[[], Awaitable[None]]) -> None:
        """Syncs periodically, even without new changes: nodes with full buffers may wait for acknowledgements."""
        while True:
            await self._env.clock.sleep(period_us / 1e6)
            async with self._writing:
                await self._until_room(name, sync)

    async def _commit(self) -> None:
        """Syncs everything taken so far, and anything left by an earlier session."""
        async with self._writing:
            if self._recorder is not None:
                await self._until_room("recording", self._sync_recording)
            for name, sink in zip(self._sink_names, self._sinks):
                await self._until_room(name, partial(sink.commit, self._env.compute))

    def _note(self, change: Change) -> None:
        stats = self._stats[change.channel]
        stats.apply(change)
        self._newest.apply(change)
        self._watch.arrived(change.channel, self._producer(change.channel), change.arrived_us)
        stats.switches = self._watch.counts.get(change.channel, 0)

    def _producer(self, channel: Channel) -> str | None:
        main = self._inputs[channel].main
        return None if main is None else main.producer

    def close(self) -> None:
        """Makes everything taken safe, on the first call."""
        if self._recorder is not None:
            with suppress(LogFull, OSError):
                self._record_announced(self._recorder)
            self._recorder.close()
        for sink in self._sinks:
            sink.close()
        self.client.safe = None
        self._sinks, self._recorder = [], None

    def _bounds_from(self, directory: Directory) -> None:
        """Takes the bounds of a directory with other nodes or another X, which delays are relative to."""
        for channel, stats in self._stats.items():
            stats.bound_us = delay_bound_us(self._plan, directory, channel.stream)

    def status(self) -> ClientStatus:
        now = self._env.clock.wall_us()
        return ClientStatus(
            name=self.client.name,
            incarnation=self.client.me.incarnation,
            channels=tuple(stats.status(now, self._producer(channel)) for channel, stats in self._stats.items()),
            switches=tuple(self._watch.switches),
            disk_full={name: store.disk_full for name, store in self._stores.items() if store.disk_full},
            away={name: store.away for name, store in self._stores.items() if store.away},
            unreachable=self.client.unreachable(),
            recording=None if self._retention is None else self._retention.status(),
            newest=self._newest.status(),
        )


async def _at_once(store: Callable[[Change], None], change: Change) -> None:
    store(change)


def _after(change: Change, position: int, frontier: int) -> Change | None:
    """Returns the part of a change that a recording up to ``position`` and the boundary ``frontier`` does not have."""
    element = change.element
    if isinstance(element, Batch) and element.kind is Kind.STABLE and element.from_id < position:
        if element.upto_id <= position:
            return None
        return Change(change.channel, element.after(position), change.arrived_us)
    if isinstance(element, Boundary) and element.kind is Kind.STABLE:
        return None if element.upto_id < position or element.time <= frontier else change
    return change
