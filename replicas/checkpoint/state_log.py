"""Writes the stable slices of a replica to its checkpoint log, and reads its state back (rules G1, G4 and G5).

Encoding is done off the event loop.  Slices are written in order, one at a time.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from operators.footprints import LATER, LiveFootprints, Tree
from operators.fragment_log import LoggedSlice, SliceLog
from replicas.checkpoint.extent import Counts, Extent, counted
from replicas.checkpoint.log import CheckpointLog, Commit, LogKind, LogReader, LogRecord
from replicas.checkpoint.log_transfer import SentSlice
from spe.errors import LogCorrupt, LogError, LogFull, RemoteProtocolError
from spe.runtime.env import Compute
from spe.stream.times import END_OF_TIME
from spe.wire.state import decode_state, encode_large_state, encode_state

#: Larger trees are divided into several records: one of more than RECORD_BYTES_MAX could not be read.
PART_BYTES: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class StableSlice:
    """A processed slice, to be written.

    Attributes:
      end: end of the slice.
      made: the records of the operators.
      live: all live footprints, if ``made.whole``.
      positions: last id of each input that is in the slice.
      rows: input rows up to its end; only differences are meaningful.
      outputs: counters of the outputs at its end.
      released: the stable output of the slice; for a complete one (``made``), all output that a consumer may ask for;
        None if there is none.
      released_from: end of the oldest slice whose output a consumer may ask for.
      origins: origins of the source logs of each input (S6).
      speeds: measurements of replicas.checkpoint.meter.LogMeter, for a later recovery.
    """

    end: int
    made: SliceLog
    live: Sequence[LiveFootprints] | None
    positions: Sequence[int]
    rows: int
    outputs: Sequence[Tree]
    released: Any = None
    released_from: int = END_OF_TIME
    origins: Sequence[str] = ()
    speeds: Sequence[float] = ()


class LogHead(NamedTuple):
    """The starting point of a recovery: the newest commit, at ``end``, with input that is replayed from ``begin``.

    Attributes:
      positions: positions of the inputs at ``begin``.
      origins: as in :class:`StableSlice`.
      made: the last id and the boundary of the first output at ``end``.
    """

    end: int
    begin: int
    positions: Sequence[int]
    origins: Sequence[str]
    made: tuple[int, int]


class LoggedState(NamedTuple):
    """The state of a log at its newest commit.

    Attributes:
      end: t_c.
      commit, outputs: commit of the operators, and outputs, of its slice.
      last: its last record.
      begin: T.
      start: commit of the operators at T.
      positions: input positions at the ends of slices from T on: input is replayed from those of T.
      slices: footprints and closings, from the oldest live one on.
      released: end and stable output of those slices that have output, in order.
      extent: extent of these slices; its footprints are counted anew when they are loaded.
      rows, origins, speeds: as in :class:`StableSlice`, at ``end``.
    """

    end: int
    last: int
    commit: Tree
    outputs: Sequence[Tree]
    begin: int
    start: Tree
    positions: Mapping[int, Sequence[int]]
    slices: Sequence[LoggedSlice]
    released: Sequence[tuple[int, Any]]
    extent: Extent
    rows: int
    origins: Sequence[str]
    speeds: Sequence[float]


class StateLog:
    """Writes the checkpoint log of one replica.

    Args:
      log: has no other writer.
      compute: runs encoding and writing.
      step_ns: measures how long that takes, nanoseconds.

    Attributes:
      extent: the slices to read and replay in a recovery; meaningless while :attr:`lacks`.
      lacks: a slice is missing: only one with a complete state can follow.
      written_bytes: bytes of the last slice, in one copy.
      written_ns: duration of the last write.
    """

    def __init__(self, log: CheckpointLog, compute: Compute, step_ns: Callable[[], int] = lambda: 0) -> None:
        self._step_ns = step_ns
        self._log = log
        self._compute = compute
        self.extent = Extent()
        self.lacks = True
        self.written_bytes = self.written_ns = 0
        #: The oldest live record; earlier ones are incomplete.
        self._first = 1
        #: (end of a slice, input positions there) since T.
        self._positions: deque[tuple[int, list[int]]] = deque()
        #: (last record, T) of slices that are not synced in both copies.
        self._written: deque[tuple[int, int]] = deque()
        #: Input positions that upstream may forget; None: the log holds no state yet.
        self._durable: list[int] | None = None

    async def goes_on(self, loaded: LoggedState, live: Sequence[LiveFootprints]) -> bool:
        """Continues the log after the replica has loaded the state of a commit.

        Args:
          live: its live footprints.

        Returns:
          False: the commit is not the newest one, because an earlier replica was still writing: its slices count until
            a complete state follows them.
        """
        if loaded.last != self._log.last_sequence:
            return False
        assert loaded.begin in loaded.positions, "G4: input is replayed from the positions at T"
        ends = loaded.extent.ends
        counts = await self._compute.run(lambda: counted(ends, live))
        self.extent = loaded.extent
        self.extent.recount(*counts)
        self.lacks = False
        self._first = self._log.commits[-1].needs
        self._positions = deque((end, list(positions)) for end, positions in loaded.positions.items())
        self._written = deque([(self._log.last_sequence, loaded.begin)])  # some may be of an earlier replica
        self._synced(self._log.held_by_both)
        return True

    async def write(self, logged: StableSlice) -> bool:
        """Writes a slice; returns whether it is in the log.

        If it is not, or may be only in part, the operators must forget their records: the next slice must have a
        complete state.

        Raises:
          LocalProtocolError: the state of a user's operator cannot be encoded; it is not in the log.
        """
        if self.lacks and not logged.made.complete:
            return False
        begin, needs = self._count(logged, await self._counts(logged))
        self.lacks = True
        first = self._first_of(needs)
        try:
            await self._compute.run(lambda: self._write(logged, begin, first))
        except (LogFull, LogError):
            return False
        self.lacks = False
        self._written.append((self._log.last_sequence, begin))
        if self._positions and self._positions[-1][0] == logged.end:
            self._positions.pop()
        self._positions.append((logged.end, list(logged.positions)))
        return True

    def _write(self, logged: StableSlice, begin: int, first: int | None) -> None:
        """Encodes and writes, in a thread."""
        bytes_before, begun_ns = self._log.written_bytes, self._step_ns()
        records, commit = _encoded(logged, begin)
        self._log.write(logged.end, records, commit, first)
        self.written_bytes, self.written_ns = self._log.written_bytes - bytes_before, self._step_ns() - begun_ns

    async def _counts(self, logged: StableSlice) -> tuple[Counts, Counts]:
        """Counts replaced footprints by slice, including this one; with ``live``, all live ones."""
        ends = np.array([logged.end]) if logged.made.complete else np.unique(np.append(self.extent.ends, logged.end))
        if logged.live is None and sum(len(part.times) for part in logged.made.replaced) <= LATER:
            return counted(ends, logged.made.replaced)
        parts = logged.made.replaced if logged.live is None else logged.live
        return await self._compute.run(lambda: counted(ends, parts))

    def _count(self, logged: StableSlice, counts: tuple[Counts, Counts]) -> tuple[int, int]:
        """Updates the extent; returns T, and the end of the oldest slice that a reader of this one needs.

        Args:
          counts: result of :meth:`_counts`.
        """
        made = logged.made
        if made.complete:
            self.extent, self._first = Extent(), self._log.last_sequence + 1
        extent = self.extent
        extent.held = made.oldest_row
        extent.commit(logged.end, made.written, logged.rows, made.not_final)
        if logged.live is not None:
            extent.recount(*counts)
        else:
            extent.replace(*counts)
        needs = min(extent.needs(), logged.released_from)
        begin = extent.replay_from()
        extent.cut()
        assert needs <= begin <= logged.end, "G4: footprints from before T are loaded, rows from T on are replayed"
        return begin, needs

    def _first_of(self, needs: int) -> int | None:
        """Returns the first record of the slice to ``needs``, which later slices may have extended; None: the next
        record.
        """
        commits = self._log.commits
        assert self._first <= self._log.last_sequence + 1, "G5: the oldest live record is in the log, or comes next"
        at = bisect_left(commits, needs, key=lambda c: c.time)
        return max(commits[at].first, self._first) if at < len(commits) else None

    async def sync(self) -> None:
        """Syncs written slices, and cuts off segments that are not needed.  Raises LogError: no copy is left."""
        self._synced(await self._log.sync())
        await self._log.cut()

    def _synced(self, held: Commit | None) -> None:
        while held is not None and self._written and self._written[0][0] <= held.last:
            _, begin = self._written.popleft()
            while self._positions[0][0] < begin:
                self._positions.popleft()
            assert self._positions[0][0] == begin, "G5: what is acknowledged is the positions at T"
            self._durable = self._positions[0][1]

    def acknowledged(self) -> list[int] | None:
        """Returns the input positions that upstream may forget: positions(T) of the state that both copies hold (G5).

        None: none.
        """
        return self._durable


def _encoded(logged: StableSlice, begin: int) -> tuple[list[tuple[LogKind, bytes | memoryview]], bytes]:
    records: list[tuple[LogKind, bytes | memoryview]] = []
    if logged.released is not None:
        records += _parts(LogKind.OUTPUT, logged.released)
    if footprints := logged.made.all_footprints():
        records += _parts(LogKind.FOOTPRINTS, footprints)
    if logged.made.closings:
        records += _parts(LogKind.CLOSINGS, logged.made.closings)
    commit = {
        "begin": begin,
        "fragment": logged.made.commit,
        "origins": list(logged.origins),
        "outputs": list(logged.outputs),
        "positions": list(logged.positions),
        "rows": logged.rows,
        "speeds": list(logged.speeds),
        "written": logged.made.written,
    }
    return records, encode_state(commit)


def _parts(kind: LogKind, tree: Any) -> Iterator[tuple[LogKind, memoryview]]:
    data = encode_large_state(tree)
    for start in range(0, len(data), PART_BYTES):
        yield kind, data[start : start + PART_BYTES]


async def read_head(log: LogReader, compute: Compute) -> LogHead | None:
    """Returns the head of a log without reading all of it; None: there is no commit.

    Raises:
      LogCorrupt: a commit is damaged in both copies, or missing.
      RemoteProtocolError: not a commit of a state.
    """
    if not log.commits:
        return None
    newest = await _commit(log, compute, log.commits[-1])
    at = log.at(newest["begin"])
    if at is None or at.time != newest["begin"]:
        raise LogCorrupt(f"the checkpoint log has no commit of {newest['begin']}, from where input is replayed")
    begin = await _commit(log, compute, at)
    return _head(log.commits[-1].time, at.time, begin, newest)


def head_of(slices: Sequence[SentSlice]) -> LogHead:
    """Returns the head of slices from another node.  Raises RemoteProtocolError: they are incomplete."""
    if not slices:
        raise RemoteProtocolError("no slice of a checkpoint log")
    newest = decode_state(slices[-1].commit)
    begin = [sent for sent in slices if sent.time == newest["begin"]]
    if not begin:
        raise RemoteProtocolError(f"no slice to {newest['begin']}, from where input is replayed")
    return _head(slices[-1].time, begin[-1].time, decode_state(begin[-1].commit), newest)


def _head(end: int, begin: int, of_begin: Any, of_end: Any) -> LogHead:
    first = of_end["outputs"][0]
    return LogHead(
        end, begin, of_begin["positions"], of_end["origins"], (int(first["last_id"]), int(first["boundary"]))
    )


async def _commit(log: LogReader, compute: Compute, which: Commit) -> Any:
    with log.reading(which.last) as portions:
        return await compute.run(lambda: decode_state(next(portions)[0].payload))


async def read_state(log: LogReader, compute: Compute) -> LoggedState | None:
    """Returns the state at the newest commit of a log, read a segment at a time; None: there is no commit.

    Raises:
      LogCorrupt: a record is damaged in both copies.
      RemoteProtocolError: not a record of a state.
    """
    if not log.commits:
        return None
    newest = log.commits[-1]
    collected = _Found(newest)
    with log.reading(newest.needs) as portions:
        while await compute.run(lambda: collected.take(next(portions, None))):
            pass
    return collected.state()


class _Found:
    """Collects slices as they are read."""

    def __init__(self, newest: Commit) -> None:
        self._newest = newest
        #: Parts of the slice that is being read, by kind.
        self._parts: dict[LogKind, list[bytes]] = {}
        self._slices: list[LoggedSlice] = []
        self._commits: dict[int, Any] = {}
        self._released: list[tuple[int, Any]] = []
        self._extent = Extent()

    def take(self, portion: Sequence[LogRecord] | None) -> bool:
        """Takes the next records; None: there are no more."""
        for record in portion or ():
            if record.sequence > self._newest.last:  # written since the log was opened
                return False
            if record.kind is not LogKind.COMMIT:
                self._parts.setdefault(record.kind, []).append(record.payload)
                continue
            made = decode_state(record.payload)
            kinds = {kind: decode_state(b"".join(parts)) for kind, parts in self._parts.items()}
            self._parts = {}
            closings, footprints = kinds.get(LogKind.CLOSINGS, {}), kinds.get(LogKind.FOOTPRINTS, {})
            self._slices.append(LoggedSlice(record.time, closings, footprints))
            if LogKind.OUTPUT in kinds:
                self._released.append((record.time, kinds[LogKind.OUTPUT]))
            self._commits[record.time] = made
            self._extent.commit(record.time, made["written"], made["rows"], 0)
        return portion is not None

    def state(self) -> LoggedState:
        commit = self._commits[self._newest.time]
        start = self._commits[commit["begin"]]
        return LoggedState(
            self._newest.time,
            self._newest.last,
            commit["fragment"],
            commit["outputs"],
            commit["begin"],
            start["fragment"],
            {end: made["positions"] for end, made in self._commits.items() if end >= commit["begin"]},
            self._slices,
            self._released,
            self._extent,
            commit["rows"],
            commit["origins"],
            commit["speeds"],
        )
