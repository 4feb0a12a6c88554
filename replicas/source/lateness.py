"""Reports that most rows of a source are late, as they arrive (rule S7).  Pure: the time is passed in."""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from spe.plan.describe import show_duration
from spe.stream.times import MILLISECOND, SECOND

#: The rows of so long a time are counted, and of a slow source older ones up to the smallest number.
SPAN_US: Final = 10 * SECOND
ROWS_MIN: Final = 5
#: Rows are counted in intervals of this length, which bounds the memory.
_CELL_US: Final = SECOND
#: Time between two reports.
AGAIN_US: Final = 60 * SECOND


class MostlyLate(NamedTuple):
    """More than half of the last rows were late.

    Attributes:
      late, rows: number of late rows, and of all.
      disorder_us: the smallest disorder that would have covered them.
    """

    late: int
    rows: int
    disorder_us: int

    def __str__(self) -> str:
        unit = MILLISECOND if self.disorder_us < 60 * SECOND else SECOND
        enough = show_duration(-(-self.disorder_us // unit) * unit)
        return f"{self.late:,} of the last {self.rows:,} rows came late; disorder {enough} would have been enough"


class _Cell:
    """Counts of the rows of one interval."""

    __slots__ = ("at_us", "disorder_us", "late", "rows")

    def __init__(self, at_us: int) -> None:
        self.at_us = at_us
        self.rows = self.late = self.disorder_us = 0


class Lateness:
    """Counts the latest rows of one source."""

    def __init__(self) -> None:
        self._cells: deque[_Cell] = deque()
        self._rows = 0
        self._late = 0
        self._said_us: int | None = None

    def took(self, now_us: int, rows: int, late: int, disorder_us: int) -> MostlyLate | None:
        """Counts rows; returns a report if one is due, at most once in AGAIN_US.

        Args:
          now_us: time of arrival; it never falls.
          disorder_us: the smallest disorder that would have covered the late ones among them; 0 if none was late.
        """
        assert 0 <= late <= rows, "S7: late rows are some of the rows"
        at_us = now_us - now_us % _CELL_US
        if not self._cells or self._cells[-1].at_us != at_us:
            self._cells.append(_Cell(at_us))
        cell = self._cells[-1]
        cell.rows += rows
        cell.late += late
        cell.disorder_us = max(cell.disorder_us, disorder_us)
        self._rows += rows
        self._late += late
        while self._cells[0].at_us <= now_us - SPAN_US and self._rows - self._cells[0].rows >= ROWS_MIN:
            old = self._cells.popleft()
            self._rows -= old.rows
            self._late -= old.late
        if self._rows < ROWS_MIN or 2 * self._late <= self._rows:
            return None
        if self._said_us is not None and now_us - self._said_us < AGAIN_US:
            return None
        self._said_us = now_us
        return MostlyLate(self._late, self._rows, max(c.disorder_us for c in self._cells))
