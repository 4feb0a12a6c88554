"""What a checkpoint log costs and how quick the machine is, measured for targets and status (rule G7).  Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

from replicas.checkpoint.extent import Extent
from replicas.checkpoint.log import CheckpointLog
from replicas.checkpoint.targets import ASSUMED, LogSpeeds, Workload, least
from spe.plan.log_targets import Continuous
from spe.status import LogStatus

#: Rates are of so much wall time.
WINDOW_US: Final = 10_000_000
#: What is assumed counts as so much that was measured; what is older than some more of it counts half, and so on.
_ASSUMED_COUNT: Final = 1_000
_FADES_AT: Final = 1_000_000
#: Of fewer rows, or records, most of the time goes into what a slice takes, however many there are.
_ROWS_LEAST: Final = 500
#: What a recovery is expected to take whatever there is to load, microseconds.
_BEGIN_US: Final = 3_000
#: What is expected before the first one, where targets stay safe: microseconds to load a record, and the part of a live
#: row's time that a replayed one takes, for many come at once.
_LOAD_US: Final = 0.5
_REPLAYED: Final = 0.3


class _Speed:
    """Microseconds per piece of work."""

    def __init__(self, assumed_us: float) -> None:
        self._count: float = _ASSUMED_COUNT
        self._us = _ASSUMED_COUNT * assumed_us

    def took(self, count: int, us: float) -> None:
        self._count, self._us = self._count + count, self._us + us
        if self._count > _FADES_AT:
            self._count, self._us = self._count / 2, self._us / 2

    @property
    def us(self) -> float:
        return self._us / self._count


def _with(before: _Speed | None, count: int, us: float) -> _Speed | None:
    """With one recovery more, unless it says too little."""
    if count < _ROWS_LEAST:
        return before
    speed = _Speed(us / count) if before is None else before
    speed.took(count, us)
    return speed


class _Committed(NamedTuple):
    """A slice: when it was written, microseconds, and what began and came in it."""

    now_us: int
    begun: int
    rows: int


class LogMeter:
    """Measures one replica.

    Attributes:
      recovered_us: how long the last recovery took; None: there was none.
      expected_us: what had been expected of it.
      rewritten_bytes: since the process began, in one copy.
    """

    def __init__(self) -> None:
        #: Of recoveries alone; None: there was none.
        self._loads: _Speed | None = None
        self._replays: _Speed | None = None
        self.learn(ASSUMED)
        self._slices: deque[_Committed] = deque()
        self.recovered_us: int | None = None
        self.expected_us: int | None = None
        self.rewritten_bytes = 0

    def learn(self, learnt: Sequence[float]) -> None:
        """What :attr:`learnt` was before the process began; nothing: no more is known than is assumed."""
        if learnt:
            self._load, self._replay, self._write = map(_Speed, learnt[:3])
            self._loads = None if learnt[0] == ASSUMED.load_us else _Speed(learnt[0])
            for us in learnt[3:]:
                self._replays = _Speed(us)

    @property
    def learnt(self) -> Sequence[float]:
        """Speeds as they were measured, microseconds, for the next process: of a replay alone at last, if there was
        one.
        """
        return (*self.speeds, *(() if self._replays is None else (self._replays.us,)))

    @property
    def speeds(self) -> LogSpeeds:
        return LogSpeeds(self._load.us, self._replay.us, self._write.us)

    def recovered(self, records: int, load_us: int, rows: int, replay_us: int) -> None:
        """A recovery has ended: so many records were loaded and rows replayed.  The next one is expected to be like
        it.
        """
        self.expected_us = self._expected_us(records, rows)
        self.recovered_us = load_us + replay_us
        self._load.took(records, load_us)
        self._replay.took(rows, replay_us)
        self._loads = _with(self._loads, records, max(load_us - _BEGIN_US, load_us / 4))
        self._replays = _with(self._replays, rows, replay_us)

    def _expected_us(self, records: int, rows: int) -> int:
        """As in the last recoveries.  Targets go by what is assumed and by live rows, which come in small slices and
        take longer, to be safe.
        """
        load_us = _LOAD_US if self._loads is None else self._loads.us
        replay_us = _REPLAYED * self._replay.us if self._replays is None else self._replays.us
        return round(_BEGIN_US + load_us * records + replay_us * rows) if records or rows else 0

    def processed(self, rows: int, us: float) -> None:
        """Rows were processed; to replay many would take as long for each."""
        if rows >= _ROWS_LEAST:
            self._replay.took(rows, us)

    def rewrote(self, records: int, size: int, us: float) -> None:
        """Records of so many bytes were rewritten."""
        self._write.took(records, us)
        self.rewritten_bytes += size

    def committed(self, now_us: int, begun: int, rows: int) -> None:
        """A slice was written, in which so many pieces began and so many rows came in."""
        self._slices.append(_Committed(now_us, begun, rows))
        while self._slices[0].now_us <= now_us - WINDOW_US:
            self._slices.popleft()

    def workload(self, live: int, held_rows: int, now_us: int) -> Workload:
        """State and input as they are now.

        Args:
          live: pieces of state with a record.
          held_rows: rows that operators keep as they are.
        """
        slices = [s for s in self._slices if s.now_us > now_us - WINDOW_US]
        if len(slices) < 2:
            return Workload(float(live), held_rows=float(held_rows))
        seconds = 1e-6 * (slices[-1].now_us - slices[0].now_us)
        begun, rows = (sum(values) / seconds for values in zip(*((s.begun, s.rows) for s in slices[1:])))
        return Workload(float(live), begun, rows, float(held_rows))

    def status(
        self, settings: Continuous, extent: Extent, log: CheckpointLog | None, trouble: str, now_us: int
    ) -> LogStatus:
        """
        Args:
          extent: of the log; without a slice it holds no state yet.
          log: None: it cannot be opened.
          trouble: why not, or why a copy is not written.
        """
        speeds, live, records, rows, held_rows = self.speeds, 0, 0, 0, 0
        if extent:
            choices = extent.choices()
            live, held_rows = int(choices.cells[-1]), int(choices.rows[-1])
            records, rows = int(choices.records[0]), int(choices.rows[0])
        found = least(speeds, self.workload(live, held_rows, now_us), settings.share)
        return LogStatus(
            recovery_us=self._expected_us(records, rows),
            least_us=round(1e6 * found.seconds),
            recovered_us=self.recovered_us,
            expected_us=self.expected_us,
            records=records,
            rows=rows,
            live=live,
            load_us=speeds.load_us,
            replay_us=speeds.replay_us,
            write_us=speeds.write_us,
            written_bytes=0 if log is None else log.written_bytes,
            rewritten_bytes=self.rewritten_bytes,
            kept_bytes=0 if log is None else log.kept_bytes,
            trouble=trouble,
        )
