"""Measures the cost of a checkpoint log and the speed of the machine, for targets and status (rule G7).  Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

from replicas.checkpoint.extent import Extent
from replicas.checkpoint.log import CheckpointLog
from replicas.checkpoint.targets import ASSUMED, LogSpeeds, Workload, least
from spe.plan.log_targets import Continuous
from spe.status import LogStatus

#: Rates are measured over so much wall time.
WINDOW_US: Final = 10_000_000
#: An assumption weighs as much as so many measurements; older measurements count half, a quarter, and so on.
_ASSUMED_COUNT: Final = 1_000
_FADES_AT: Final = 1_000_000
#: With fewer rows or records, most of the time is the fixed cost of a slice.
_ROWS_LEAST: Final = 500
#: Expected time of a recovery with nothing to load, microseconds.
_BEGIN_US: Final = 3_000
#: Expectations before the first recovery, where targets stay safe: microseconds to load a record, and the time of a
#: replayed row as a part of a live row's, because many come at once.
_LOAD_US: Final = 0.5
_REPLAYED: Final = 0.3


class _Speed:
    """A mean of microseconds per piece of work."""

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
    """Adds a recovery to a speed, unless it is too small to be meaningful."""
    if count < _ROWS_LEAST:
        return before
    speed = _Speed(us / count) if before is None else before
    speed.took(count, us)
    return speed


class _Committed(NamedTuple):
    """A slice: when it was written, microseconds, the pieces that began and the rows that came in it."""

    now_us: int
    begun: int
    rows: int


class LogMeter:
    """Measures the log of one replica.

    Attributes:
      recovered_us: duration of the last recovery; None: there was none.
      expected_us: expected duration of that recovery.
      rewritten_bytes: bytes rewritten since the process began, in one copy.
    """

    def __init__(self) -> None:
        #: Speed of recoveries alone; None: there was none.
        self._loads: _Speed | None = None
        self._replays: _Speed | None = None
        self.learn(ASSUMED)
        self._slices: deque[_Committed] = deque()
        self.recovered_us: int | None = None
        self.expected_us: int | None = None
        self.rewritten_bytes = 0

    def learn(self, learnt: Sequence[float]) -> None:
        """Takes :attr:`learnt` of an earlier process; empty: only assumptions are known."""
        if learnt:
            self._load, self._replay, self._write = map(_Speed, learnt[:3])
            self._loads = None if learnt[0] == ASSUMED.load_us else _Speed(learnt[0])
            for us in learnt[3:]:
                self._replays = _Speed(us)

    @property
    def learnt(self) -> Sequence[float]:
        """Measured speeds for the next process, microseconds; the last one, if there was a replay, is that of replays
        alone.
        """
        return (*self.speeds, *(() if self._replays is None else (self._replays.us,)))

    @property
    def speeds(self) -> LogSpeeds:
        return LogSpeeds(self._load.us, self._replay.us, self._write.us)

    def recovered(self, records: int, load_us: int, rows: int, replay_us: int) -> None:
        """Notes the end of a recovery: the records loaded and the rows replayed.  The next one is expected to be like
        it.
        """
        self.expected_us = self._expected_us(records, rows)
        self.recovered_us = load_us + replay_us
        self._load.took(records, load_us)
        self._replay.took(rows, replay_us)
        self._loads = _with(self._loads, records, max(load_us - _BEGIN_US, load_us / 4))
        self._replays = _with(self._replays, rows, replay_us)

    def _expected_us(self, records: int, rows: int) -> int:
        """Returns the expected time, as in the last recoveries.  Targets use assumptions and live rows, which come in
        small slices and take longer, to be safe.
        """
        load_us = _LOAD_US if self._loads is None else self._loads.us
        replay_us = _REPLAYED * self._replay.us if self._replays is None else self._replays.us
        return round(_BEGIN_US + load_us * records + replay_us * rows) if records or rows else 0

    def processed(self, rows: int, us: float) -> None:
        """Notes that rows were processed; replaying many takes as long for each."""
        if rows >= _ROWS_LEAST:
            self._replay.took(rows, us)

    def rewrote(self, records: int, size: int, us: float) -> None:
        """Notes that records of so many bytes were rewritten."""
        self._write.took(records, us)
        self.rewritten_bytes += size

    def committed(self, now_us: int, begun: int, rows: int) -> None:
        """Notes that a slice was written, in which so many pieces began and so many rows came."""
        assert min(begun, rows) >= 0, "G7: rows and pieces only come"
        self._slices.append(_Committed(now_us, begun, rows))
        while self._slices[0].now_us <= now_us - WINDOW_US:
            self._slices.popleft()

    def workload(self, live: int, held_rows: int, now_us: int) -> Workload:
        """Returns the current state and input.

        Args:
          live: pieces of state with a record.
          held_rows: rows that operators keep unchanged.
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
        """Returns the status of the log.

        Args:
          extent: extent of the log; without a slice it holds no state yet.
          log: None: it cannot be opened.
          trouble: why it cannot be opened, or why a copy is not written.
        """
        speeds, live, records, rows, held_rows = self.speeds, 0, 0, 0, 0
        if extent:
            choices = extent.choices()
            live, held_rows = int(choices.cells[-1]), int(choices.rows[-1])
            records, rows = int(choices.records[0]), int(choices.rows[0])
        shortest = least(speeds, self.workload(live, held_rows, now_us), settings.share)
        return LogStatus(
            recovery_us=self._expected_us(records, rows),
            least_us=round(1e6 * shortest.seconds),
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
