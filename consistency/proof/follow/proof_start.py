"""Finds where a proof can begin after ``retain`` deleted the beginning of logs or recordings (rules E1 to E4).

No deleted tuple has a larger time than ``KeptLog.until_us``.  So behind it, by the lookback of each stream
(``margins``), and at a bucket, is a time T from which on everything is present: a proof at T equals one that earlier
steps brought there, except for the ids of results.  These are taken from the recordings, and must be equal in all.

Logs and recordings are read up to T for the checks that need no truth: times by rule S1, and P4.  The results
before T are not compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple

import numpy as np

from consistency.proof.follow.prefix import Prefix
from consistency.proof.follow.readers import (
    ChannelProgress,
    LogOfSource,
    LogProgress,
    RecordingOfChannel,
    RecordPlace,
    between,
)
from consistency.proof.follow.state import State, Tally
from consistency.proof.follow.times import with_times
from consistency.proof.follow.track import ChannelTrack, Wrong
from consistency.proof.recorded.elements import STABLE
from consistency.proof.recorded.query_file import AggregateEntry, CountEntry
from consistency.proof.recorded.records import CHANGES, Table, scan_stretch
from consistency.proof.recorded.run import Run
from consistency.proof.recorded.story import begun_us
from consistency.proof.recorded.table_source import recording_table, source_table
from consistency.proof.report.model import Flaw
from consistency.proof.report.words import moment
from spe.log.log_start import KeptLog, LogCut, read_kept
from spe.log.recording import decode_recorded
from spe.runtime.storage import DiskStorage
from spe.stream.batch import Batch, BoolArray
from spe.stream.ids import Channel
from spe.stream.names import StreamId
from spe.stream.strings import StringPool
from spe.stream.times import BEFORE_TIME, END_OF_TIME, floor_to, saturating_add

#: Number of records of a log that are checked together.
_PIECE_RECORDS: Final = 50_000


@dataclass(frozen=True)
class KeptLogs:
    """The remaining logs of a run.

    Attributes:
      sources: by source.
      channels: by client and channel.
    """

    sources: Mapping[StreamId, KeptLog]
    channels: Mapping[tuple[str, Channel], KeptLog]

    @classmethod
    def of(cls, run: Run) -> KeptLogs:
        return cls(
            {StreamId(s): _kept_log(run.source_path(StreamId(s))) for s in run.plan.sources},
            {recording: _kept_log(run.recording_path(*recording)) for recording in run.recordings()},
        )

    @property
    def whole(self) -> bool:
        """True if nothing was deleted."""
        return all(log.first == 1 for log in (*self.sources.values(), *self.channels.values()))

    def from_us(self, lookback_us: Mapping[StreamId, int]) -> int:
        """Returns T, not yet at a bucket; END_OF_TIME: there is none.

        A part of the instant ``until_us`` itself may have been deleted.
        """
        ends = [saturating_add(k.until_us, lookback_us[s] + 1) for s, k in self.sources.items() if k.first > 1]
        ends += [saturating_add(k.until_us, 1) for k in self.channels.values() if k.first > 1]
        return END_OF_TIME if BEFORE_TIME in ends else max(ends)

    def deleted_part(self, run: Run) -> str:
        """Describes what was deleted of the log with the latest beginning."""
        logs = [(k, run.source_path(s)) for s, k in self.sources.items()]
        logs += [(k, run.recording_path(*recording)) for recording, k in self.channels.items()]
        log, folder = max(((k, f) for k, f in logs if k.first > 1), key=lambda entry: entry[0].until_us)
        return log.text(folder) + ("; spe restore brings it back" if log.archive else "")


class NotYet(NamedTuple):
    """A log or a recording does not reach T."""

    waits_for: str


class _Begun(NamedTuple):
    """A channel at T.

    Attributes:
      before: id of the last result before T.
      at_us: wall time at which T became final.
      wrong: flaws that the elements alone show.
    """

    known: ChannelProgress
    before: int
    at_us: int
    wrong: list[Wrong]


def beginning(run: Run, anew: State, remaining_logs: KeptLogs, lookback_us: Mapping[StreamId, int]) -> State | NotYet:
    """Returns the state of a proof that begins at T.

    Args:
      anew: the state of a proof that begins with the first tuple.

    Raises:
      LogCut: nothing can be proved any more; has the reason.
    """
    deleted, from_us = remaining_logs.deleted_part(run), _from_us(run, remaining_logs, lookback_us)
    state = anew.model_copy(deep=True)
    state.proved_us = state.judged_us = state.first_us = from_us
    state.not_judged = f"before {moment(from_us)}: not judged ({deleted})"
    for stream, remaining in remaining_logs.sources.items():
        log, flaws = _log(run, stream, remaining, from_us, lookback_us[stream])
        if log.bound_us < from_us:
            return _not_yet(f"source {stream}, which is at {moment(log.bound_us)}", from_us)
        state.logs[str(stream)] = log
        if flaws:
            state.flaws[str(stream)] = (flaws[0], from_us)
    begun: dict[tuple[str, StreamId], list[_Begun]] = {}
    for (client, channel), remaining in remaining_logs.channels.items():
        output = channel.stream
        channel_start = _channel(recording_table(run, client, output, CHANGES), channel.partition, remaining, from_us)
        if channel_start.known.track.frontier_us < from_us:
            reached = moment(channel_start.known.track.frontier_us)
            return _not_yet(f"client {client}, which has {channel} until {reached}", from_us)
        state.channels.setdefault(client, {})[str(channel)] = channel_start.known
        begun.setdefault((client, output), []).append(channel_start)
    state.judged_at_us = min((at.at_us for each in begun.values() for at in each), default=None)
    for (client, output), each in begun.items():
        tally = state.tallies.setdefault(client, {}).setdefault(str(output), Tally())
        _note(tally, each, from_us, begun_us(run.events))
        places = state.places.setdefault(str(output), [at.before for at in each])
        _compare_ids(tally, places, [at.before for at in each], from_us)
    return state


def _from_us(run: Run, remaining_logs: KeptLogs, lookback_us: Mapping[StreamId, int]) -> int:
    """Returns T.  Raises LogCut: there is none."""
    without = f"{remaining_logs.deleted_part(run)}. Without it nothing can be proved"
    for name, entry in run.reading.operators.items():
        if isinstance(entry, AggregateEntry) and isinstance(entry.window, CountEntry):
            raise LogCut(
                f"{without}: operator {name!r} has {entry.window}, and which rows were in one is not known any more"
            )
    from_us = -floor_to(-remaining_logs.from_us(lookback_us), run.reading.bucket_us)
    if from_us >= END_OF_TIME:
        raise LogCut(f"{without}: no time is known from which on results are there")
    return from_us


def _not_yet(who: str, from_us: int) -> NotYet:
    return NotYet(f"{who}; what is left can be proved from {moment(from_us)} on")


def _note(tally: Tally, each: list[_Begun], from_us: int, begun: int) -> None:
    for partition, channel in enumerate(each):
        for wrong in channel.wrong:
            offender = wrong.offender(partition, begun)
            tally.add(wrong.flaw, wrong.tuples, [offender], max(wrong.time_us, from_us))


def _compare_ids(tally: Tally, first: list[int], own: list[int], from_us: int) -> None:
    """Compares ids, which are equal at all clients (U9): else a result is missing at one, or is there in excess."""
    for partition, (other, own_id) in enumerate(zip(first, own)):
        if other != own_id:
            tally.mistyped.append(
                f"partition {partition}: its first result from {moment(from_us)} on has the id {own_id + 1}, and "
                f"{other + 1} at another client"
            )
            tally.is_wrong(from_us)


def _kept_log(folder: Path) -> KeptLog:
    return read_kept(DiskStorage(folder), PurePosixPath())


def _first(log: KeptLog) -> RecordPlace:
    return RecordPlace(sequence=log.first, segment=log.first)


def _log(run: Run, stream: StreamId, log: KeptLog, from_us: int, lookback_us: int) -> tuple[LogProgress, list[str]]:
    """Reads a source's log until it tells the truth up to T, or to its end; returns also flaws of its times."""
    table, at = source_table(run, stream), _first(log)
    known = LogProgress(start=at, done=at, start_id=log.last_id, last_id=log.last_id)
    sentences: list[str] = []
    while known.bound_us < from_us:
        reader, pulled = LogOfSource(table, known), 0
        while reader.bound_us < from_us and (pulled < _PIECE_RECORDS or reader.bound_us <= known.bound_us):
            if not reader.pull():
                break
            pulled += 1
        until_us = min(from_us, reader.bound_us)
        if until_us <= known.bound_us:
            break
        # Rows are needed from T − lookback on, so only from the end of a piece before T.
        taken = reader.taken(until_us, max(0, lookback_us - (from_us - until_us)))
        known, flaws = with_times(run, stream, known, taken, log.until_us)
        sentences += flaws
    return known, sentences


def _channel(table: Table, partition: int, log: KeptLog, from_us: int) -> _Begun:
    """Reads a recording until it is final up to T, or to its end."""
    at = _first(log)
    reader = RecordingOfChannel(table, partition, ChannelProgress(start=at, done=at), sorted_=True)
    # E2: tentative results hold a segment, so none are open where the recording begins.
    track = ChannelTrack(passed_id=log.last_id, passed_us=log.until_us)
    ends, ahead, done, covered, at_us = {}, dict[int, tuple[RecordPlace, int]](), at, 0, 0
    wrong: list[Wrong] = []
    while track.frontier_us < from_us and reader.pull():
        head = reader.heads.pop()  # a recording may be far larger than the needed part
        ends[head.at.segment], done = head, head.next
        assert head.heard is not None
        if head.heard.kind == STABLE and head.heard.tuples and head.heard.last_us >= from_us:
            ahead[head.at.sequence] = head.at, track.passed_id
        wrong += track.hear(head.heard)
        covered, at_us = head.heard.id, head.heard.arrived_us
    start = next((place for place, _ in ahead.values()), done)
    before, stable, early = _results(reader, start, done, ahead, from_us, track.frontier_us)
    known = ChannelProgress(
        start=start,
        done=done,
        track=track.model_copy(update={"stable": stable, "tentative": track.live, "undone": 0, "corrections": 0}),
        prefix=Prefix().read(reader.folder, reader.ends(list(ends.values()))),
    )
    return _Begun(known, covered if before is None else before, at_us, wrong + early)


def _results(
    reader: RecordingOfChannel,
    start: RecordPlace,
    done: RecordPlace,
    ahead: Mapping[int, tuple[RecordPlace, int]],
    from_us: int,
    end_us: int,
) -> tuple[int | None, int, list[Wrong]]:
    """Finds the results from T on that came before everything up to T was final.

    Args:
      ahead: records that have such results, with the largest id before each.
      end_us: results beyond it, ahead of its boundary, are wrong.

    Returns:
      the id before the first result (None: there is none), number of results, and those that are wrong by themselves.
    """
    before: int | None = None
    count, known_ids, wrong, pool = 0, set[int](), list[Wrong](), StringPool()
    for stretch in between(reader.table, reader.partition, start, done) if ahead else ():
        for record in scan_stretch(reader.folder, stretch):
            if record.position.sequence not in ahead:
                continue
            _, arrived_us, batch = decode_recorded(record, reader.table.schema, pool, PurePosixPath(reader.folder))
            assert isinstance(batch, Batch)
            ids, time = batch.row_ids(), batch.rows.time
            late = np.array(
                [id_ <= ahead[record.position.sequence][1] and id_ not in known_ids for id_ in ids.tolist()]
            )
            count += int((time >= from_us).sum())
            here: BoolArray = (time >= from_us) & (time < end_us)
            for flaw, which in ((Flaw.EXTRA, time >= end_us), (Flaw.REORDERED, here & late)):
                if which.any():
                    at = int(which.argmax())
                    wrong.append(Wrong(flaw, int(which.sum()), int(ids[at]), int(time[at]), arrived_us))
            if before is None and here.any():
                before = int(ids[here.argmax()]) - 1
            known_ids.update(ids[here].tolist())
    return before, count, wrong
