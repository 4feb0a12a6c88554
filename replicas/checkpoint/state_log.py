"""What a replica writes to its checkpoint log at each stable slice, and what it goes on from (rules G1, G4 and G5).

Encoding is done off the event loop.  Slices are written in their order, one at a time.
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

#: What is larger goes to the log in several records: one of more than RECORD_BYTES_MAX could not be read.
PART_BYTES: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class StableSlice:
    """A slice that has just been worked on.

    Attributes:
      end: of the slice.
      made: what the operators add.
      live: all footprints that count, where ``made.whole``.
      positions: of each input, the last id that is in it.
      rows: input rows up to its end, since any fixed moment.
      outputs: counters of the outputs at its end.
      released: the stable output of the slice, of a complete one (``made``) all that somebody may still ask for; None
        where there is none.
      released_from: end of the oldest slice whose output somebody may still ask for.
      origins: of the source logs that each input comes from (S6).
      speeds: what replicas.checkpoint.meter.LogMeter learnt, for whoever goes on from it.
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
    """What there is to go on from: the newest commit, to ``end``, with input that is replayed from ``begin``.

    Attributes:
      positions: of each input, at ``begin``.
      origins: as in :class:`StableSlice`.
      made: of the first output, the last id and the boundary at ``end``.
    """

    end: int
    begin: int
    positions: Sequence[int]
    origins: Sequence[str]
    made: tuple[int, int]


class LoggedState(NamedTuple):
    """What a log says of its newest commit.

    Attributes:
      end: t_c; ``commit``: of the operators, and ``outputs``, of its slice; ``last``: its last record.
      begin: T; ``start``: what the operators committed there.
      positions: of each input, at the ends of slices from T on: input is replayed from those of T.
      slices: footprints and closings, from the oldest that counts on.
      released: of these slices that have some, the end and the stable output, in order.
      extent: of these slices; its footprints are to be counted anew when they are loaded.
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
      log: nobody else writes it.
      compute: what encodes and writes.
      step_ns: measures how long that takes, nanoseconds.

    Attributes:
      extent: what would have to be read and replayed; of no use while :attr:`lacks`.
      lacks: a slice is missing: only one with a complete state can follow.
      written_bytes: of the last slice, in one copy; ``written_ns``: what it took.
    """

    def __init__(self, log: CheckpointLog, compute: Compute, step_ns: Callable[[], int] = lambda: 0) -> None:
        self._step_ns = step_ns
        self._log = log
        self._compute = compute
        self.extent = Extent()
        self.lacks = True
        self.written_bytes = self.written_ns = 0
        #: The oldest record that counts: what lies before it is not all there.
        self._first = 1
        #: (end of a slice, input positions there) since T.
        self._positions: deque[tuple[int, list[int]]] = deque()
        #: (last record, T) of slices that are not synced in both copies.
        self._written: deque[tuple[int, int]] = deque()
        #: Input positions that upstream need not keep; None: the log holds no state yet.
        self._durable: list[int] | None = None

    async def goes_on(self, found: LoggedState, live: Sequence[LiveFootprints]) -> bool:
        """The replica has the state of a commit.

        Args:
          live: its footprints that count.

        Returns:
          False: it is not the newest one, for the replica before was still writing: what that wrote counts until a
            complete state follows it.
        """
        if found.last != self._log.last_sequence:
            return False
        ends = found.extent.ends
        counts = await self._compute.run(lambda: counted(ends, live))
        self.extent = found.extent
        self.extent.recount(*counts)
        self.lacks = False
        self._first = self._log.commits[-1].needs
        self._positions = deque((end, list(positions)) for end, positions in found.positions.items())
        self._written = deque([(self._log.last_sequence, found.begin)])  # perhaps others were of a replica before
        self._synced(self._log.held_by_both)
        return True

    async def write(self, one: StableSlice) -> bool:
        """Writes a slice; returns whether it is in the log.

        Where it is not, or may be in part of it only, the operators are to forget what they wrote: nothing is taken
        before a slice with a complete state.

        Raises:
          LocalProtocolError: a user's operator has a state that cannot be written; it is not in the log.
        """
        if self.lacks and not one.made.complete:
            return False
        begin, needs = self._count(one, await self._counts(one))
        self.lacks = True
        first = self._first_of(needs)
        try:
            await self._compute.run(lambda: self._write(one, begin, first))
        except (LogFull, LogError):
            return False
        self.lacks = False
        self._written.append((self._log.last_sequence, begin))
        if self._positions and self._positions[-1][0] == one.end:
            self._positions.pop()
        self._positions.append((one.end, list(one.positions)))
        return True

    def _write(self, one: StableSlice, begin: int, first: int | None) -> None:
        """In a thread."""
        bytes_before, begun_ns = self._log.written_bytes, self._step_ns()
        records, commit = _encoded(one, begin)
        self._log.write(one.end, records, commit, first)
        self.written_bytes, self.written_ns = self._log.written_bytes - bytes_before, self._step_ns() - begun_ns

    async def _counts(self, one: StableSlice) -> tuple[Counts, Counts]:
        """Of each slice with this one, the footprints that count no more; where ``one.live`` is there, all that do."""
        ends = np.array([one.end]) if one.made.complete else np.unique(np.append(self.extent.ends, one.end))
        if one.live is None and sum(len(part.times) for part in one.made.replaced) <= LATER:
            return counted(ends, one.made.replaced)
        parts = one.made.replaced if one.live is None else one.live
        return await self._compute.run(lambda: counted(ends, parts))

    def _count(self, one: StableSlice, counts: tuple[Counts, Counts]) -> tuple[int, int]:
        """T, and the end of the oldest slice that a reader of this one needs.

        Args:
          counts: what :meth:`_counts` says.
        """
        made = one.made
        if made.complete:
            self.extent, self._first = Extent(), self._log.last_sequence + 1
        extent = self.extent
        extent.held = made.oldest_row
        extent.commit(one.end, made.written, one.rows, made.not_final)
        if one.live is not None:
            extent.recount(*counts)
        else:
            extent.replace(*counts)
        needs = min(extent.needs(), one.released_from)
        begin = extent.replay_from()
        extent.cut()
        return begin, needs

    def _first_of(self, needs: int) -> int | None:
        """The first record of the slice to ``needs``, of which more may have been written; None: it is the next one."""
        commits = self._log.commits
        at = bisect_left(commits, needs, key=lambda c: c.time)
        return max(commits[at].first, self._first) if at < len(commits) else None

    async def sync(self) -> None:
        """Syncs what was written, and cuts off what nobody needs.  Raises LogError: no copy is left."""
        self._synced(await self._log.sync())
        await self._log.cut()

    def _synced(self, held: Commit | None) -> None:
        while held is not None and self._written and self._written[0][0] <= held.last:
            _, begin = self._written.popleft()
            while self._positions[0][0] < begin:
                self._positions.popleft()
            self._durable = self._positions[0][1]

    def acknowledged(self) -> list[int] | None:
        """Input positions that upstream may forget: positions(T) of what both copies hold (G5).

        None: nothing.
        """
        return self._durable


def _encoded(one: StableSlice, begin: int) -> tuple[list[tuple[LogKind, bytes | memoryview]], bytes]:
    records: list[tuple[LogKind, bytes | memoryview]] = []
    if one.released is not None:
        records += _parts(LogKind.OUTPUT, one.released)
    if footprints := one.made.all_footprints():
        records += _parts(LogKind.FOOTPRINTS, footprints)
    if one.made.closings:
        records += _parts(LogKind.CLOSINGS, one.made.closings)
    commit = {
        "begin": begin,
        "fragment": one.made.commit,
        "origins": list(one.origins),
        "outputs": list(one.outputs),
        "positions": list(one.positions),
        "rows": one.rows,
        "speeds": list(one.speeds),
        "written": one.made.written,
    }
    return records, encode_state(commit)


def _parts(kind: LogKind, tree: Any) -> Iterator[tuple[LogKind, memoryview]]:
    data = encode_large_state(tree)
    for start in range(0, len(data), PART_BYTES):
        yield kind, data[start : start + PART_BYTES]


async def read_head(log: LogReader, compute: Compute) -> LogHead | None:
    """What there is to go on from, without reading it all; None: there is no commit.

    Raises:
      LogCorrupt: a commit is damaged in both copies, or missing.
      RemoteProtocolError: it is no commit of a state.
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
    """The same of slices that somebody sent.  Raises RemoteProtocolError: they are not all that is needed."""
    if not slices:
        raise RemoteProtocolError("no slice of a checkpoint log")
    newest = decode_state(slices[-1].commit)
    begin = [one for one in slices if one.time == newest["begin"]]
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
    """What the newest commit of a log says, read a segment at a time; None: there is no commit.

    Raises:
      LogCorrupt: a record is damaged in both copies.
      RemoteProtocolError: a record is no record of a state.
    """
    if not log.commits:
        return None
    newest = log.commits[-1]
    found = _Found(newest)
    with log.reading(newest.needs) as portions:
        while await compute.run(lambda: found.take(next(portions, None))):
            pass
    return found.state()


class _Found:
    """Slices as they are read."""

    def __init__(self, newest: Commit) -> None:
        self._newest = newest
        #: Of the slice that is being read, by kind.
        self._parts: dict[LogKind, list[bytes]] = {}
        self._slices: list[LoggedSlice] = []
        self._commits: dict[int, Any] = {}
        self._released: list[tuple[int, Any]] = []
        self._extent = Extent()

    def take(self, portion: Sequence[LogRecord] | None) -> bool:
        """The next records; None: there are no more."""
        for record in portion or ():
            if record.sequence > self._newest.last:  # written meanwhile
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
