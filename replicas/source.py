"""A source proxy: reads, stamps, logs, syncs, and only then publishes (protocol.md S1-S3).

One task takes in and appends to the log, one syncs and publishes whatever has gathered meanwhile; a slow disk makes
larger groups, not a longer queue.  Consumers that are behind are served from the log, by id.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import PurePosixPath
from typing import Final

import numpy as np
import trio

from replicas.pacing import AtOnce, AtSpeed, Pace, pace_of
from replicas.readers import LIVE_KINDS, Chunk, Live, Malformed, Replay, open_reader
from replicas.source_history import TAIL_BYTES, SourceHistory
from replicas.stamping import Stamper, admitted
from spe.batch import Batch, Boundary, Element, Int64Array
from spe.env import Env
from spe.errors import LogError, SpeError
from spe.log import Position, Record, SegmentedLog
from spe.plan import Source
from spe.source_log import SourceState, decode_source_state, encode_source_record, source_folder
from spe.states import Kind
from spe.strings import StringPool
from spe.times import BEFORE_TIME, END_OF_TIME, floor_to, saturating_add

Publish = Callable[[list[Element]], None]

#: Shortest sleep between two releases: a few milliseconds of tuples go out together.
_RELEASE_US: Final = 5_000
#: Bytes appended but not yet synced; beyond it the reader waits.
_PENDING_BYTES_MAX: Final = 8 << 20
#: Malformed rows kept aside per start; all are counted.
_MALFORMED_KEPT: Final = 10_000


class SourceProxy:
    """One source stream: its reader, its durable log, and what has been published of it.

    Made by :meth:`open`; :meth:`run` does the work.  Reading (:meth:`read_from`) is possible at any time.

    Attributes:
      fault: why taking in has stopped; None while all is well.  What is logged can still be read.
      malformed_count, refused_count: rows that could not be understood; rows too far ahead of the clock.
    """

    def __init__(self, env: Env, source: Source, log: SegmentedLog, state: SourceState, history: SourceHistory) -> None:
        self._env = env
        self._source = source
        self._log = log
        self._history = history
        self._stamper = Stamper(
            disorder_us=source.disorder_us,
            boundary_us=source.boundary_us,
            last_id=state.last_id,
            max_event_us=state.max_event_us,
            lease_us=state.bound_us,  # also with another disorder than before the restart, what was promised holds
        )
        self._pool = StringPool()
        self._consumed = state.consumed
        self._origin_us = state.origin_us
        self._begun_us = state.begun_us
        self._pace: Pace = AtOnce()
        #: Boundary implied by what is synced.
        self._synced_bound_us = state.bound_us
        #: Deadlines are on the monotonic clock; it is read as the wall clock stood at start, so it never steps.
        self._clock_offset_us = env.clock.wall_us() - env.clock.monotonic_us()
        self._pending: list[tuple[SourceState, Position, Batch | None]] = []
        self._pending_bytes = 0
        self._appended = trio.Event()
        self._committed = trio.Event()
        self._intake = trio.CancelScope()
        self._intake_ended = False
        self._publish: Publish = _nobody
        self.fault: SpeError | None = None
        self.malformed_count = 0
        self.refused_count = 0

    @classmethod
    async def open(
        cls,
        env: Env,
        source: Source,
        folder: PurePosixPath | None = None,
        *,
        begun_us: int | None = None,
        tail_bytes: int = TAIL_BYTES,
    ) -> SourceProxy:
        """Opens the log, cutting a torn tail, and stands where its last acknowledged record stands.

        Args:
          folder: of the log, below the storage root.
          begun_us: wall clock at which the replay begins; equal for all sources of a run keeps them in step.
            None: now.  After a restart the log says it.
          tail_bytes: recent tuples kept in memory; consumers that are further behind are served from the log.

        Raises:
          LogError, LogCorrupt: the log is in use or damaged.
          SpeError: it holds a stream with another schema.
        """
        folder = folder if folder is not None else source_folder(source.stream)
        history = SourceHistory(source.schema, tail_bytes)
        state = SourceState()

        def visit(record: Record) -> None:
            nonlocal state
            state = decode_source_state(record.body)
            history.add(state, record.position, None)

        log = await SegmentedLog.open(env.storage, folder, visit)
        await _check_schema(env, source, folder)
        proxy = cls(env, source, log, state, history)
        if state.begun_us == BEFORE_TIME and begun_us is not None:
            proxy._begun_us = begun_us
        live = source.reader.get("kind") in LIVE_KINDS
        implied = floor_to(saturating_add(state.max_event_us, -source.disorder_us), source.boundary_us)
        ended = state.bound_us >= END_OF_TIME
        history.frontier_us = state.bound_us if live or ended else min(implied, state.bound_us)
        env.trace.event("source_opened", stream=source.stream, last_id=state.last_id, epoch=log.epoch)
        return proxy

    @property
    def last_id(self) -> int:
        """Id of the last published tuple."""
        return self._history.last_id

    @property
    def frontier(self) -> int:
        """Last published boundary, microseconds; END_OF_TIME when the stream is complete."""
        return self._history.frontier_us

    @property
    def ended(self) -> bool:
        return self.frontier >= END_OF_TIME

    def counters(self) -> Mapping[str, int]:
        """What was dropped or changed since this process began; nothing is in silence."""
        return {
            "malformed": self.malformed_count,
            "refused_ahead": self.refused_count,
            "late": self._stamper.late_count,
        }

    def read_from(self, after_id: int, after_us: int = BEFORE_TIME, limit_bytes: int = 256 << 10) -> list[Element]:
        """What follows tuple ``after_id`` and boundary ``after_us``: batches, then one boundary if there is a new one.

        Empty when there is nothing yet; ``publish`` tells when to ask again.

        Raises:
          LogCorrupt: the log has been damaged since it was written.
        """
        return self._history.read_from(self._log, after_id, after_us, limit_bytes)

    def elements_from(self, after_id: int) -> Iterator[Element]:
        """Everything published so far after a tuple."""
        after_us = BEFORE_TIME
        while elements := self.read_from(after_id, after_us):
            yield from elements
            for element in elements:
                if isinstance(element, Batch):
                    after_id = element.upto_id
                elif isinstance(element, Boundary):
                    after_us = element.time

    def close(self) -> None:
        self._log.close()

    # -- running ----------------------------------------------------------------------------------------------

    async def run(self, publish: Publish | None = None) -> None:
        """Takes in until the input ends, or until ``fault`` says why it cannot go on.

        Args:
          publish: called, in order, with elements that have just become durable; must not block.
        """
        if publish is not None:
            self._publish = publish
        if self.ended:
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._take_in)
            await self._commit_until_ended()
            nursery.cancel_scope.cancel()
        self._env.trace.event("source_stopped", stream=self._source.stream, last_id=self.last_id, fault=self.fault)

    async def _take_in(self) -> None:
        with self._intake:
            try:
                if self._begun_us == BEFORE_TIME:
                    self._begun_us = self._now()
                start_us = self._begun_us if self._origin_us == BEFORE_TIME else self._origin_us
                reader = open_reader(self._source, start_us)
                if isinstance(reader, Replay):
                    await self._replay(reader)
                else:
                    await self._listen(reader)
                if self._stamper.end():
                    self._append(None)
            except SpeError as error:
                self._fail(error)
        self._intake_ended = True
        self._appended.set()

    def _fail(self, error: SpeError) -> None:
        """Stops taking in.  What has been appended is still synced and published where the disk allows."""
        if self.fault is None:
            self.fault = error
            self._env.trace.event("source_failed", stream=self._source.stream, error=str(error))
        self._intake.cancel()

    # -- the log ----------------------------------------------------------------------------------------------

    def _append(self, batch: Batch | None) -> None:
        """Appends a batch, or the lease alone.  Raises LogError."""
        stamper = self._stamper
        state = SourceState(
            stamper.last_id,
            stamper.max_event_us,
            stamper.lease_us,
            stamper.bound_us,
            self._consumed,
            self._origin_us,
            self._begun_us,
        )
        body = encode_source_record(state, batch, self._source.schema)
        self._pending.append((state, self._log.append(body), batch))
        self._pending_bytes += len(body)
        self._appended.set()

    async def _commit_until_ended(self) -> None:
        """Group commit: while one sync is under way the next group gathers."""
        while self._pending or not self._intake_ended:
            if not self._pending:
                await self._appended.wait()
                self._appended = trio.Event()
                continue
            group, self._pending, self._pending_bytes = self._pending, [], 0
            try:
                await self._log.sync()
            except LogError as error:
                self._fail(error)
                return
            self._settle(group)

    def _settle(self, group: list[tuple[SourceState, Position, Batch | None]]) -> None:
        """What was synced is published."""
        for state, position, batch in group:
            self._history.add(state, position, batch)
        self._synced_bound_us = group[-1][0].bound_us
        elements: list[Element] = [batch for _, _, batch in group if batch is not None]
        self._publish(elements + self._new_boundary())
        self._committed.set()
        self._committed = trio.Event()

    async def _room(self) -> None:
        """Waits while too much is appended and not yet synced."""
        while self._pending_bytes > _PENDING_BYTES_MAX:
            await self._committed.wait()

    def _new_boundary(self) -> list[Element]:
        """The next boundary: implied by the synced log, and not ahead of the replay."""
        bound = self._synced_bound_us
        if bound < END_OF_TIME:
            reached = saturating_add(self._pace.event_now_us(self._now()), -self._source.disorder_us)
            bound = min(bound, floor_to(reached, self._source.boundary_us))
        if bound <= self._history.frontier_us:
            return []
        self._history.frontier_us = bound
        return [Boundary(Kind.STABLE, bound, self._history.last_id)]

    # -- replayed input ---------------------------------------------------------------------------------------

    async def _replay(self, reader: Replay) -> None:
        """Plays chunk by chunk, always knowing the next one: its first event time is what may be leased."""
        chunks = reader.chunks(self._consumed)
        chunk = await self._next_chunk(chunks)
        if chunk is not None:
            self._set_pace(reader, chunk)
        while chunk is not None:
            following = await self._next_chunk(chunks)
            await self._play(chunk, following)
            chunk = following

    async def _next_chunk(self, chunks: Iterator[Chunk]) -> Chunk | None:
        """The next chunk with any good rows; None at the end of the input."""
        while True:
            chunk = await self._env.compute.run(lambda: next(chunks, None))
            if chunk is None:
                return None
            chunk = self._checked(chunk, None)  # a generator may well be ahead of the clock
            if len(chunk):
                return chunk

    def _set_pace(self, reader: Replay, chunk: Chunk) -> None:
        """The pace of the first start, also after a restart: what was missed meanwhile is due at once."""
        replay = self._source.replay
        if self._origin_us == BEFORE_TIME:
            given: int | None = replay.get("origin_us")
            first = self._begun_us if chunk.events is None else int(chunk.events[0])
            known = first if reader.origin_us is None else reader.origin_us
            self._origin_us = known if given is None else given
        self._pace = pace_of(replay, self._origin_us, self._begun_us)
        if chunk.events is None and isinstance(self._pace, AtSpeed):
            raise SpeError(
                f"source {self._source.stream}: replay.speed needs event times, but `time` names no attribute; "
                "give replay.rate or replay.max"
            )
        if self._stamper.last_id:
            # A wall clock that was set back must not make us wait for what we have already logged.
            ahead_us = self._pace.next_us(self._stamper.max_event_us, self._stamper.last_id - 1) - self._now()
            if ahead_us > 0:
                self._begun_us -= ahead_us
                self._pace = pace_of(replay, self._origin_us, self._begun_us)

    async def _play(self, chunk: Chunk, following: Chunk | None) -> None:
        """Releases the rows of a chunk as they become due, and boundaries in between."""
        n = len(chunk)
        events = chunk.events
        peaks = np.zeros(n, np.int64) if events is None else np.maximum.accumulate(events)
        after = END_OF_TIME if following is None or following.events is None else int(following.events[0])
        at = 0
        while at < n:
            now = self._now()
            due = self._pace.due(peaks[at:], self._stamper.last_id, now)
            stop = at + due
            # Arrival times only grow, so now is what may be leased where there are no event times.
            next_event = now if events is None else int(events[stop]) if stop < n else after
            if due:
                taken = np.full(due, now, np.int64) if events is None else events[at:stop]
                self._take(chunk, at, stop, taken, next_event)
                at = stop
                await self._room()
            else:
                if self._stamper.lease(next_event):
                    self._append(None)
                if boundary := self._new_boundary():
                    self._publish(boundary)
            if at < n:
                wake_us = self._wake_us(int(peaks[at]), now)
                if events is None:  # time passes by the clock, so there is always a next boundary
                    wake_us = min(wake_us, now + self._source.boundary_us)
                await trio.sleep(max(wake_us - now, _RELEASE_US) / 1e6)

    def _take(self, chunk: Chunk, start: int, stop: int, events: Int64Array, next_event_us: int | None) -> None:
        """Stamps and appends rows; the lease up to the next event goes into the same record."""
        batch = self._stamper.stamp(events, chunk.slice(start, stop))
        if next_event_us is not None and next_event_us < END_OF_TIME:
            self._stamper.lease(next_event_us)
        self._consumed = chunk.consumed(stop)
        self._append(batch)

    def _wake_us(self, peak_us: int, now_us: int) -> int:
        """When the next tuple is due, or the next boundary that the log already implies."""
        wake_us = self._pace.next_us(peak_us, self._stamper.last_id)
        frontier_us = self._history.frontier_us
        if frontier_us < self._stamper.bound_us:
            next_us = saturating_add(frontier_us, self._source.boundary_us + self._source.disorder_us)
            wake_us = min(wake_us, self._pace.reached_us(next_us) if next_us > BEFORE_TIME else now_us)
        return wake_us

    # -- live input -------------------------------------------------------------------------------------------

    async def _listen(self, reader: Live) -> None:
        async with trio.open_nursery() as nursery:
            if self._source.reader.get("lease", True):
                nursery.start_soon(self._lease_by_the_clock)
            await reader.read(self._env, self._accept)
            nursery.cancel_scope.cancel()

    async def _accept(self, chunk: Chunk) -> None:
        """Takes a chunk at once.  A fault is not raised: the reader may run us in a task that swallows it."""
        try:
            chunk = self._checked(chunk, self._source.ahead_us)
            if n := len(chunk):
                events = chunk.events if chunk.events is not None else np.full(n, self._now(), np.int64)
                self._take(chunk, 0, n, events, None)
        except SpeError as error:
            self._fail(error)
        await self._room()

    async def _lease_by_the_clock(self) -> None:
        """A silent live input still lets time pass: its event time is the wall clock's."""
        step_us = max(self._source.boundary_us, _RELEASE_US)
        while True:
            try:
                if self._stamper.lease(self._now()):
                    self._append(None)
            except LogError as error:
                self._fail(error)
            await trio.sleep(step_us / 1e6)

    # -- rows -------------------------------------------------------------------------------------------------

    def _checked(self, chunk: Chunk, ahead_us: int | None) -> Chunk:
        """The rows that may be taken, in our dictionary; the others are counted, told of and kept aside.

        Raises:
          SpeError: a row is malformed and the configuration says ``on_malformed: stop``.
        """
        if chunk.malformed:
            self._set_aside(chunk.malformed)
        chunk = chunk.in_dictionary(self._pool.current())
        if chunk.events is None or not len(chunk):
            return chunk
        mask = admitted(chunk.events, self._now(), ahead_us)
        if mask is None:
            return chunk
        count = int((~mask).sum())
        self.refused_count += count
        furthest = int(chunk.events.max())
        self._env.trace.event("rows_refused", stream=self._source.stream, count=count, event_us=furthest)
        return chunk.select(mask)

    def _set_aside(self, rows: list[Malformed]) -> None:
        stream = self._source.stream
        kept = rows[: max(0, _MALFORMED_KEPT - self.malformed_count)]
        self.malformed_count += len(rows)
        self._env.trace.event(
            "rows_malformed", stream=stream, count=len(rows), line=rows[0].line, reason=rows[0].reason
        )
        if kept:
            text = "".join(json.dumps(row._asdict()) + "\n" for row in kept)
            try:
                file = self._env.storage.open(PurePosixPath("malformed", f"{stream}.jsonl"))
                try:
                    file.append(text.encode())
                finally:
                    file.close()
            except OSError as error:  # they are counted and told of all the same
                self._env.trace.event("malformed_not_kept", stream=stream, error=str(error))
        if self._source.on_malformed == "stop":
            raise SpeError(f"source {stream}: line {rows[0].line}: {rows[0].reason}")

    def _now(self) -> int:
        return self._env.clock.monotonic_us() + self._clock_offset_us


def _nobody(_elements: list[Element]) -> None:
    pass


async def _check_schema(env: Env, source: Source, folder: PurePosixPath) -> None:
    """A log is read with the schema that it was written with."""
    path = folder / "schema.json"
    wanted = source.schema.to_wire()
    if not env.storage.exists(path):
        await env.storage.write_atomic(path, json.dumps(wanted).encode())
    elif (found := json.loads(env.storage.read(path))) != wanted:
        raise SpeError(f"{folder}: the log holds {found}; the configuration says {wanted}")


def reference_elements(source: Source) -> Iterator[Element]:
    """The stream of a replayed source at full speed, without log, network or clock: the same stamps as a live run.

    Raises:
      SpeError: the source is live, or its stamps depend on the clock: then only its log can tell (read_source_log).
    """
    reader = open_reader(source)
    if not isinstance(reader, Replay):
        raise SpeError(f"source {source.stream} is live: its stream is in its log only")
    stamper = Stamper(disorder_us=source.disorder_us, boundary_us=source.boundary_us)
    pool = StringPool()
    bound = BEFORE_TIME
    for chunk in reader.chunks(0):
        if chunk.malformed and source.on_malformed == "stop":
            row = chunk.malformed[0]
            raise SpeError(f"source {source.stream}: line {row.line}: {row.reason}")
        if chunk.events is None:
            raise SpeError(f"source {source.stream} is stamped by arrival: its stream is in its log only")
        mask = admitted(chunk.events, 0, None)
        taken = (chunk if mask is None else chunk.select(mask)).in_dictionary(pool.current())
        if len(taken) and taken.events is not None:
            yield stamper.stamp(taken.events, taken.columns)
            if stamper.bound_us > bound:
                bound = stamper.bound_us
                yield Boundary(Kind.STABLE, bound, stamper.last_id)
    yield Boundary(Kind.STABLE, END_OF_TIME, stamper.last_id)
