"""The source proxy takes rows in at the pace of their input, logs them, and serves them from any id on.

Slow consumers are served from the log, so nothing is buffered for them and they do not slow a source down.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import PurePosixPath
from typing import Final

import numpy as np
import trio

from replicas.connectors import Live, Replay, Resumable, RowChunk, open_reader
from replicas.retention.archiving import OpenArchive
from replicas.retention.holders import segment_bytes
from replicas.source.admission import Admission
from replicas.source.history import TAIL_BYTES, SourceHistory
from replicas.source.live_source import LivePlay
from replicas.source.pacing import AtSpeed, pace_of
from replicas.source.retention import NOTHING_HELD, Retained, SourceRetention
from replicas.source.stamping import peaks_of
from replicas.source.writer import RECORD_ROWS_BYTES, Publish, SourceWriter
from spe.errors import SpeError, leaves
from spe.log import SEGMENT_BYTES, Record, SegmentedLog
from spe.log.log_start import read_kept
from spe.log.origin import identify, read_identity
from spe.log.rejected_rows import REJECTED
from spe.log.source_log import SourceState, decode_source_state, source_folder
from spe.plan.describe import show_duration
from spe.plan.plan import Source
from spe.runtime.env import Env
from spe.status import SourceLogStatus
from spe.stream.batch import Batch, Element, Rows
from spe.stream.names import Kind
from spe.stream.strings import StringPool
from spe.stream.times import BEFORE_TIME, END_OF_TIME, SECOND, floor_to, format_timestamp, saturating_add

#: Shortest sleep between two releases.
_RELEASE_US: Final = 5_000
#: Tuples that become due within this time are sent together, unless a boundary is due earlier: consumers wait for the
#: boundary anyhow, and each message costs every consumer 50 to 100 µs.
_TOGETHER_US: Final = 25_000
#: A replay whose first tuple is due later than this is reported, because the run looks stuck.
_LONG_WAIT_US: Final = 10_000_000


class SourceProxy:
    """One source stream: its reader, its durable log, and its published tuples.

    Made by :meth:`open`; :meth:`run` takes the input in.  Reading (:meth:`read_from`) is possible at any time.

    Attributes:
      identity: identity of the log (rule S6).
      note: a note for users who wait for the first tuple; "" without one.
      fault: why the intake has stopped; None while it runs.  The logged tuples can still be read.
    """

    def __init__(self, env: Env, source: Source, log: SegmentedLog, writer: SourceWriter, identity: str) -> None:
        self._env = env
        self._source = source
        self._log = log
        self._writer = writer
        self._admission = Admission(env, source, writer.reject)
        self._pool = StringPool()
        self._intake = trio.CancelScope()
        self._live_reader: Live | None = None
        self.identity = identity
        self.note = ""
        self._on_note: Callable[[str], None] = lambda note: None
        self.fault: SpeError | None = None
        writer.on_note = self._tell

    @classmethod
    async def open(
        cls,
        env: Env,
        source: Source,
        folder: PurePosixPath | None = None,
        *,
        begun_us: int | None = None,
        tail_bytes: int = TAIL_BYTES,
        signature: str = "",
    ) -> SourceProxy:
        """Opens the log, cuts a torn tail, and continues after its last acknowledged record.

        Args:
          folder: folder of the log, relative to the storage root.
          begun_us: wall clock at which the replay begins; equal for all sources of a run, to keep them in step. None:
            now.  After a restart it is read from the log.
          signature: signature of the configuration, for a new log (``spe.log.origin``).
          tail_bytes: bytes of recent tuples kept in memory; consumers further behind are served from the log.

        Raises:
          LogError, LogCorrupt: the log is in use or damaged.
          SpeError: the log has a stream of another schema.
        """
        folder = folder if folder is not None else source_folder(source.stream)
        history = SourceHistory(source.schema, tail_bytes, read_kept(env.storage, folder).last_id, env.clock.step_ns)
        state = SourceState()

        def visit(record: Record) -> None:
            nonlocal state
            state = decode_source_state(record.body)
            history.add(state, record.position, None)

        read_identity(env.storage, folder)  # before a new log is made
        size = segment_bytes(source.retain, SEGMENT_BYTES)
        log = await SegmentedLog.open(env.storage, folder, visit, segment_bytes=size)
        identity = await identify(env.storage, folder, env.random, signature)
        await _check_schema(env, source, folder)
        writer = SourceWriter(env, source, log, state, history)
        if state.begun_us == BEFORE_TIME and begun_us is not None:
            writer.begun_us = begun_us
        history.frontier_us = _promised_us(source, state)
        last_id, epoch = state.last_id, log.epoch
        env.trace.event("source_opened", stream=source.stream, last_id=last_id, epoch=epoch, identity=identity)
        return cls(env, source, log, writer, identity)

    @property
    def base_id(self) -> int:
        """Id of the last tuple before the log; 0 while nothing was deleted."""
        return self._writer.history.base_id

    @property
    def last_id(self) -> int:
        """Id of the last published tuple."""
        return self._writer.history.last_id

    @property
    def frontier(self) -> int:
        """Last published boundary, microseconds; END_OF_TIME when the stream is complete."""
        return self._writer.history.frontier_us

    @property
    def ended(self) -> bool:
        return self.frontier >= END_OF_TIME

    @property
    def consumed(self) -> int:
        """Number of the reader's rows that the log accounts for."""
        return self._writer.consumed

    async def settled(self, consumed: int) -> None:
        """Waits until the log accounts for so many rows of the reader."""
        await self._writer.settled(consumed)

    @property
    def disk_full(self) -> str:
        """Why nothing can be logged while the disk is full; "" otherwise."""
        return self._writer.disk_full

    @property
    def away(self) -> str:
        """Why the reader's server cannot be read now; "" while it can."""
        return "" if self._live_reader is None else self._live_reader.away

    def retention(self, open_archive: OpenArchive, consumers: Iterable[str]) -> SourceRetention:
        """Makes the task that deletes the oldest part of the log, if ``retain`` is configured."""
        assert self._source.retain is not None
        history = self._writer.history
        return SourceRetention(self._env, self._source, self._log, history, self.identity, open_archive, consumers)

    def status(self, held: Retained = NOTHING_HELD) -> SourceLogStatus:
        """Returns the status of the log.

        Args:
          held: holders of segments that are due.
        """
        beginning = self._log.kept
        return SourceLogStatus(
            first_id=beginning.last_id + 1,
            first_us=beginning.until_us if beginning.first > 1 else None,
            bytes=self._log.nbytes,
            held=held.holders,
            archive=held.trouble,
            identity=self.identity,
            last_id=self.last_id,
            frontier=self.frontier,
            ended=self.ended,
            note=self.note,
            # Without the name of the source, which precedes it anyhow.
            fault=None if self.fault is None else str(self.fault).removeprefix(f"source {self._source.stream}: "),
            malformed=self._admission.malformed_count,
            refused_ahead=self._admission.refused_count,
            late=self._writer.late_count,
            late_by_us=self._writer.late_by_us,
        )

    def read_from(self, after_id: int, after_us: int = BEFORE_TIME, limit_bytes: int = 256 << 10) -> list[Element]:
        """Returns the elements after tuple ``after_id`` and boundary ``after_us``: batches, then a boundary if it is
        new.

        Empty when there is nothing yet; ``publish`` reports new elements.

        Raises:
          LogCorrupt: the log has been damaged since it was written.
        """
        return self._writer.history.read_from(self._log, after_id, after_us, limit_bytes)

    async def rejected_after(self, number: int) -> list[Batch]:
        """Returns the rejected rows that follow a number; a batch without rows if they were deleted; [] if there are
        none.

        Raises:
          LogCorrupt: the log has been damaged since it was written.
        """
        history, batches, at = self._writer.history, list[Batch](), None
        while number < (upto := history.rejected):
            batches, at = history.rejected_after(self._log, number, at)
            if batches:
                break
            if at is None:
                return [Batch(Kind.STABLE, number, upto, np.empty(0, np.int64), Rows.empty(REJECTED))]
            await self._env.clock.sleep(0)
        return batches

    def needed_for_rejected(self, number: int) -> int:
        """Returns the id up to which the log may be deleted if the rejected rows after a number are needed."""
        return self._writer.history.needed_for_rejected(number)

    def close(self) -> None:
        self._log.close()

    async def run(
        self,
        publish: Publish | None = None,
        on_note: Callable[[str], None] = lambda note: None,
        reader: Live | Replay | None = None,
    ) -> None:
        """Takes rows in until the input ends, or until ``fault`` has the reason why it cannot go on.

        Args:
          publish: called, in order, with elements that have just become durable; must not block.
          on_note: called with each new ``note``.
          reader: replaces the configured reader.
        """
        self._on_note = on_note
        if publish is not None:
            self._writer.publish = publish
        if self.ended:
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._take_in, reader)
            try:
                await self._writer.commit()
            except SpeError as error:
                self._fail(error)
            nursery.cancel_scope.cancel()
        self._env.trace.event("source_stopped", stream=self._source.stream, last_id=self.last_id, fault=self.fault)

    async def _take_in(self, replacement: Live | Replay | None) -> None:
        writer = self._writer
        with self._intake:
            try:
                if writer.begun_us == BEFORE_TIME:
                    writer.begun_us = writer.now_us()
                start_us = writer.begun_us if writer.origin_us == BEFORE_TIME else writer.origin_us
                reader = open_reader(self._source, start_us) if replacement is None else replacement
                if isinstance(reader, Replay):
                    await self._replay(reader)
                else:
                    self._live_reader = reader
                    if isinstance(reader, Resumable):
                        reader.now_us = writer.now_us
                        reader.admit = partial(self._admission.admit, ahead_us=self._source.ahead_us)
                    if not reader.continues:
                        writer.counts_anew()
                    await self._live().run(reader)
                writer.end()
            except* (SpeError, OSError) as group:  # including errors of a live reader's tasks
                self._fail(self._said(next(leaves(group))))
        writer.close()

    def _tell(self, note: str) -> None:
        self.note = note
        if note:
            self._on_note(note)

    def _said(self, error: BaseException) -> SpeError:
        return error if isinstance(error, SpeError) else SpeError(f"source {self._source.stream}: {error}")

    def _fail(self, error: SpeError) -> None:
        """Stops the intake.  Appended rows are still synced and published if the disk allows."""
        if self.fault is None:
            self.fault = error
            self._env.trace.event("source_failed", stream=self._source.stream, error=str(error))
        self._intake.cancel()

    # -- replayed input ---------------------------------------------------------------------------------------

    async def _replay(self, reader: Replay) -> None:
        """Plays chunk by chunk with the next one at hand, because its first event time may be leased."""
        chunks = reader.chunks(self._writer.consumed)
        chunk = await self._next_chunk(chunks)
        paced = False
        while chunk is not None:
            if len(chunk) and not paced:
                self._set_pace(reader, chunk)
                paced = True
            following = await self._next_chunk(chunks)
            await self._play(chunk, following)
            chunk = following
        if self._admission.stopped is not None:  # after the good rows before it
            raise self._admission.stopped

    async def _next_chunk(self, chunks: Iterator[RowChunk]) -> RowChunk | None:
        """Returns the next chunk with good rows; None at the end of the input, or where a malformed row stops it.

        A chunk with only rejected rows is returned if they are to be logged.
        """
        while self._admission.stopped is None:
            chunk = await self._env.compute.run(lambda: next(chunks, None))
            if chunk is None:
                return None
            chunk = self._checked(chunk, None)  # a generator may be ahead of the clock
            if len(chunk) or self._writer.holds_rejected:
                return chunk
        return None

    def _set_pace(self, reader: Replay, chunk: RowChunk) -> None:
        """Sets the pace of the first start, even after a restart: rows missed while stopped are due at once."""
        writer, replay = self._writer, self._source.replay
        if writer.origin_us == BEFORE_TIME:
            configured_us: int | None = replay.get("origin_us")
            first = writer.begun_us if chunk.events is None else int(chunk.events[0])
            known = first if reader.origin_us is None else reader.origin_us
            writer.origin_us = known if configured_us is None else configured_us
        writer.pace = pace_of(replay, writer.origin_us, writer.begun_us)
        if chunk.events is None and isinstance(writer.pace, AtSpeed):
            raise SpeError(
                f"source {self._source.stream}: replay.speed needs event times, but `time` names no attribute; "
                "give replay.rate or replay.max"
            )
        if not writer.last_id and isinstance(writer.pace, AtSpeed) and chunk.events is not None:
            self._note_wait(int(chunk.events[0]))
        if writer.last_id:
            # Where the wall clock was set back, logged tuples must not be waited for again.
            ahead_us = writer.pace.next_us(writer.max_event_us, writer.last_id - 1) - writer.now_us()
            if ahead_us > 0:
                writer.begun_us -= ahead_us
                writer.pace = pace_of(replay, writer.origin_us, writer.begun_us)

    def _note_wait(self, first_us: int) -> None:
        writer = self._writer
        wait_us = writer.pace.next_us(first_us, 0) - writer.now_us()
        if wait_us > _LONG_WAIT_US:
            speed = float(self._source.replay.get("speed") or 1.0)
            unit = SECOND if wait_us < 120 * SECOND else 60 * SECOND
            self._tell(
                f"{self._source.stream}: first tuple {format_timestamp(first_us)} is due in "
                f"{show_duration(floor_to(wait_us + unit // 2, unit))} "
                f"(origin {format_timestamp(writer.origin_us)}, speed {speed:g})"
            )

    async def _play(self, chunk: RowChunk, following: RowChunk | None) -> None:
        """Releases the rows of a chunk as they become due, and boundaries in between."""
        writer, n, events = self._writer, len(chunk), chunk.events
        if not n:
            writer.leave_out(chunk.consumed(0))
            await writer.room()
            return
        peaks = np.zeros(n, np.int64) if events is None else peaks_of(events)
        coming = None if following is None or not len(following) else following.events
        after = None if coming is None else int(coming[0])
        at = 0
        while at < n:
            now = writer.now_us()
            due = writer.pace.due(peaks[at:], writer.last_id, now)
            stop = at if not due else chunk.stop_within(at, at + due, RECORD_ROWS_BYTES)
            # Arrival times only grow, so without event times the present may be leased.
            next_event = now if events is None else int(events[stop]) if stop < n else after
            if due:
                taken = np.full(stop - at, now, np.int64) if events is None else events[at:stop]
                writer.take(taken, chunk.slice(at, stop), chunk.consumed(stop), next_event)
                at = stop
                await writer.room()
            else:
                if next_event is not None:
                    writer.lease(next_event)
                writer.advance()
            if at < n:
                wake_us = self._wake_us(int(peaks[at]), now)
                if events is None:  # time passes by the clock, so there is always a next boundary
                    wake_us = min(wake_us, now + self._source.boundary_us)
                await self._env.clock.sleep(max(wake_us - now, _RELEASE_US) / 1e6)

    def _wake_us(self, peak_us: int, now_us: int) -> int:
        """Returns when the next tuples are due together, or the next boundary that the log already implies."""
        pace = self._writer.pace
        wake_us = pace.next_us(peak_us, self._writer.last_id)
        if wake_us > now_us:  # otherwise the replay is behind
            ends_us = pace.reached_us(self._writer.coming_boundary_us())
            wake_us = max(wake_us, min(now_us + _TOGETHER_US, ends_us))
        boundary_us = self._writer.next_boundary_us()
        if boundary_us is None:
            return wake_us
        return min(wake_us, now_us if boundary_us <= BEFORE_TIME else pace.reached_us(boundary_us))

    def _live(self) -> LivePlay:
        """Connects a live reader; rows too far ahead of the clock are refused, and a malformed row may end the
        intake.
        """
        return LivePlay(
            self._env,
            self._source,
            self._writer,
            lambda chunk: self._checked(chunk, self._source.ahead_us),
            lambda: self._admission.stopped,
            self._fail,
            self._tell,
        )

    def _checked(self, chunk: RowChunk, ahead_us: int | None) -> RowChunk:
        """Returns the rows that may be taken, in the dictionary of the source."""
        return self._admission.check(chunk, self._writer.now_us(), ahead_us).in_dictionary(self._pool.current())


def _promised_us(source: Source, state: SourceState) -> int:
    """Returns the boundary up to which a log was certainly sent."""
    if source.live or state.bound_us >= END_OF_TIME:
        return state.bound_us
    # A replay may have leased a whole gap; the pace knows the place in it.
    implied_us = floor_to(saturating_add(state.max_event_us, -source.disorder_us), source.boundary_us)
    return min(implied_us, state.bound_us)


async def _check_schema(env: Env, source: Source, folder: PurePosixPath) -> None:
    """Raises SpeError: the log was written with another schema."""
    path = folder / "schema.json"
    wanted = source.schema.to_wire()
    if not env.storage.exists(path):
        await env.storage.write_atomic(path, json.dumps(wanted).encode())
        return
    try:
        stored = json.loads(env.storage.read(path))
    except ValueError as error:
        raise SpeError(f"{path}: expected the schema of the log as JSON: {error}") from None
    if stored != wanted:
        raise SpeError(f"{folder}: the log holds {stored}; the configuration says {wanted}")
