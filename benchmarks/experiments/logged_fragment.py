"""A fragment that writes its checkpoint log, in one thread, for experiments: count windows of groups at random.

It chooses footprints to rewrite, paces that, writes and syncs as a node does (replicas/node/log_task.py).  Time is the
caller's: the CPU time of this fragment where it works without a pause, as in the CEC paper, or that of a stream with a
rate.  CPU time is that of this thread, which does all but syncing files.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple, TypeVar

import numpy as np
import trio

from benchmarks.data import mixed
from benchmarks.tables import demand
from consistency.dpc.instance import Instance
from operators.steps import finished
from operators.sunion.slice import Slice
from replicas.checkpoint.extent import Pacing
from replicas.checkpoint.log import CheckpointLog, LogReader
from replicas.checkpoint.meter import LogMeter
from replicas.checkpoint.pauses import Pauses
from replicas.checkpoint.state_log import StableSlice, StateLog, read_state
from replicas.checkpoint.targets import to_rewrite
from replicas.node.log_side import logged_output
from replicas.producer.log_entry import Entry
from spe.api import Environment, count_window, stdin
from spe.plan.log_targets import Continuous
from spe.plan.plan import Limits, Unit
from spe.runtime.production import tune_malloc
from spe.runtime.storage import DiskStorage
from spe.stream.batch import Batch, Column, Rows, concat_rows
from spe.stream.names import Kind
from spe.stream.times import BEFORE_TIME, END_OF_TIME, SECOND

T = TypeVar("T")
_MEMORY: Final = Path("/dev/shm")
_ROOM_BYTES: Final = 2 << 30
_FOLDER: Final = PurePosixPath("log")


@contextmanager
def files() -> Iterator[Path]:
    """A folder for a while, in memory where there is room."""
    room = _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free > _ROOM_BYTES
    with tempfile.TemporaryDirectory(dir=_MEMORY if room else None) as folder:
        yield Path(folder)


class Inline:
    """Implements spe.runtime.env.Compute: all in the caller's thread, so that its CPU time counts."""

    async def run(self, function: Callable[[], T]) -> T:
        await trio.lowlevel.checkpoint()
        return function()

    async def turn(self) -> None:
        await trio.lowlevel.checkpoint()


class Input(NamedTuple):
    """Rows with numbers from 0 on; each is of a group at random, and the same whenever it is asked for.

    Attributes:
      groups: how many there are.
      rate: rows per second of the stream, at most a million.
      window: rows of a count window.
    """

    groups: int
    rate: int
    window: int = 10

    def time(self, number: int) -> int:
        """When a row comes, microseconds of the stream."""
        return number * SECOND // self.rate

    def slice(self, first: int, last: int, at_us: int | None = None) -> Slice:
        """Rows ``first`` to ``last`` - 1.

        Args:
          at_us: what their column ``at`` says; None: their time.
        """
        numbers = np.arange(first, last)
        stamps = numbers * SECOND // self.rate
        at = stamps if at_us is None else np.full(len(numbers), at_us)
        columns = (Column(mixed(numbers) % self.groups), Column(numbers / 2), Column(at))
        return Slice([[Rows(stamps, stamps, columns)]], self.time(last), Kind.STABLE)

    def unit(self) -> Unit:
        env = Environment("experiment")
        rows = env.source("rows", stdin(format="jsonl"), {"key": "int64!", "value": "float64!", "at": "int64!"})
        windows = rows.key_by("key").window(count_window(self.window))
        out = windows.aggregate("out", mean="avg(value)", opened="first(at)")
        return env.outputs(out).node("n").fragment("f", [out], replicas=1).plan().units[0]


class Recovered(NamedTuple):
    """The cost of making the state again; CPU seconds.

    Attributes:
      records, rows: loaded and replayed.
      open_s: to look at the files.
      load_s: to read them and give the records to the operators; ``replay_s``: the rows.
      expected_s: of both, before.
    """

    records: int
    rows: int
    open_s: float
    load_s: float
    replay_s: float
    expected_s: float


class Totals(NamedTuple):
    """Counts since the beginning.

    Attributes:
      cpu_ns: of all work, for the input and for the log.
      log_ns: for the log alone.
      written: footprints; ``rewritten``: those that were written anew.
    """

    cpu_ns: int = 0
    log_ns: int = 0
    written: int = 0
    rewritten: int = 0

    def plus(self, **counts: int) -> Totals:
        return self._replace(**{name: getattr(self, name) + count for name, count in counts.items()})

    def since(self, before: Totals) -> Totals:
        return Totals(*(now - then for now, then in zip(self, before)))


class LoggedFragment:
    """One instance with its log.

    Args:
      given: its input.
      settings: of the log; None: it has none.
      folder: for the files; None: no log.
      pauses: between slices of the log; None: as a node's.

    Attributes:
      row: number of the next row.
      result: rows that the last slice released; None: none.
    """

    def __init__(
        self, given: Input, settings: Continuous | None, folder: Path | None, *, pauses: Pauses | None = None
    ) -> None:
        tune_malloc()  # as a node's process does
        self.given = given
        self._unit = given.unit()
        self.instance = Instance(self._unit, logs=settings is not None)
        self._settings = settings
        self._pauses = Pauses() if pauses is None else pauses
        self._storage = None if folder is None else DiskStorage(folder)
        self.log: CheckpointLog | None = None
        self.state: StateLog | None = None
        self.meter = LogMeter()
        self._pacing: Pacing | None = None
        self._logged_at = self._synced_at = self._logged_row = 0
        self._unsynced = False
        self._released: list[Entry] = []
        #: The last id that is in the log.
        self._logged_id = 0
        self.row = 0
        self.totals = Totals()
        self.result: Rows | None = None

    async def open(self) -> None:
        if self._settings is not None:
            assert self._storage is not None, "a log has files"
            self.log = await CheckpointLog.open(self._storage, _FOLDER, Inline())
            self.state = StateLog(self.log, Inline(), time.thread_time_ns)
            self._pacing = Pacing(self._settings.share, 0, self._settings.period_us)

    def close(self) -> None:
        if self.log is not None:
            self.log.close()

    def take(self, count: int, *, at_us: int | None = None) -> None:
        """Works on the next rows."""
        piece = self.given.slice(self.row, self.row + count, at_us)
        begun = time.thread_time_ns()
        elements = [e for portion in self.instance.stable(piece) if isinstance(portion, tuple) for e in portion[1]]
        batches = [e for e in elements if isinstance(e, Batch)]
        took_ns = time.thread_time_ns() - begun
        self.row += count
        self.totals = self.totals.plus(cpu_ns=took_ns)
        self.result = concat_rows([e.rows for e in batches]) if batches else None
        self.meter.processed(count, took_ns / 1e3)
        if self.state is not None:
            for batch in batches:
                self._released.append(Entry(batch))
                self._released[-1].boundary = piece.end

    async def write(self, now_us: int, *, sure: bool = False, syncs: bool = True) -> None:
        """Writes changes to the log, and syncs it, each if its time has come.

        Args:
          sure: whether it has or not.
          syncs: False: only writes, for a state that is filled before anything is measured.
        """
        state, log = self.state, self.log
        if state is None or log is None:
            return
        begun = time.thread_time_ns()
        if sure or self._pauses.is_over(now_us - self._logged_at, self.row - self._logged_row, hurries=False):
            self._logged_at, self._logged_row, self._unsynced = now_us, self.row, True
            await self._write(state, now_us)
        if sure or (syncs and self._unsynced and self._pauses.syncs(now_us - self._synced_at)):
            self._synced_at, self._unsynced = now_us, False
            await state.sync()
        took_ns = time.thread_time_ns() - begun
        self.totals = self.totals.plus(cpu_ns=took_ns, log_ns=took_ns)

    async def _write(self, state: StateLog, now_us: int) -> None:
        assert self.instance.log is not None, "it has one"
        assert self._settings is not None, "it has one"
        assert self._pacing is not None, "it is open"
        below, most, speeds, longest_us = BEFORE_TIME, 0, self.meter.speeds, END_OF_TIME
        if not state.lacks:
            choices = state.extent.choices()
            if chosen := to_rewrite(choices, self._settings, speeds):
                allowed = int(self._pacing.allowed_us(now_us) / speeds.write_us)
                below, most = choices.within(chosen, allowed)
                longest_us = self._settings.period_us if choices.cells[chosen] > allowed else END_OF_TIME
        end, rows = self.given.time(self.row), self.instance.rows
        begun = time.thread_time_ns()
        made = finished(self.instance.log.slice_log(end, below, most))
        live = finished(self.instance.log.live()) if made.whole else None
        took_ns = time.thread_time_ns() - begun
        outputs = [o.snapshot() for o in self.instance.outputs]
        last_id = self.instance.outputs[0].last_id
        released = logged_output([self._released], [self._logged_id], [last_id])
        self._released, self._logged_id = [], last_id
        slice_ = StableSlice(end, made, live, [self.row], rows, outputs, released, speeds=speeds)
        demand(await state.write(slice_), "a slice was refused")
        took_us = (took_ns + state.written_ns) / 1e3
        self._pauses.wrote(state.extent, end, took_us, longest_us)
        self.totals = self.totals.plus(written=made.written, rewritten=made.rewritten)
        if again := made.rewritten:
            share = again / made.written
            self._pacing.spent(share * took_us)
            self.meter.rewrote(again, round(share * state.written_bytes), share * took_us)

    @property
    def extent(self) -> tuple[int, int]:
        """Records to load and rows to replay, if it were killed now."""
        assert self.state is not None, "it has a log"
        choices = self.state.extent.choices()
        return int(choices.records[0]), int(choices.rows[0])

    @property
    def written_bytes(self) -> int:
        assert self.log is not None, "it is open"
        return self.log.written_bytes

    @property
    def kept_rows(self) -> int:
        """Rows that upstream keeps for us: they are not acknowledged."""
        assert self.state is not None, "it has a log"
        acknowledged = self.state.acknowledged()
        return self.row - (0 if acknowledged is None else acknowledged[0])

    async def recovered(self, now_us: int) -> Recovered:
        """Makes the state again beside this one, from the same files, and compares what both release afterwards."""
        await self.write(now_us, sure=True)
        assert self._storage is not None, "it has a log"
        other = Instance(self._unit, logs=True)
        assert other.log is not None, "it was made with one"
        times = [time.thread_time_ns()]
        reader = await LogReader.open_to_read(self._storage, _FOLDER, Inline())
        times.append(time.thread_time_ns())
        state = await read_state(reader, Inline())
        assert state is not None, "there is a commit"
        finished(other.log.reconstruct(state.commit, state.start, state.begin, state.slices))
        times.append(time.thread_time_ns())
        first, last = int(state.positions[state.begin][0]), self.row
        cuts = [*range(first, last, Limits().slice_rows), last]
        replay_ns = 0
        for cut in pairwise(cuts):
            piece = self.given.slice(*cut)
            begun = time.thread_time_ns()
            for _ in other.again(piece):
                pass
            replay_ns += time.thread_time_ns() - begun
        other.log.replayed(state.commit, state.end)
        records, rows = self.extent
        demand(rows == last - first, f"{last - first} rows were replayed, not {rows}")
        open_ns, load_ns = (b - a for a, b in pairwise(times))
        self.meter.recovered(records, load_ns // 1000, rows, replay_ns // 1000)
        self._compare(other)
        assert self.meter.expected_us is not None, "it has just recovered"
        open_s, load_s, replay_s = (ns / 1e9 for ns in (open_ns, load_ns, replay_ns))
        return Recovered(records, rows, open_s, load_s, replay_s, self.meter.expected_us / 1e6)

    def _compare(self, other: Instance) -> None:
        """The next rows close many a window: both must release the same."""
        (theirs,) = other.fragment.step(self.given.slice(self.row, self.row + self.given.groups))
        self.take(self.given.groups)
        demand((theirs is None) == (self.result is None), "one of two released nothing")
        if theirs is not None and self.result is not None:
            same = [np.array_equal(a.values, b.values) for a, b in zip(theirs.columns, self.result.columns)]
            demand(all(same), "the state that was made again releases other rows")
