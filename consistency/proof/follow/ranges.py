"""Finds the next range of tuple time: up to the end of all logs and all recordings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from consistency.proof.follow.readers import ChannelProgress, LogOfSource, LogProgress, RecordingOfChannel
from consistency.proof.follow.state import State
from consistency.proof.recorded.records import CHANGES
from consistency.proof.recorded.run import Run
from consistency.proof.recorded.table_source import recording_table, source_table
from consistency.proof.report.words import moment
from spe.stream.names import StreamId
from spe.stream.times import END_OF_TIME, floor_to

#: Maximum size of the sources' logs that a step reads, approximately.
STEP_BYTES: Final = 128 << 20
STEP_RECORDS: Final = 50_000

#: A client, and an output that it reads.
Reading = tuple[str, StreamId]


@dataclass(frozen=True)
class Range:
    """The range of a step.

    Attributes:
      until_us: its end; END_OF_TIME: no end.
      first_us: the first tuple that no step took; END_OF_TIME: there is none.
      channels: of each output at each client, a reader per partition.
      waits_for: the process that limits it.
    """

    until_us: int
    first_us: int
    logs: Mapping[StreamId, LogOfSource]
    channels: Mapping[Reading, list[RecordingOfChannel]]
    waits_for: str


def next_range(run: Run, state: State, *, over: bool) -> Range:
    """Reads on in the logs, and then as far in the recordings.

    Args:
      over: the run is over; if logs and recordings lead no further, the remainder is the last range.
    """
    logs = {s: LogOfSource(source_table(run, s), state.logs.get(str(s), LogProgress())) for s in run.plan.sources}
    _read_on(logs)
    channels = _readers(run, state)
    behind = min(logs, key=lambda s: logs[s].bound_us)
    until_us = goal_us = floor_to(logs[behind].bound_us, run.reading.bucket_us)
    waits_for = f"source {behind}, which is at {moment(logs[behind].bound_us)}"
    for (client, output), each in channels.items():
        for recording in each:
            recording.read_until(goal_us)
            if recording.frontier_us < until_us:
                until_us = recording.frontier_us
                waits_for = f"client {client}, which has {output} until {moment(until_us)}"
    until_us = floor_to(until_us, run.reading.bucket_us)
    if over and not state.proved_us < until_us < END_OF_TIME:
        until_us = END_OF_TIME
        for reader in (*logs.values(), *(recording for each in channels.values() for recording in each)):
            while reader.pull():
                pass
    elif until_us >= END_OF_TIME:
        waits_for = "the processes of the run, which have not ended"
    first = [h.first_us for log in logs.values() for h in log.new() if h.first_us is not None]
    return Range(until_us, min(first, default=END_OF_TIME), logs, channels, waits_for)


def _read_on(logs: Mapping[StreamId, LogOfSource]) -> None:
    """Reads the log that is furthest behind in tuple time, repeatedly, until its end or the limit."""
    records = 0
    while records < STEP_RECORDS and sum(log.new_bytes for log in logs.values()) < STEP_BYTES:
        if not min(logs.values(), key=lambda log: log.bound_us).pull():
            return
        records += 1


def _readers(run: Run, state: State) -> dict[Reading, list[RecordingOfChannel]]:
    readers: dict[Reading, list[RecordingOfChannel]] = {}
    for client, entry in run.directory.clients.items():
        known = state.channels.get(client, {})
        for output in entry.reads:
            table, sorted_ = recording_table(run, client, output, CHANGES), output not in run.plan.sources
            readers[client, output] = [
                RecordingOfChannel(table, c.partition, known.get(str(c), ChannelProgress()), sorted_=sorted_)
                for c in run.channels(output)
            ]
    return readers
