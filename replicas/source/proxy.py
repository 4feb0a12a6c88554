"""A source proxy: it takes rows in at the pace of its input, logs all of them, and serves them from any id on.

Consumers that are behind are served from the log, so nothing is kept for them and nobody slows a source down.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import PurePosixPath
from typing import Final

import numpy as np
import trio

from replicas.connectors import Live, Replay, Resumable, RowChunk, open_reader
from replicas.retention.archiving import OpenArchive
from replicas.retention.holders import segment_bytes
from replicas.source.admission import Admission, malformed_error
from replicas.source.history import TAIL_BYTES, SourceHistory
from replicas.source.live_source import LivePlay
from replicas.source.pacing import AtSpeed, pace_of
from replicas.source.retention import NOTHING_HELD, Retained, SourceRetention
from replicas.source.stamping import Stamper, admitted, peaks_of
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
from spe.stream.batch import Batch, Boundary, Element, Rows
from spe.stream.names import Kind
from spe.stream.strings import StringPool
from spe.stream.times import BEFORE_TIME, END_OF_TIME, SECOND, floor_to, format_timestamp, saturating_add

#: Shortest sleep between two releases.
_RELEASE_US: Final = 5_000
#: Tuples that become due within this time go out together, unless a boundary does earlier: consumers wait for that
#: anyhow, and each message costs every one of them 50 to 100 µs.
_TOGETHER_US: Final = 25_000
#: Where a generator without a `start` begins in a reference: 2024-01-01, so that two of them are the same.
REFERENCE_START_US: Final = 1_704_067_200_000_000
#: A replay whose first tuple is due later than this says so: it looks as if nothing happened.
_LONG_WAIT_US: Final = 10_000_000


class SourceProxy:
    """One source stream: its reader, its durable log, and what has been published of it.

    Made by :meth:`open`; :meth:`run` does the work.  Reading (:meth:`read_from`) is possible at any time.

    Attributes:
      identity: of the log (rule S6).
      note: what somebody who waits for the first tuple has to know; "" where there is nothing.
      fault: why taking in has stopped; None while all is well.  What is logged can still be read.
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
        self._told: Callable[[str], None] = lambda note: None
        self.fault: SpeError | None = None
        writer.told = self._tell

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
        """Opens the log, cutting a torn tail, and stands where its last acknowledged record stands.

        Args:
          folder: of the log, below the storage root.
          begun_us: wall clock at which the replay begins; equal for all sources of a run keeps them in step.
            None: now.  After a restart the log says it.
          signature: of the configuration, for a log that is made (``spe.log.origin``).
          tail_bytes: recent tuples kept in memory; consumers that are further behind are served from the log.

        Raises:
          LogError, LogCorrupt: the log is in use or damaged.
          SpeError: it holds a stream with another schema.
        """
        folder = folder if folder is not None else source_folder(source.stream)
        base_id = read_kept(env.storage, folder).last_id
        history = SourceHistory(source.schema, tail_bytes, base_id, env.clock.step_ns)
        state = SourceState()

        def visit(record: Record) -> None:
            nonlocal state
            state = decode_source_state(record.body)
            history.add(state, record.position, None)

        read_identity(env.storage, folder)  # before the log is made anew beside it
        log = await SegmentedLog.open(
            env.storage, folder, visit, segment_bytes=segment_bytes(source.retain, SEGMENT_BYTES)
        )
        identity = await identify(env.storage, folder, env.random, signature)
        await _check_schema(env, source, folder)
        writer = SourceWriter(env, source, log, state, history)
        if state.begun_us == BEFORE_TIME and begun_us is not None:
            writer.begun_us = begun_us
        if source.live or state.bound_us >= END_OF_TIME:
            history.frontier_us = state.bound_us
        else:  # a replay may have leased a whole gap; where in it we are, the pace will say
            implied_us = floor_to(saturating_add(state.max_event_us, -source.disorder_us), source.boundary_us)
            history.frontier_us = min(implied_us, state.bound_us)
        env.trace.event(
            "source_opened", stream=source.stream, last_id=state.last_id, epoch=log.epoch, identity=identity
        )
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
        """Rows of the reader that the log accounts for."""
        return self._writer.consumed

    async def settled(self, consumed: int) -> None:
        """Waits until the log accounts for so many rows of the reader."""
        await self._writer.settled(consumed)

    @property
    def disk_full(self) -> str:
        """Why nothing can be logged now, while the disk is full; "" where it is not."""
        return self._writer.disk_full

    @property
    def away(self) -> str:
        """Why the reader's server cannot be read now; "" while it can."""
        return "" if self._live_reader is None else self._live_reader.away

    def retention(self, open_archive: OpenArchive, consumers: Iterable[str]) -> SourceRetention:
        """What deletes the oldest part of the log, where the configuration has ``retain``."""
        assert self._source.retain is not None
        history = self._writer.history
        return SourceRetention(self._env, self._source, self._log, history, self.identity, open_archive, consumers)

    def status(self, held: Retained = NOTHING_HELD) -> SourceLogStatus:
        """
        Args:
          held: who needs what of the log is due to be deleted.
        """
        kept = self._log.kept
        return SourceLogStatus(
            first_id=kept.last_id + 1,
            first_us=kept.until_us if kept.first > 1 else None,
            bytes=self._log.nbytes,
            held=held.holders,
            archive=held.trouble,
            identity=self.identity,
            last_id=self.last_id,
            frontier=self.frontier,
            ended=self.ended,
            note=self.note,
            # Without our name, which stands before it anyhow.
            fault=None if self.fault is None else str(self.fault).removeprefix(f"source {self._source.stream}: "),
            malformed=self._admission.malformed_count,
            refused_ahead=self._admission.refused_count,
            late=self._writer.late_count,
            late_by_us=self._writer.late_by_us,
        )

    def read_from(self, after_id: int, after_us: int = BEFORE_TIME, limit_bytes: int = 256 << 10) -> list[Element]:
        """What follows tuple ``after_id`` and boundary ``after_us``: batches, then one boundary if there is a new one.

        Empty when there is nothing yet; ``publish`` tells when to ask again.

        Raises:
          LogCorrupt: the log has been damaged since it was written.
        """
        return self._writer.history.read_from(self._log, after_id, after_us, limit_bytes)

    async def rejected_after(self, number: int) -> list[Batch]:
        """The rejected rows that follow a number; where they were deleted, a batch without rows; [] where none does.

        Raises:
          LogCorrupt: the log has been damaged since it was written.
        """
        history, found, at = self._writer.history, list[Batch](), None
        while number < (upto := history.rejected):
            found, at = history.rejected_after(self._log, number, at)
            if found:
                break
            if at is None:
                return [Batch(Kind.STABLE, number, upto, np.empty(0, np.int64), Rows.empty(REJECTED))]
            await self._env.clock.sleep(0)
        return found

    def needed_for_rejected(self, number: int) -> int:
        """Up to which id the log may be deleted where the rejected rows behind a number are needed."""
        return self._writer.history.needed_for_rejected(number)

    def close(self) -> None:
        self._log.close()

    async def run(
        self,
        publish: Publish | None = None,
        told: Callable[[str], None] = lambda note: None,
        reader: Live | Replay | None = None,
    ) -> None:
        """Takes in until the input ends, or until ``fault`` says why it cannot go on.

        Args:
          publish: called, in order, with elements that have just become durable; must not block.
          told: called with ``note`` when there is one.
          reader: in place of the one that the configuration names.
        """
        self._told = told
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

    async def _take_in(self, given: Live | Replay | None) -> None:
        writer = self._writer
        with self._intake:
            try:
                if writer.begun_us == BEFORE_TIME:
                    writer.begun_us = writer.now_us()
                start_us = writer.begun_us if writer.origin_us == BEFORE_TIME else writer.origin_us
                reader = open_reader(self._source, start_us) if given is None else given
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
            except* (SpeError, OSError) as group:  # of a live reader's tasks, too
                self._fail(self._said(next(leaves(group))))
        writer.close()

    def _tell(self, note: str) -> None:
        self.note = note
        if note:
            self._told(note)

    def _said(self, error: BaseException) -> SpeError:
        return error if isinstance(error, SpeError) else SpeError(f"source {self._source.stream}: {error}")

    def _fail(self, error: SpeError) -> None:
        """Stops taking in.  What has been appended is still synced and published where the disk allows."""
        if self.fault is None:
            self.fault = error
            self._env.trace.event("source_failed", stream=self._source.stream, error=str(error))
        self._intake.cancel()

    # -- replayed input ---------------------------------------------------------------------------------------

    async def _replay(self, reader: Replay) -> None:
        """Plays chunk by chunk, always knowing the next one: its first event time is what may be leased."""
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
        if self._admission.stopped is not None:  # only now: the good rows before it are to go out
            raise self._admission.stopped

    async def _next_chunk(self, chunks: Iterator[RowChunk]) -> RowChunk | None:
        """The next chunk with any good rows; None at the end of the input, or where a malformed row stops it.

        Rejected rows are to be logged, also where a chunk has no others.
        """
        while self._admission.stopped is None:
            chunk = await self._env.compute.run(lambda: next(chunks, None))
            if chunk is None:
                return None
            chunk = self._checked(chunk, None)  # a generator may well be ahead of the clock
            if len(chunk) or self._writer.holds_rejected:
                return chunk
        return None

    def _set_pace(self, reader: Replay, chunk: RowChunk) -> None:
        """The pace of the first start, also after a restart: what was missed meanwhile is due at once."""
        writer, replay = self._writer, self._source.replay
        if writer.origin_us == BEFORE_TIME:
            given: int | None = replay.get("origin_us")
            first = writer.begun_us if chunk.events is None else int(chunk.events[0])
            known = first if reader.origin_us is None else reader.origin_us
            writer.origin_us = known if given is None else given
        writer.pace = pace_of(replay, writer.origin_us, writer.begun_us)
        if chunk.events is None and isinstance(writer.pace, AtSpeed):
            raise SpeError(
                f"source {self._source.stream}: replay.speed needs event times, but `time` names no attribute; "
                "give replay.rate or replay.max"
            )
        if not writer.last_id and isinstance(writer.pace, AtSpeed) and chunk.events is not None:
            self._note_wait(int(chunk.events[0]))
        if writer.last_id:
            # A wall clock that was set back must not make us wait for what we have already logged.
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
            # Arrival times only grow, so now is what may be leased where there are no event times.
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
        """When tuples are due with which others come together, or the next boundary that the log already implies."""
        pace = self._writer.pace
        wake_us = pace.next_us(peak_us, self._writer.last_id)
        if wake_us > now_us:  # else we are behind
            ends_us = pace.reached_us(self._writer.coming_boundary_us())
            wake_us = max(wake_us, min(now_us + _TOGETHER_US, ends_us))
        boundary_us = self._writer.next_boundary_us()
        if boundary_us is None:
            return wake_us
        return min(wake_us, now_us if boundary_us <= BEFORE_TIME else pace.reached_us(boundary_us))

    def _live(self) -> LivePlay:
        """Rows that are too far ahead of the clock are refused; a malformed one may stop us, behind those before it."""
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
        """The rows that may be taken, in our dictionary."""
        return self._admission.check(chunk, self._writer.now_us(), ahead_us).in_dictionary(self._pool.current())


async def _check_schema(env: Env, source: Source, folder: PurePosixPath) -> None:
    """A log is read with the schema that it was written with."""
    path = folder / "schema.json"
    wanted = source.schema.to_wire()
    if not env.storage.exists(path):
        await env.storage.write_atomic(path, json.dumps(wanted).encode())
        return
    try:
        found = json.loads(env.storage.read(path))
    except ValueError as error:
        raise SpeError(f"{path}: expected the schema of the log as JSON: {error}") from None
    if found != wanted:
        raise SpeError(f"{folder}: the log holds {found}; the configuration says {wanted}")


@dataclass
class Intake:
    """What became of the rows of an input.

    Attributes:
      rows: read, malformed and refused ones included.
      first_malformed: ``line N: reason``; "" where there is none.
      late_by_us: as :class:`Stamper` has it.
    """

    rows: int = 0
    malformed: int = 0
    first_malformed: str = ""
    refused: int = 0
    late: int = 0
    late_by_us: int = 0

    @property
    def lost(self) -> bool:
        """Were there rows of which none was taken?"""
        return 0 < self.rows == self.malformed + self.refused

    def took(self, chunk: RowChunk, refused: int, stamper: Stamper) -> None:
        """Counts a chunk as it came from the reader."""
        self.rows += len(chunk) + len(chunk.malformed)
        self.malformed += len(chunk.malformed)
        if chunk.malformed and not self.first_malformed:
            self.first_malformed = f"line {chunk.malformed[0].line}: {chunk.malformed[0].reason}"
        self.refused += refused
        self.late, self.late_by_us = stamper.late_count, stamper.late_by_us


def reference_elements(source: Source, intake: Intake | None = None) -> Iterator[Element]:
    """The stream of a replayed source at full speed, without log, network or clock: the same stamps as a live run.

    A generator without a `start` begins at REFERENCE_START_US; in a run it begins when it is started.

    Args:
      intake: where to count.

    Raises:
      SpeError: the source is live, or its stamps depend on the clock: then only its log can tell (read_source_log).
        A row is malformed and the configuration says ``on_malformed: stop``; what came before it has been yielded.
    """
    reader = open_reader(source, REFERENCE_START_US)
    if not isinstance(reader, Replay):
        raise SpeError(f"source {source.stream} is live: its stream is in its log only")
    stamper = Stamper(disorder_us=source.disorder_us, boundary_us=source.boundary_us)
    pool = StringPool()
    bound = BEFORE_TIME
    for chunk in reader.chunks(0):
        stops = bool(chunk.malformed) and source.on_malformed == "stop"
        if stops:
            chunk = chunk.before_malformed()
        if chunk.events is None:
            raise SpeError(f"source {source.stream} is stamped by arrival: its stream is in its log only")
        mask = admitted(chunk.events, 0, None)
        taken = (chunk if mask is None else chunk.select(mask)).in_dictionary(pool.current())
        if len(taken) and taken.events is not None:
            yield stamper.stamp(taken.events, taken.columns)
            if stamper.bound_us > bound:
                bound = stamper.bound_us
                yield Boundary(Kind.STABLE, bound, stamper.last_id)
        if intake is not None:
            intake.took(chunk, len(chunk) - len(taken), stamper)
        if stops:
            raise malformed_error(source, chunk.malformed[0])
    yield Boundary(Kind.STABLE, END_OF_TIME, stamper.last_id)
