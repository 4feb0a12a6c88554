"""Which rows a source takes; the others are counted, reported and kept aside, never dropped silently."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import PurePosixPath
from typing import Final

import numpy as np

from replicas.connectors import Malformed, RowChunk
from replicas.connectors.json_text import json_rows
from replicas.connectors.text_columns import UNITS_US
from replicas.source.stamping import admitted
from spe.errors import SpeError
from spe.log.rejected import RejectedInput
from spe.plan.plan import Source
from spe.runtime.env import Env
from spe.runtime.log_line import Level, say
from spe.stream.batch import BoolArray
from spe.stream.times import format_timestamp, parse_timestamp

#: Event times outside of these are said to be implausible: a wrong unit is off by a factor of a thousand or more.
_EARLIEST_US: Final = parse_timestamp("1980-01-01")
_LATEST_US: Final = parse_timestamp("2100-01-01")
#: Malformed rows kept aside per start; all are counted.
_MALFORMED_KEPT: Final = 10_000
#: Characters of their texts.
_TEXT_KEPT: Final = 200


class Admission:
    """Decides which rows one source takes.

    Args:
      reject: where rows go that are not taken, if the source has a sink for them.

    Attributes:
      malformed_count: rows that could not be understood.
      refused_count: rows whose event time is too far ahead of the clock, or near the ends of time.
      stopped: the malformed row that ends the intake (``on_malformed: stop``), once all before it have been taken.
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
        """The rows that may be taken; where a malformed one is to stop us, those before it."""
        if chunk.malformed:
            if self._source.on_malformed == "stop":
                chunk = chunk.before_malformed()
                self.stopped = malformed_error(self._source, chunk.malformed[0])
            self._set_aside(chunk.malformed)
        mask = self._refuse(chunk, now_us, ahead_us)
        if self._reject is not None and (chunk.malformed or mask is not None):
            self._reject(rejected_inputs(chunk, mask, self._source, now_us))
        return chunk if mask is None else chunk.select(mask)

    def _refuse(self, chunk: RowChunk, now_us: int, ahead_us: int | None) -> BoolArray | None:
        """Which rows have an event time that may be taken; None: all of them."""
        if chunk.events is None or not len(chunk):
            return None
        if not self._times_looked_at:
            self._times_looked_at = True
            self._look_at_times(int(np.median(chunk.events)))
        mask = admitted(chunk.events, now_us, ahead_us)
        if mask is not None:
            count = int((~mask).sum())
            self.refused_count += count
            furthest = int(chunk.events.max())
            self._env.trace.event("rows_refused", stream=self._source.stream, count=count, event_us=furthest)
        return mask

    def _look_at_times(self, event_us: int) -> None:
        """Reports once event times that are implausible, as a wrong unit of numbers gives them."""
        if why := implausible(event_us, str(self._source.reader.get("timestamps", "iso"))):
            self._env.trace.event("times_implausible", stream=self._source.stream, event_us=event_us)
            say(f"source {self._source.stream}: {why}", Level.WARNING, event="times_implausible")

    def _set_aside(self, rows: list[Malformed]) -> None:
        stream = self._source.stream
        kept = rows[: max(0, _MALFORMED_KEPT - self.malformed_count)]
        self.malformed_count += len(rows)
        self._env.trace.event(
            "rows_malformed", stream=stream, count=len(rows), line=rows[0].line, reason=rows[0].reason
        )
        if not kept:
            return
        text = "".join(json.dumps(row._replace(text=row.text[:_TEXT_KEPT]).to_dict()) + "\n" for row in kept)
        try:
            file = self._env.storage.open(PurePosixPath("malformed", f"{stream}.jsonl"))
            try:
                file.append(text.encode())
            finally:
                file.close()
        except OSError as error:  # they are counted and told of all the same
            self._env.trace.event("malformed_not_kept", stream=stream, error=str(error))


def rejected_inputs(chunk: RowChunk, mask: BoolArray | None, source: Source, now_us: int) -> list[RejectedInput]:
    """The rows of a chunk that are not taken, in its order (E8).

    Args:
      chunk: with the rows that are refused for their event times.
      mask: which are not; None: all.
    """
    places = np.arange(chunk.taken) if chunk.places is None else chunk.places
    missing = np.setdiff1d(np.arange(chunk.taken), places).tolist()
    # A line that was too long may have no place of its own; it goes with the last row.
    rows = [*missing, *[chunk.taken - 1] * (len(chunk.malformed) - len(missing))]
    begin, end = ("", " since the start") if source.live else (f"{source.reader.get('path', source.stream)}, ", "")
    found = [
        RejectedInput(chunk.first + row, now_us, f"{begin}{bad.where}", bad.reason, bad.text)
        for row, bad in zip(rows, chunk.malformed)
    ]
    if mask is None:
        return found
    assert chunk.events is not None
    refused = np.flatnonzero(~mask)
    texts = json_rows([column.take(refused) for column in chunk.columns], source.schema)
    for row, event_us, text in zip(places[refused].tolist(), chunk.events[refused].tolist(), texts):
        place = f"{begin}row {chunk.first + row + 1}{end}" if chunk.where is None else chunk.where(row)
        why = "too far ahead of the clock" if source.live and event_us > now_us else "beyond the times that are taken"
        reason = f"{source.time}: {format_timestamp(event_us)} is {why}"
        found.append(RejectedInput(chunk.first + row, now_us, place, reason, text))
    return sorted(found, key=lambda one: one.row)


def implausible(event_us: int, unit: str) -> str:
    """Why an event time cannot be meant; "" if it can.

    Args:
      event_us: as it was read.
      unit: of the numbers that it was read from: iso, s, ms, us or ns.
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
