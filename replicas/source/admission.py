"""Decides which rows a source takes; other rows are counted, reported and set aside, never dropped silently."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import PurePosixPath
from typing import Final

import numpy as np

from replicas.connectors import Malformed, RowChunk
from replicas.connectors.formats.json_text import json_rows
from replicas.connectors.formats.text_columns import UNITS_US
from replicas.source.stamping import admitted
from spe.errors import SpeError
from spe.log.rejected_rows import RejectedInput
from spe.plan.plan import Source
from spe.runtime.env import Env
from spe.runtime.log_line import Level, say
from spe.stream.batch import BoolArray
from spe.stream.times import format_timestamp, parse_timestamp

#: Event times outside of these are reported as implausible: a wrong unit is off by a factor of a thousand or more.
_EARLIEST_US: Final = parse_timestamp("1980-01-01")
_LATEST_US: Final = parse_timestamp("2100-01-01")
#: Number of malformed rows, and of refused ones, set aside per start; all are counted.
_ROWS_KEPT: Final = 10_000
#: Largest length of their texts.
_TEXT_KEPT: Final = 200


class Admission:
    """Decides which rows one source takes.

    Args:
      reject: takes rejected rows, if the source has a sink for them.

    Attributes:
      malformed_count: rows that could not be parsed.
      refused_count: rows whose event time is too far ahead of the clock, or near the ends of time.
      stopped: the malformed row that ends the intake (``on_malformed: stop``), once all rows before it have been taken.
    """

    def __init__(self, env: Env, source: Source, reject: Callable[[Sequence[RejectedInput]], None]) -> None:
        self._env = env
        self._source = source
        self._reject = None if source.rejected is None else reject
        self.malformed_count = 0
        self.refused_count = 0
        self.stopped: SpeError | None = None
        self._times_looked_at = source.reader.get("kind") == "generator"

    def check(self, chunk: RowChunk, now_us: int, ahead_us: int | None) -> RowChunk:
        """Returns the rows that may be taken; if a malformed row ends the intake, those before it."""
        assert self.stopped is None, "S9: nothing is taken after the row that stops the source"
        if self._source.on_malformed == "stop" and not all(row.refused for row in chunk.malformed):
            chunk = chunk.before_malformed()
            self.stopped = malformed_error(self._source, chunk.malformed[0])
        chunk = self.admit(chunk, now_us, ahead_us)
        if chunk.malformed:
            refused = [row for row in chunk.malformed if row.refused]
            malformed = [row for row in chunk.malformed if not row.refused]
            self._set_aside("malformed", malformed, self.malformed_count)
            self._set_aside("refused", refused, self.refused_count)
            self.malformed_count += len(malformed)
            self.refused_count += len(refused)
            if self._reject is not None:
                self._reject(rejected_inputs(chunk, self._source, now_us))
        return chunk

    def admit(self, chunk: RowChunk, now_us: int, ahead_us: int | None) -> RowChunk:
        """Returns the chunk without rows whose event times are refused; these are among its malformed rows.

        An admitted row would be admitted again later, since the clock only advances.
        """
        if chunk.events is None or not len(chunk):
            return chunk
        if not self._times_looked_at:
            self._times_looked_at = True
            self._look_at_times(int(np.median(chunk.events)))
        mask = admitted(chunk.events, now_us, ahead_us)
        return chunk if mask is None else chunk.refuse(~mask, refused_rows(chunk, ~mask, self._source, now_us))

    def _look_at_times(self, event_us: int) -> None:
        """Reports implausible event times once, such as those from a wrong unit of numbers."""
        if why := implausible(event_us, str(self._source.reader.get("timestamps", "iso"))):
            self._env.trace.event("times_implausible", stream=self._source.stream, event_us=event_us)
            say(f"source {self._source.stream}: {why}", Level.WARNING, event="times_implausible")

    def _set_aside(self, what: str, rows: list[Malformed], before: int) -> None:
        """Reports rows that are ``malformed`` or ``refused``, and writes the first ones to a file.

        Args:
          before: number of earlier rows of this kind.
        """
        if not rows:
            return
        stream, file_name = self._source.stream, PurePosixPath(what, f"{self._source.stream}.jsonl")
        self._env.trace.event(f"rows_{what}", stream=stream, count=len(rows), line=rows[0].line, reason=rows[0].reason)
        stored = rows[: max(0, _ROWS_KEPT - before)]
        if not stored:
            return
        text = "".join(json.dumps(row._replace(text=row.text[:_TEXT_KEPT]).to_dict()) + "\n" for row in stored)
        try:
            file = self._env.storage.open(file_name)
            try:
                file.append(text.encode())
            finally:
                file.close()
        except OSError as error:  # the rows are counted and reported anyway
            self._env.trace.event("rows_not_kept", file=str(file_name), error=str(error))


def rejected_inputs(chunk: RowChunk, source: Source, now_us: int) -> list[RejectedInput]:
    """Returns the rejected rows of a chunk, in its order (E8)."""
    missing = chunk.missing().tolist()
    # A line that was too long may have no place of its own; it gets the place of the last row.
    rows = [*missing, *[chunk.taken - 1] * (len(chunk.malformed) - len(missing))]
    begin = "" if source.live else f"{source.reader.get('path', source.stream)}, "
    return [
        RejectedInput(chunk.first + row, now_us, f"{begin}{bad.where}", bad.reason, bad.text)
        for row, bad in zip(rows, chunk.malformed)
    ]


def refused_rows(chunk: RowChunk, mask: BoolArray, source: Source, now_us: int) -> list[Malformed]:
    """Returns the rows of a mask, each with the reason why its event time is refused."""
    assert chunk.events is not None
    refused = np.flatnonzero(mask)
    places = refused if chunk.places is None else chunk.places[refused]
    texts = json_rows([column.take(refused) for column in chunk.columns], source.schema)
    end = " since the start" if source.live else ""
    rows = []
    for row, event_us, text in zip(places.tolist(), chunk.events[refused].tolist(), texts):
        number = chunk.first + row + 1
        place = f"row {number}{end}" if chunk.where is None else chunk.where(row)
        why = "too far ahead of the clock" if source.live and event_us > now_us else "beyond the times that are taken"
        reason = f"{source.time}: {format_timestamp(event_us)} is {why}"
        rows.append(Malformed(number, reason, text, place, refused=True))
    return rows


def implausible(event_us: int, unit: str) -> str:
    """Explains why an event time is implausible; "" if it is not.

    Args:
      event_us: event time as read.
      unit: unit of the numbers that it was read from: iso, s, ms, us or ns.
    """
    if _EARLIEST_US <= event_us < _LATEST_US:
        return ""
    why = f"event times around {format_timestamp(event_us)} are implausible"
    if unit not in UNITS_US:
        return why
    number = event_us / UNITS_US[unit]
    better = [u for u, scale in UNITS_US.items() if _EARLIEST_US <= number * scale < _LATEST_US]
    why = f"{why}; they were read as {unit} since the epoch"
    if not better:
        return why
    return f"{why}; with timestamps: {better[0]} they would be {format_timestamp(round(number * UNITS_US[better[0]]))}"


def malformed_error(source: Source, row: Malformed) -> SpeError:
    return SpeError(f"source {source.stream}: {row.where}: {row.reason}")
