"""Readers of an output of a running cluster: the driver decides on positions, tasks fetch the part between two.

Spark makes a reader for the driver's part of a query, and others to be sent to tasks; a connection is opened on demand
only.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
import trio
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from replicas.client.background import Background
from replicas.client.buffer import ChangeBuffer
from replicas.client.client import FEW_CHANGES, Client
from replicas.client.excerpt import Excerpt
from replicas.client.positions import OutputPositions
from replicas.link.signal import Signal
from replicas.spark.live import LiveOutput
from replicas.spark.offsets import Offset, ahead, offset_of, start_of
from replicas.spark.pieces import APART, Fetched, Piece, piece_of, read_piece
from spe.errors import NotReachable, SpeError
from spe.plan.directory import Directory
from spe.stream.times import BEFORE_TIME

#: Maximum number of portions of changes that the driver keeps while Spark works on one.
_PORTIONS: Final = 4


class Positions:
    """The driver's connection to the nodes: position of the output, its servers, and acknowledgements."""

    def __init__(self, output: LiveOutput, after: int = 0, *, acknowledges: bool = True) -> None:
        self._output = output
        self._origins: dict[int, str] = {}
        positions = OutputPositions(
            output.env(),
            output.plan,
            output.directory,
            output.what.client,
            output.stream,
            token=output.token(),
            after=after,
            acknowledges=acknowledges,
        )
        self.incarnation = positions.incarnation
        self._nodes = positions
        self.background = Background(positions.run)
        try:
            self.call(positions.heard_of_all, waits_for=f"some partition of {output.stream} was served by nobody")
        except BaseException:
            self.stop()
            raise

    def call(self, function: Callable[..., Any], *arguments: object, waits_for: str) -> Any:
        """Calls a function in the background.  Raises SpeError if it takes longer than the user's patience."""
        try:
            return self.background.call(function, *arguments, seconds=self._output.what.patience, waits_for=waits_for)
        except SpeError as error:
            if isinstance(error, NotReachable) and (why := self.background.ask(self._nodes.in_use)):
                patience = self._output.what.patience
                raise SpeError(f"{why}; it was so for {patience:g} s (option patience)") from None
            answers = self.background.ask(self._nodes.said)
            tried = ", ".join(f"{who}: {what}" for who, what in answers.items())
            raise type(error)(
                f"{self._nodes.name} of cluster {self._output.plan.cluster!r}: {error} (tried {tried})"
            ) from None

    def first(self) -> dict[int, int]:
        """Returns the beginning of a query without a checkpoint."""
        begin = self._output.what.begin
        none = dict(self._output.nowhere().ids)
        if begin == "first":
            return none
        if begin == "now":
            return none | self.latest()
        return none | {p: max(0, first - 1) for p, first in self.background.ask(self._nodes.oldest).items()}

    def latest(self) -> dict[int, int]:
        return self.background.ask(self._nodes.latest)

    def states(self) -> dict[int, str]:
        return self.background.ask(self._nodes.states)

    def acknowledge(self, at: Offset) -> None:
        self.background.ask(lambda: self._nodes.acknowledge(at.ids, at.origins))

    def finish(self) -> None:
        """Waits until acknowledgements have arrived, or a node does not answer.  Raises SpeError as :meth:`check`."""
        with suppress(NotReachable):
            self.call(self._nodes.told, waits_for="nobody heard what was acknowledged")

    def check(self) -> None:
        """Raises SpeError if the query must not continue."""
        self.background.ask(self._nodes.check)

    def directory(self) -> Directory:
        """Returns the newest directory received from the nodes."""
        return self.background.ask(lambda: self._nodes.directory)

    def origins(self, at: Offset) -> dict[int, str]:
        """Returns the origins of the tuples, by partition, as far as known; each is asked for once.

        Raises SpeError where a partition does not continue the part read up to ``at``.
        """
        for channel in self._output.channels:
            p = channel.partition
            if p not in self._origins and (
                origin := self.call(
                    self._nodes.origin,
                    channel,
                    at.ids[p],
                    at.origins.get(p, ""),
                    self._output.what.patience,
                    waits_for=f"no replica said from which source logs {channel} comes",
                )
            ):
                self._origins[p] = origin
        return dict(self._origins)

    def stop(self) -> None:
        self.background.stop()


class LiveReader(DataSourceReader):
    """Reads everything that is stable now, in one piece per partition; nothing is acknowledged."""

    def __init__(self, output: LiveOutput) -> None:
        self._output = output

    def partitions(self) -> Sequence[InputPartition]:
        positions = Positions(self._output, acknowledges=False)
        try:
            start = replace(self._output.nowhere(), ids=positions.first())
            start = replace(start, origins=positions.origins(start))
            return _excerpts(start, _all_known(positions.latest(), start), positions.directory())
        finally:
            positions.stop()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Piece)
        return read_piece(self._output, partition)


class _Streaming(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The common part of both modes."""

    def __init__(self, output: LiveOutput) -> None:
        self._output = output

    def __getstate__(self) -> dict[str, Any]:
        return {"_output": self._output}  # copies for tasks have no connection

    #: Connected on first use.
    _connected: Positions | None = None

    def _positions(self, at: Offset | None = None) -> Positions:
        if self._connected is None:
            self._connected = Positions(self._output, 0 if at is None else at.incarnation)
        return self._connected

    def _place(self, data: Mapping[str, Any]) -> Offset:
        return offset_of(data, self._output.nowhere())

    def _span(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> tuple[Offset, Offset]:
        last = self._place(end)
        return start_of(self._place(start), last), last

    def initialOffset(self) -> dict[str, Any]:
        """Spark also asks for it when a checkpoint has an end of the first batch, which then counts: whether the data
        are still available is seen when the first batch is planned."""
        ids = self._positions().first()
        return replace(self._output.nowhere(), ids=ids, begins=ids).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._output.what.rows)

    def _nothing_after(self, start: dict[str, Any]) -> dict[str, Any]:
        """Returns ``start``: Spark commits a batch when it has planned the next one, and the nodes may have room for
        this batch only.  A request for the next one shows that this one is finished."""
        self.commit(start)
        return start

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Piece)
        return read_piece(self._output, partition)

    def stop(self) -> None:
        if self._connected is not None:
            self._connected.stop()


class StableReader(_Streaming):
    """Reads stable tuples: an offset holds ids, which mean the same at every server, so each is read exactly once."""

    _until: Mapping[int, int] | None = None
    _ends = False
    #: End of the last micro-batch.
    _reached: Mapping[int, int] | None = None

    def prepareForTriggerAvailableNow(self) -> None:
        self._ends = True  # the end is known when Spark names the beginning

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        at = self._place(start)
        positions = self._positions(at)
        known = replace(at, origins=positions.origins(at), incarnation=positions.incarnation)
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        latest: Mapping[int, int] = positions.latest()
        if self._ends:
            self._until = latest = _all_known(latest, known) if self._until is None else self._until
        self._reached = ids = ahead(at.ids, _known(latest, known), rows)
        if ids == dict(at.ids):
            nothing = self._nothing_after(start)
            if self._ends:
                positions.finish()  # Spark ends our process at once
            return nothing
        return replace(known, ids=ids).to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        if self._connected is None:
            return None
        latest, reached = self._connected.latest(), self._reached or {}
        return {
            "ids": {str(p): latest[p] for p in sorted(latest)},
            "backlog": sum(max(0, last - reached.get(p, 0)) for p, last in latest.items()),
            "states": {str(p): s for p, s in sorted(self._connected.states().items())},
        }

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        first, last = self._span(start, end)
        directory = self._positions(last).directory()
        return _excerpts(replace(first, origins=last.origins), last.ids, directory)

    def commit(self, end: dict[str, Any]) -> None:
        place = self._place(end)
        self._positions(place).acknowledge(place)


class _Session:
    """A client in the driver, from one position on, and its received elements.  It acknowledges nothing."""

    def __init__(self, output: LiveOutput, start: Offset) -> None:
        self.name = secrets.token_hex(8)
        self._room = Signal()
        what, directory = output.what, output.directory
        self._client = Client(
            output.env(),
            output.plan,
            directory,
            what.client,
            token=output.token(),
            channels=output.channels,
            acknowledges=False,
            waiting=FEW_CHANGES,
        )
        for channel in output.channels:
            p = channel.partition
            self._client.goes_on(channel, start.ids[p], BEFORE_TIME, start.origins.get(p, ""))
        self._buffer = ChangeBuffer(output.channels, start.ids, start.change, _PORTIONS * what.rows, _now_us())
        self.background = Background(self._run)

    async def _run(self, *, task_status: trio.TaskStatus[None]) -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(self._client.run)
            task_status.started()
            async with aclosing(self._client.changes()) as changes:
                async for change in changes:
                    self._buffer.add(change)
                    while self._buffer.full:
                        await self._room.wait(self._room.token())

    def ask(self, function: Callable[[ChangeBuffer], Any]) -> Any:
        """Calls a function with the buffer.  Raises the error that ended the session."""
        return self.background.ask(lambda: function(self._buffer))

    def drop(self, upto: int) -> None:
        """Drops the committed part."""

        def dropped(buffer: ChangeBuffer) -> None:
            buffer.drop(upto)
            self._room.wake()

        self.ask(dropped)


class ChangesReader(_Streaming):
    """Reads all changes: stable tuples exactly once; tentative ones once, and withdrawn first after a restart.

    They pass through the driver, since no node can send tentative tuples a second time.  A second request for the
    portion of an earlier session gets an undo and its stable tuples.
    """

    _session: _Session | None = None

    def prepareForTriggerAvailableNow(self) -> None:
        raise SpeError("mode changes has no end: use trigger(processingTime=…), or mode stable with availableNow")

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        at = self._place(start)
        positions = self._positions(at)
        positions.check()
        origins = positions.origins(at)
        if len(origins) < len(at.ids):
            return start
        if self._session is None:
            self._session = _Session(self._output.by(positions.directory()), replace(at, origins=origins))
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        portion = self._session.ask(lambda buffer: buffer.portion(at.change, rows, _now_us()))
        if portion is None:
            return self._nothing_after(start)
        end = replace(
            at,
            ids=portion.ids,
            origins=origins,
            incarnation=positions.incarnation,
            session=self._session.name,
            change=portion.number,
        )
        return end.to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        if self._session is None:
            return None
        counts = self._session.ask(lambda b: (b.backlog(), b.tentative, b.undone))
        states = {str(p): s for p, s in sorted(self._positions().states().items())}
        return {**dict(zip(("backlog", "tentative", "undone"), counts)), "states": states}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        first, last = self._span(start, end)
        if self._session is None or last.session != self._session.name:
            begin, directory = replace(first, origins=last.origins), self._positions(last).directory()
            return [_again(begin, last, channel.partition, directory) for channel in self._output.channels]
        numbered = self._session.ask(lambda buffer: buffer.changes(first.change, last.change))
        pieces = []
        for channel in self._output.channels:
            if mine := [change for change in numbered if change.change.channel == channel]:
                pieces.append(piece_of(self._output, channel.partition, mine))
        return pieces

    def commit(self, end: dict[str, Any]) -> None:
        place = self._place(end)
        self._positions(place).acknowledge(place)
        if self._session is not None:
            self._session.drop(place.change)

    def stop(self) -> None:
        if self._session is not None:
            self._session.background.stop()
        super().stop()


def _now_us() -> int:
    return time.time_ns() // 1000


def _known(ids: Mapping[int, int], at: Offset) -> dict[int, int]:
    """Selects partitions with known source logs: ids of others may turn out to mean something else."""
    return {p: i for p, i in ids.items() if p in at.origins}


def _all_known(ids: Mapping[int, int], at: Offset) -> dict[int, int]:
    """Works the same for a last request.  Raises NotReachable if a partition with tuples would be left out."""
    known = _known(ids, at)
    for p in sorted(ids.keys() - known.keys()):
        if ids[p] > at.ids[p]:
            raise NotReachable(f"no replica of {at.output}/{p} says now from which source logs it comes: try again")
    return known


def _excerpts(start: Offset, ids: Mapping[int, int], directory: Directory) -> list[InputPartition]:
    return [Piece(p, (_excerpt(start, p, ids[p]),), directory) for p in sorted(ids) if ids[p] > start.ids[p]]


def _excerpt(start: Offset, p: int, upto_id: int) -> Excerpt:
    return Excerpt(start.output, p, start.ids[p], upto_id, start.origins.get(p, ""))


def _again(start: Offset, end: Offset, p: int, directory: Directory) -> Piece:
    """Returns a portion of an earlier session."""
    fetched = Fetched((start.change + 1) * APART, _now_us(), _excerpt(start, p, end.ids[p]))
    return Piece(p, (fetched,), directory)
