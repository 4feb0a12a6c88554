"""Late rows of a source, in a sink of their own: each once, with its id in the source's log (rule E7).

They are found in the log, so nothing else has to be durable: a sink that holds those up to some id goes on behind it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from replicas.client.result_folder import ResultFolder
from replicas.connectors.server_sink import ServerSink
from replicas.connectors.sink import Sink
from replicas.connectors.sink_registry import Place, open_sink
from replicas.link.signal import Signal
from replicas.source.proxy import SourceProxy
from spe.connectors import find_sink
from spe.connectors.files import Folder
from spe.errors import LogFull, ServerAway, SpeError
from spe.plan.plan import Plan, Source
from spe.plan.results import results_fingerprint
from spe.runtime.disk_trouble import DISK_RETRY_US, DiskTrouble, is_full
from spe.runtime.env import Env
from spe.runtime.log_line import Level, say
from spe.runtime.server_trouble import Backoff, ServerTrouble
from spe.stream.batch import Batch, Column, Rows
from spe.stream.change import Change
from spe.stream.ids import Channel
from spe.stream.names import StreamId
from spe.stream.schema import Attribute, AttributeType, Schema
from spe.stream.times import END_OF_TIME

#: The attribute by how much a row was late, microseconds.
LATE_US: Final = "_late_us"
_READ_BYTES: Final = 1 << 20


def late_channel(stream: StreamId) -> Channel:
    """As which late rows of a source are written."""
    return Channel(StreamId(f"{stream}.late"), 0)


def late_schema(schema: Schema) -> Schema:
    """Of these rows: what the source has, and LATE_US."""
    return Schema((*schema, Attribute(LATE_US, AttributeType.INT64, nullable=False)))


def late_rows(batch: Batch, time: int) -> Batch:
    """The rows of a batch that S1 gave a later time than their own; it covers the same ids.

    Args:
      time: index of the attribute with the event time.
    """
    by_us = batch.rows.time - batch.rows.columns[time].values
    found = batch.select(by_us > 0)
    late_us = Column(np.ascontiguousarray(by_us[by_us > 0]))
    rows = Rows(found.rows.time, found.rows.t_max, (*found.rows.columns, late_us))
    return Batch(found.kind, found.from_id, found.upto_id, found.ids, rows)


class LateRows:
    """Writes the late rows of one source.

    Args:
      place: the storage of a sink's folder.
      root: folder that relative paths start from.
      safe: called with the id up to which the log is not needed any more for this.

    Attributes:
      why: why it does not write now; "" while it does.
    """

    def __init__(
        self,
        env: Env,
        plan: Plan,
        source: Source,
        proxy: SourceProxy,
        place: Place,
        root: Path,
        safe: Callable[[int], None],
    ) -> None:
        assert source.late is not None
        assert source.time is not None
        self._env = env
        self._proxy = proxy
        self._time = source.schema.index(source.time)
        self._channel = channel = late_channel(source.stream)
        self._who = f"source {source.stream}: late rows"
        self._safe = safe
        self._queries = {channel: results_fingerprint(plan, source.stream)}
        self._folder: ResultFolder | None = None
        spec, schemas = dict(source.late), {channel: late_schema(source.schema)}
        if isinstance(find_sink(spec["kind"]), Folder):
            path = root / str(spec["path"])
            self._folder = ResultFolder(*place(path), f"sink {path}", self._queries)
            spec["path"] = str(path)
        self._sink: Sink = open_sink(spec, schemas, place=place)
        self._disk = DiskTrouble(env, self._who)
        self._server = ServerTrouble(env, self._who)
        self._failed = ""

    @property
    def why(self) -> str:
        return self._failed or self._disk.why or self._server.why

    async def run(self, signal: Signal) -> None:
        """Writes until cancelled, or until the sink refuses for good; then ``why`` says so, and the log is kept.

        Args:
          signal: is woken when something was published.
        """
        try:
            await self._open()
            await self._write_on(signal)
        except SpeError as error:
            self._failed = str(error)
            self._env.trace.event("late_rows_failed", why=str(error))
            say(f"{self._who} are not written any more: {error}", Level.ERROR, event="late_rows_failed")
        finally:
            self._sink.close()

    async def _open(self) -> None:
        origin, sink = self._proxy.identity, self._sink
        if isinstance(sink, ServerSink):
            await self._until_done(partial(sink.open, self._env, self._queries, self._who))
            known = sink.origin(self._channel)
        else:
            assert self._folder is not None
            known = self._folder.origin(self._channel)
        if known and known != origin:
            raise SpeError(f"the sink holds late rows of another log ({known}) than that of the source ({origin})")
        if isinstance(sink, ServerSink):
            await sink.keep({self._channel: origin})
        elif self._folder is not None:
            await self._until_done(partial(self._folder.keep, {self._channel: origin}))

    async def _write_on(self, signal: Signal) -> None:
        sink, channel, clock = self._sink, self._channel, self._env.clock
        # What was deleted had been looked at: the log is kept until the sink has it.
        position = max(sink.reached(channel), self._proxy.base_id)
        while True:
            token = signal.token()
            until_us = clock.monotonic_us() + sink.period_us
            while (left_us := until_us - clock.monotonic_us()) > 0:
                batches = [e for e in self._proxy.read_from(position, END_OF_TIME, _READ_BYTES) if isinstance(e, Batch)]
                for batch in batches:
                    change = Change(channel, late_rows(batch, self._time), clock.wall_us())
                    await self._until_done(partial(self._take, change))
                    position = batch.upto_id
                if batches:
                    token = signal.token()
                    await clock.sleep(0)
                    if isinstance(sink, ServerSink) and sink.due:
                        break
                else:
                    await clock.wait(signal, token, left_us / 1e6)
                    token = signal.token()
            await self._until_done(partial(sink.commit, self._env.compute))
            self._safe(position)

    async def _take(self, change: Change) -> None:
        if isinstance(self._sink, ServerSink):
            self._sink.write(change)
        else:
            await self._env.compute.run(partial(self._sink.write, change))

    async def _until_done(self, store: Callable[[], Awaitable[None]]) -> None:
        """Tries again while the disk is full, or the server away.  Raises SpeError where it is refused for good."""
        backoff = Backoff(self._env)
        while True:
            try:
                await store()
            except ServerAway as error:
                self._server.met(error)
                await backoff.wait()
            except (OSError, LogFull) as error:
                if not is_full(error):
                    raise SpeError(f"the sink cannot be written: {error}") from error
                self._disk.met(error)
                await self._env.clock.sleep(DISK_RETRY_US / 1e6)
            else:
                self._disk.over()
                self._server.over()
                return
