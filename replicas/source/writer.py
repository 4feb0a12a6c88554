"""The durable half of a source: stamps, appends, syncs, and only then publishes (rules S1-S3)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

import trio

from replicas.source.history import SourceHistory
from replicas.source.lateness import Lateness
from replicas.source.pacing import AtOnce, Pace
from replicas.source.stamping import Stamper
from spe.errors import LocalProtocolError, LogFull
from spe.log import Position, SegmentedLog
from spe.log.rejected_rows import RejectedInput, rejected_batch
from spe.log.source_log import SourceState, source_record_parts
from spe.plan.plan import Source
from spe.runtime.disk_trouble import DISK_RETRY_US, DiskTrouble
from spe.runtime.env import Env
from spe.stream.batch import Batch, Boundary, Column, Element, Int64Array
from spe.stream.names import Kind
from spe.stream.times import END_OF_TIME, floor_to, saturating_add

Publish = Callable[[list[Element]], None]

#: When so many bytes are appended but not synced, the reader waits.
_PENDING_BYTES_MAX: Final = 8 << 20

#: Bytes of rows per record: far less than the limit, even if a row is as large as possible.
RECORD_ROWS_BYTES: Final = 16 << 20


class SourceWriter:
    """Stamps and appends in one task, syncs and publishes in another.

    During a sync the next group gathers, so a slow disk makes larger groups, not a longer queue.

    Attributes:
      history: the published tuples.
      publish: called, in order, with elements that have just become durable.
      pace: pace of the replay, which limits boundaries.
      consumed: rows taken from the reader, including malformed and refused ones.
      origin_us, begun_us: event time and wall clock at which the replay began; BEFORE_TIME: it has not begun.
      on_note: called with notes for users who wait for results.
      durable: called with the cursor after which the reader will continue in any restart (S9).
    """

    def __init__(self, env: Env, source: Source, log: SegmentedLog, state: SourceState, history: SourceHistory) -> None:
        self._source = source
        self._log = log
        self._stamper = Stamper(
            disorder_us=source.disorder_us,
            boundary_us=source.boundary_us,
            last_id=state.last_id,
            max_event_us=state.max_event_us,
            lease_us=state.bound_us,  # a promise holds even if the disorder has changed since
        )
        self._env = env
        self._lateness = Lateness()
        #: Boundary implied by the synced records.
        self._synced_bound_us = state.bound_us
        #: Deadlines are on the monotonic clock, shifted to the wall clock at the start, so it never jumps.
        self._clock = env.clock
        self._clock_offset_us = env.clock.wall_us() - env.clock.monotonic_us()
        self._pending: list[tuple[SourceState, Position, Batch | None]] = []
        self._pending_bytes = 0
        #: Records, in order, for which the log had no room.
        self._refused: list[tuple[SourceState, list[bytes | memoryview], Batch | None]] = []
        self._trouble = DiskTrouble(env, f"source {source.stream}")
        self._appended = trio.Event()
        self._committed = trio.Event()
        self._closed = False
        self.history = history
        #: Rows of the reader that are accounted for on the disk.
        self.synced_consumed = state.consumed
        self.publish: Publish = _nobody
        self.on_note: Callable[[str], None] = _nobody
        self.durable: Callable[[bytes], None] = _nobody
        self._cursor = self._synced_cursor = state.cursor
        self.pace: Pace = AtOnce()
        #: Rows of ``consumed`` that became no tuple.
        self._left_out = state.consumed - state.last_id
        #: Rejected rows that wait for a record of the log (E8), and the number of those written.
        self._rejections: deque[RejectedInput] = deque()
        self._rejected = state.rejected
        self.consumed = state.consumed
        #: Rows that were taken from readers before this one.
        self._before = 0
        self.origin_us = state.origin_us
        self.begun_us = state.begun_us

    def now_us(self) -> int:
        """The clock for the pace, leases and times of arrival."""
        return self._clock.monotonic_us() + self._clock_offset_us

    @property
    def last_id(self) -> int:
        """Id of the last stamped tuple, published or not."""
        return self._stamper.last_id

    @property
    def max_event_us(self) -> int:
        """Largest raw event time so far."""
        return self._stamper.max_event_us

    @property
    def stands_us(self) -> int:
        """Event time that the tuples and leases imply; BEFORE_TIME: none."""
        return self._stamper.stands_us

    @property
    def late_count(self) -> int:
        """Tuples that were stamped later than their event time, since this process began."""
        return self._stamper.late_count

    @property
    def late_by_us(self) -> int:
        """The disorder that would have covered all of them; 0 if none was late."""
        return self._stamper.late_by_us

    def next_boundary_us(self) -> int | None:
        """Returns the event time at which the next boundary, if already implied, is due; None: no boundary is
        implied.
        """
        return None if self.history.frontier_us >= self._stamper.bound_us else self.coming_boundary_us()

    def coming_boundary_us(self) -> int:
        """Returns the event time at which the next boundary is due, whether or not it is implied already."""
        return saturating_add(self.history.frontier_us, self._source.boundary_us + self._source.disorder_us)

    def counts_anew(self) -> None:
        """Notes that the reader counts its rows from 0, as a live one does after each start."""
        self._before = self.consumed

    @property
    def cursor(self) -> bytes:
        """Cursor of the last appended chunk; empty if the reader has none."""
        return self._cursor

    def take(
        self,
        events: Int64Array,
        columns: tuple[Column, ...],
        consumed: int,
        next_event_us: int | None = None,
        cursor: bytes = b"",
    ) -> None:
        """Stamps and appends rows.

        Args:
          events: raw event times, at least one.
          consumed: number of the reader's rows that are accounted for with these.
          next_event_us: event time of the row after these, if known: the lease up to it goes into the same record.
          cursor: cursor after these rows; empty: unchanged.

        Raises:
          LogError: the log refused it.
        """
        self._account(consumed, len(events), cursor)
        batch = self._stamper.stamp(events, columns)
        if mostly := self._lateness.took(self.now_us(), len(batch), *self._stamper.latest):
            self._env.trace.event("rows_mostly_late", stream=self._source.stream, **mostly._asdict())
            self.on_note(f"source {self._source.stream}: {mostly}")
        if next_event_us is not None:
            self._stamper.lease(next_event_us)
        self._append(batch)

    def leave_out(self, consumed: int, cursor: bytes = b"") -> None:
        """Logs that rows of the reader are accounted for, none of which may be taken.

        Args:
          consumed, cursor: as in :meth:`take`.

        Raises:
          LogError: the log refused it.
        """
        self._account(consumed, 0, cursor)
        self._append(None)

    def _account(self, consumed: int, taken: int, cursor: bytes) -> None:
        """Accounts for rows of the reader (S8).  Raises LocalProtocolError: there are fewer than were taken."""
        came = consumed + self._before - self.consumed
        if came < taken:
            raise LocalProtocolError(f"{taken} rows of {came} of the reader")
        self.consumed += came
        self._left_out += came - taken
        self._cursor = cursor or self._cursor

    def reject(self, rows: Iterable[RejectedInput]) -> None:
        """Adds rejected rows, in order, to the record that accounts for them, so that they are logged once (E8)."""
        self._rejections += [row._replace(row=row.row + self._before) for row in rows]

    @property
    def holds_rejected(self) -> bool:
        """Whether rejected rows wait for a record."""
        return bool(self._rejections)

    def _rejected_now(self) -> Batch | None:
        """Returns the rejected rows that are accounted for now; None: there are none."""
        rows: list[RejectedInput] = []
        while self._rejections and self._rejections[0].row < self.consumed:
            rows.append(self._rejections.popleft())
        if not rows:
            return None
        batch = rejected_batch(rows, self._rejected)
        self._rejected = batch.upto_id
        return batch

    def lease(self, event_us: int) -> None:
        """Logs that nothing on time before ``event_us`` will come, if that is new.  Raises LogError."""
        if not self._refused and self._stamper.lease(event_us):
            self._append(None)

    def end(self) -> None:
        """Logs that nothing follows.  Raises LogError."""
        if self._stamper.end():
            self._append(None)

    def close(self) -> None:
        """Ends the input; :meth:`commit` returns when the rest is published."""
        self._closed = True
        self._appended.set()

    def _append(self, batch: Batch | None) -> None:
        """Appends a batch, or the lease alone.  Raises LogError."""
        assert not self._closed, "S3: nothing is logged after the end"
        stamper, rejected = self._stamper, self._rejected_now() if self._rejections else None
        state = SourceState(
            stamper.last_id,
            stamper.max_event_us,
            stamper.lease_us,
            stamper.bound_us,
            self.consumed,
            self.origin_us,
            self.begun_us,
            self._left_out,
            self._cursor,
            self._rejected,
        )
        self._refused.append((state, source_record_parts(state, batch, self._source.schema, rejected), batch))
        if len(self._refused) == 1:
            self._write()
        self._appended.set()

    def _write(self) -> None:
        """Appends waiting records while there is room."""
        while self._refused:
            state, parts, batch = self._refused[0]
            try:
                self._pending.append((state, self._log.append(*parts), batch))
            except LogFull as error:
                self._trouble.met(error)
                return
            self._pending_bytes += sum(map(len, parts))
            del self._refused[0]

    @property
    def disk_full(self) -> str:
        """Why nothing can be logged while the disk is full; "" otherwise."""
        return self._trouble.why

    async def commit(self) -> None:
        """Commits groups until closed; retries while there is no room.

        Raises:
          LogError: a sync failed; nothing more is published.
        """
        group: list[tuple[SourceState, Position, Batch | None]] = []
        while group or self._pending or self._refused or not self._closed:
            if not group and not self._pending and not self._refused:
                await self._appended.wait()
                self._appended = trio.Event()
                continue
            group, self._pending, self._pending_bytes = group + self._pending, [], 0
            try:
                await self._log.sync()
            except LogFull as error:
                self._trouble.met(error)
                await self._clock.sleep(DISK_RETRY_US / 1e6)
                continue
            if group:
                self._settle(group)
                group = []
            if self._refused:
                await self._clock.sleep(DISK_RETRY_US / 1e6)
                self._write()
            else:
                self._trouble.over()

    def _settle(self, group: list[tuple[SourceState, Position, Batch | None]]) -> None:
        """Publishes synced records."""
        for state, position, batch in group:
            assert state.last_id == state.consumed - state.left_out, "S8: each row is a tuple or is left out"
            self.history.add(state, position, batch)
        assert group[-1][0].bound_us >= self._synced_bound_us, "S2: promises are never taken back"
        self._synced_bound_us, self.synced_consumed = group[-1][0].bound_us, group[-1][0].consumed
        elements: list[Element] = [batch for _, _, batch in group if batch is not None]
        self.publish(elements + self._new_boundary())
        if (cursor := group[-1][0].cursor) != self._synced_cursor:
            self._synced_cursor = cursor
            self.durable(cursor)
        self._committed.set()
        self._committed = trio.Event()

    async def settled(self, consumed: int) -> None:
        """Waits until so many rows of the reader are accounted for on the disk."""
        while self.synced_consumed < consumed:
            await self._committed.wait()

    async def room(self) -> None:
        """Waits while too many bytes are not synced, or the disk is full."""
        while self._refused or self._pending_bytes > _PENDING_BYTES_MAX:
            await self._committed.wait()

    def advance(self) -> None:
        """Publishes the next boundary if the pace has reached it."""
        if boundary := self._new_boundary():
            self.publish(boundary)

    def _new_boundary(self) -> list[Element]:
        """Returns the next boundary: implied by the synced log, and not ahead of the replay."""
        bound = self._synced_bound_us
        if bound < END_OF_TIME:
            reached = saturating_add(self.pace.event_now_us(self.now_us()), -self._source.disorder_us)
            bound = min(bound, floor_to(reached, self._source.boundary_us))
        assert self.history.frontier_us <= self._synced_bound_us, "S2: what was promised is implied by the log"
        if bound <= self.history.frontier_us:
            return []
        self.history.frontier_us = bound
        return [Boundary(Kind.STABLE, bound, self.history.last_id)]


def _nobody(_note: object) -> None:
    pass
