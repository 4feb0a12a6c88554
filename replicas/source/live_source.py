"""Runs a live reader: takes rows as they come, and lets time pass while none comes (rule S7)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import trio

from replicas.connectors import Live, Resumable, RowChunk
from replicas.source.watermark import ByClock, ByData, EventClock
from replicas.source.writer import RECORD_ROWS_BYTES, SourceWriter
from spe.errors import LocalProtocolError, SpeError
from spe.log.source_log import CURSOR_BYTES_MAX
from spe.plan.plan import Source, Watermark
from spe.runtime.env import Env
from spe.stream.times import BEFORE_TIME, SECOND

#: Shortest time between two promises.
_STEP_US: Final = 5_000
#: A source by data without a row for so long reports the consequence for its consumers.
_NO_ROW_US: Final = 10 * SECOND


class LivePlay:
    """Connects one live reader to the writer of its source.

    Args:
      admit: returns the rows of a chunk that may be taken, in the source's dictionary.
      stopped: returns why the intake ends after the rows taken so far; None while it goes on.
      fail: called with the reason why the intake ends.
      tell: called with a note for users who wait for results; "" when it no longer holds.
    """

    def __init__(
        self,
        env: Env,
        source: Source,
        writer: SourceWriter,
        admit: Callable[[RowChunk], RowChunk],
        stopped: Callable[[], SpeError | None],
        fail: Callable[[SpeError], None],
        tell: Callable[[str], None],
    ) -> None:
        self._env = env
        self._source = source
        self._writer = writer
        self._admit = admit
        self._stopped = stopped
        self._fail = fail
        self._tell = tell
        self._step_us = max(source.boundary_us, _STEP_US)
        self._begun_us = writer.now_us()
        self._told_of_no_row = False
        self._reader: Live
        #: The reported trouble of the reader's server; "" while it answers.
        self._told_of_away = ""
        self._failed = False
        #: Number of chunks that wait for room on the disk.
        self._waiting = 0
        self._clock: EventClock = ByClock()
        if source.watermark is Watermark.DATA:
            self._clock = ByData(
                source.idle_us, to_now=source.idle_to_now, step_us=self._step_us, now_us=self._begun_us
            )

    async def run(self, reader: Live) -> None:
        """Runs until the reader ends.  Raises its errors."""
        self._reader = reader
        if isinstance(reader, Resumable):
            reader.cursor = self._writer.cursor
            self._writer.durable = reader.durable
            if reader.cursor:
                reader.durable(reader.cursor)  # it is synced: the log was opened with it
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._promise)
            await reader.read(self._env, self._accept)
            nursery.cancel_scope.cancel()

    async def _accept(self, chunk: RowChunk) -> None:
        """Takes a chunk at once.  Does not raise faults: the reader may call it in a task that swallows them."""
        if self._failed:  # chunks after a refused one must not be taken
            await trio.sleep_forever()
        writer, taken = self._writer, 0
        try:
            _check_cursor(self._reader, chunk.cursor)
            chunk = self._admit(chunk)
            n = len(chunk)
            events = chunk.events if chunk.events is not None else np.full(n, writer.now_us(), np.int64)
            if self._told_of_no_row and n:  # before a report on these rows
                self._told_of_no_row = False
                self._tell("")
            while taken < n:
                # Rows and cursor are one record: a chunk with a cursor is not divided.
                stop = n if chunk.cursor else chunk.stop_within(taken, n, RECORD_ROWS_BYTES)
                writer.take(events[taken:stop], chunk.slice(taken, stop), chunk.consumed(stop), cursor=chunk.cursor)
                taken = stop
            if not n and (self._reader.continues or chunk.cursor or writer.holds_rejected):
                writer.leave_out(chunk.consumed(0), chunk.cursor)
            if (why := self._stopped()) is not None:
                raise why
        except SpeError as error:
            self._failed = True
            self._fail(error)
        self._waiting += 1
        try:
            await writer.room()
        finally:
            self._waiting -= 1
        if taken:
            self._clock.heard(writer.now_us())

    async def _promise(self) -> None:
        """Logs promises while no row comes."""
        writer = self._writer
        while True:
            now = writer.now_us()
            # The disk is full, the server is away, or the reader is still delivering stored rows.
            if self._waiting or self._reader.away or self._reader.first_reading:
                self._clock.heard(now)
            if (away := self._reader.away) != self._told_of_away:
                self._told_of_away, self._told_of_no_row = away, False
                self._tell(f"source {self._source.stream}: {away}" if away else "")
            reached_us = self._clock.reached_us(now, writer.stands_us)
            if reached_us is not None:
                try:
                    writer.lease(reached_us)
                except SpeError as error:
                    self._fail(error)
            elif writer.stands_us <= BEFORE_TIME and not (self._told_of_no_row or away) and self._waits_long(now):
                self._told_of_no_row = True
                self._tell(
                    f"source {self._source.stream}: no row yet, so no time passes in it; what reads other sources as "
                    "well stays tentative until the first one"
                )
            await self._env.clock.sleep(self._step_us / 1e6)

    def _waits_long(self, now_us: int) -> bool:
        return now_us - self._begun_us >= _NO_ROW_US


def _check_cursor(reader: Live, cursor: bytes) -> None:
    """Raises LocalProtocolError: a chunk of a reader lacks a cursor, or has one that it must not have."""
    resumes, who = isinstance(reader, Resumable), type(reader).__name__
    if resumes and not cursor:
        raise LocalProtocolError(f"{who} gave a chunk without a cursor; expected one behind each chunk, never empty")
    if cursor and not resumes:
        raise LocalProtocolError(f"{who} gave a chunk with a cursor; expected none, for it is no Resumable reader")
    if len(cursor) > CURSOR_BYTES_MAX:
        raise LocalProtocolError(f"{who} gave a cursor of {len(cursor)} bytes; expected at most {CURSOR_BYTES_MAX}")
