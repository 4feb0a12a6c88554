"""Writes rows of a source to a sink of their own: each once, with its number in the source's log (rule E8).

The rows are in the log, so nothing else has to be durable: the sink knows its last number, and continues after it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import trio

from replicas.client.result_folder import ResultFolder
from replicas.connectors.server_sink import FORGET, GOODBYE_S, ServerSink
from replicas.connectors.sink import Sink
from replicas.connectors.sink_registry import Place, open_sink
from replicas.link.signal import Signal
from spe.connectors import find_sink
from spe.connectors.files import Folder
from spe.errors import SpeError
from spe.plan.plan import Plan, Source
from spe.plan.results import results_fingerprint
from spe.runtime.env import Env
from spe.runtime.log_line import Level, say
from spe.runtime.retried_store import UntilStored
from spe.stream.batch import Batch
from spe.stream.change import Change
from spe.stream.ids import Channel
from spe.stream.names import StreamId
from spe.stream.schema import Schema


class RowsInLog(Protocol):
    """The rows of a log that go to a sink.

    Attributes:
      what: kind of the rows: ``late``, ``rejected``.
      schema: schema of these rows.
      spec: configuration of the sink, as in ``ClientSettings.sinks``.
      base: number of the last row before the log.
    """

    @property
    def what(self) -> str: ...

    @property
    def schema(self) -> Schema: ...

    @property
    def spec(self) -> Mapping[str, Any]: ...

    @property
    def base(self) -> int: ...

    async def after(self, position: int) -> Sequence[Batch]:
        """Returns the next rows after a number, in consecutive batches, some of which may have no rows; empty: no more
        yet.
        """
        ...

    def needed(self, position: int) -> int:
        """Returns the id up to which the log is not needed, if the rows up to a number are written."""
        ...


class OwnSink:
    """Writes late or rejected rows of a source to their sink, each once.

    Args:
      identity: identity of the log.
      place: opens the storage of a sink's folder.
      root: base folder of relative paths.
      safe: called with the id up to which this sink no longer needs the log.

    Attributes:
      why: why nothing is written now; "" while it is.
    """

    def __init__(
        self,
        env: Env,
        plan: Plan,
        source: Source,
        rows: RowsInLog,
        identity: str,
        place: Place,
        root: Path,
        safe: Callable[[int], None],
    ) -> None:
        self._env = env
        self._rows = rows
        self._identity = identity
        self._channel = channel = own_channel(source.stream, rows.what)
        self._who = f"source {source.stream}: {rows.what} rows"
        self._safe = safe
        self._queries = {channel: results_fingerprint(plan, source.stream)}
        self._folder: ResultFolder | None = None
        spec, schemas = dict(rows.spec), {channel: rows.schema}
        if isinstance(find_sink(spec["kind"]), Folder):
            path = root / str(spec["path"])
            self._folder = ResultFolder(*place(path), f"sink {path}", self._queries)
            spec["path"] = str(path)
        self._sink: Sink = open_sink(spec, schemas, place=place)
        self._until_stored = UntilStored(env, self._who)
        self._failed = ""
        safe(rows.needed(0))

    @property
    def why(self) -> str:
        return self._failed or self._until_stored.disk_full or self._until_stored.away

    async def run(self, signal: Signal) -> None:
        """Writes until cancelled, or until sink or log refuses permanently; then ``why`` has the reason, and the log is
        kept.

        Args:
          signal: woken when elements are published.
        """
        try:
            await self._open()
            await self._write_on(signal)
        except (SpeError, OSError) as error:  # also where the log cannot be read
            self._failed = str(error).removeprefix(f"{self._who} ")
            self._env.trace.event(f"{self._rows.what}_rows_failed", why=str(error))
            text = f"{self._who} are not written any more: {self._failed}"
            say(text, Level.ERROR, event=f"{self._rows.what}_rows_failed")
        finally:
            if isinstance(self._sink, ServerSink):
                with trio.move_on_after(GOODBYE_S, shield=True), suppress(SpeError, OSError):
                    await self._sink.disconnect()
            self._sink.close()

    async def _open(self) -> None:
        origin, sink = self._identity, self._sink
        if isinstance(sink, ServerSink):
            await self._until_stored(partial(sink.open, self._env, self._queries, self._who))
            known = sink.origin(self._channel)
        else:
            assert self._folder is not None
            known = self._folder.origin(self._channel)
        if known and known != origin:
            what = self._rows.what
            raise SpeError(
                f"the sink holds {what} rows of another log ({known}) than that of the source ({origin}); "
                f"let it begin anew: {FORGET}"
            )
        if isinstance(sink, ServerSink):
            await sink.keep({self._channel: origin})
        elif self._folder is not None:
            await self._until_stored(partial(self._folder.keep, {self._channel: origin}))

    async def _write_on(self, signal: Signal) -> None:
        sink, channel, clock = self._sink, self._channel, self._env.clock
        # Deleted rows had been read before: the log is kept until the sink has its rows.
        position = max(sink.reached(channel), self._rows.base)
        while True:
            token = signal.token()
            until_us = clock.monotonic_us() + sink.period_us
            while (left_us := until_us - clock.monotonic_us()) > 0:
                batches = await self._rows.after(position)
                for batch in batches:
                    change = Change(channel, batch, clock.wall_us())
                    await self._until_stored(partial(self._take, change))
                    position = batch.upto_id
                if batches:
                    token = signal.token()
                    await clock.sleep(0)
                    if isinstance(sink, ServerSink) and sink.due:
                        break
                else:
                    await clock.wait(signal, token, left_us / 1e6)
                    token = signal.token()
            await self._until_stored(partial(sink.commit, self._env.compute))
            self._safe(self._rows.needed(position))

    async def _take(self, change: Change) -> None:
        if isinstance(self._sink, ServerSink):
            self._sink.write(change)
        else:
            await self._env.compute.run(partial(self._sink.write, change))


def own_channel(stream: StreamId, what: str) -> Channel:
    """Returns the channel as which these rows are written."""
    return Channel(StreamId(f"{stream}.{what}"), 0)
