"""Finds the rows on which a user-defined operator raises, by trying it on parts of a slice (rule U15).

Let s be the operator's state at an instant t, after the accepted rows before t.  A row of t is *rejected* iff the
operator in state s, on the accepted rows of t before it and then this row, raises or returns rows that
:class:`CustomHost` refuses.  This depends on the stream alone, not on slices: results do not depend on cuts (U3), and
no cut divides an instant.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np

from operators.custom import CustomHost
from operators.operator import Operator, OperatorState, released_rows
from operators.rejections import NOT_THE_ROWS, Refusals, RejectedRow, reason_of
from operators.steps import StepPace
from spe.stream.batch import Int64Array, Rows
from spe.stream.times import format_timestamp

#: Number of rows tried in one step.
_TRIED: Final = 1 << 10
#: Number of rows that each trial counts for in addition, because it restores the state.
_TRIAL: Final = 1 << 6

#: Numbers of the tried rows of each port.
_Some = Sequence[Int64Array]


class Trials(Operator):
    """Runs a user's operator without the rows on which it raises.

    A slice without such rows costs an extra snapshot.  Otherwise it is halved between instants, until the failing
    instants are isolated, and the rows of an instant are halved in the same way: some 2 log2(rows) calls for each
    rejected row.  Other tasks may run between calls.
    """

    def __init__(self, host: CustomHost) -> None:
        self._host = host
        self.schema = host.schema
        self.refusals: Refusals = Refusals()
        self._ports: Sequence[Rows | None] = ()
        self._pace = StepPace(_TRIED)

    @property
    def host(self) -> CustomHost:
        return self._host

    def step(self, ports: Sequence[Rows | None], boundary: int) -> Rows | None:
        return released_rows(self.work(ports, boundary))

    def work(self, ports: Sequence[Rows | None], boundary: int) -> Iterator[Rows | None]:
        self._ports = ports
        before = self._host.snapshot()
        everything = [np.arange(0 if rows is None else len(rows)) for rows in ports]
        waiting: list[tuple[_Some, int]] = [(everything, boundary)]  # the earliest is last
        while waiting:
            some, end = waiting.pop()
            released = self._tried(some, end)
            if not isinstance(released, Exception):
                if released is not None:
                    yield released
                if waiting:
                    before = self._host.snapshot()
                    yield from self._turn(some)
                continue
            self._host.restore(before)
            times = self._times(some)
            if len(times) > 1:
                middle = int(times[len(times) // 2])
                waiting += [(self._from(some, middle), end), (self._before(some, middle), middle)]
            elif len(times):
                yield from self._instant(some, int(times[0]), end)
                before = self._host.snapshot()
            else:
                raise _raises_without_rows(released, end) from released
            yield from self._turn(some)

    def _turn(self, some: _Some) -> Iterator[None]:
        """Lets other tasks run after enough trials."""
        if self._pace.is_through(_TRIAL + sum(map(len, some))):
            yield None

    def _instant(self, some: _Some, time: int, end: int) -> Iterator[Rows | None]:
        """Finds the rejected rows of one time, the only one before ``end``."""
        nothing = [rows[:0] for rows in some]
        if self._host.previous < time:
            yield from self._passed(nothing, time)
        before = self._host.snapshot()
        accepted = nothing
        waiting = [[(port, row) for port, rows in enumerate(some) for row in rows.tolist()]]
        while waiting:
            candidates = waiting.pop()
            more = [np.append(rows, [r for p, r in candidates if p == port]) for port, rows in enumerate(accepted)]
            result = self._tried([rows.astype(np.int64) for rows in more], time + 1)
            self._host.restore(before)
            if not isinstance(result, Exception):
                accepted = [rows.astype(np.int64) for rows in more]
            elif len(candidates) > 1:
                half = len(candidates) // 2
                waiting += [candidates[half:], candidates[:half]]
            else:
                ((port, row),) = candidates
                self.refusals.rows.append(RejectedRow(port, row, reason_of(result)))
            yield from self._turn(more)
        yield from self._passed(accepted, time + 1)
        if time + 1 < end:
            yield from self._passed(nothing, end)

    def _tried(self, some: _Some, end: int) -> Rows | Exception | None:
        """Runs the operator on these rows; returns its results or its exception."""
        inputs = [None if not len(index) else _taken(rows, index) for rows, index in zip(self._ports, some)]
        try:
            return self._host.step(inputs, end)
        except NOT_THE_ROWS:
            raise
        except Exception as error:  # user code
            return error

    def _passed(self, some: _Some, end: int) -> Iterator[Rows]:
        """Yields the results for accepted rows.  Raises RuntimeError if the operator raises even without rows."""
        released = self._tried(some, end)
        if isinstance(released, Exception):
            raise _raises_without_rows(released, end) from released
        if released is not None:
            yield released

    def _times(self, some: _Some) -> Int64Array:
        times = [rows.time[index] for rows, index in zip(self._ports, some) if rows is not None]
        return np.unique(np.concatenate(times)) if times else np.empty(0, np.int64)

    def _before(self, some: _Some, time: int) -> _Some:
        return [index if rows is None else index[rows.time[index] < time] for rows, index in zip(self._ports, some)]

    def _from(self, some: _Some, time: int) -> _Some:
        return [index if rows is None else index[rows.time[index] >= time] for rows, index in zip(self._ports, some)]

    def snapshot(self) -> OperatorState:
        return self._host.snapshot()

    def restore(self, state: OperatorState) -> None:
        self._host.restore(state)

    def counters(self) -> Mapping[str, int]:
        return self._host.counters()

    def oldest_needed(self) -> int | None:
        return self._host.oldest_needed()

    def clear(self, boundary: int) -> None:
        self._host.clear(boundary)

    def recount(self, counters: Mapping[str, int]) -> None:
        self._host.recount(counters)


def _raises_without_rows(error: Exception, end: int) -> RuntimeError:
    return RuntimeError(f"it raises though it is given no row, up to {format_timestamp(end)}: {reason_of(error)}")


def _taken(rows: Rows | None, index: Int64Array) -> Rows:
    """Returns these rows, which usually are all, or consecutive."""
    assert rows is not None
    start, stop = int(index[0]), int(index[-1]) + 1
    if stop - start != len(index):
        return rows.take(index)
    return rows if len(index) == len(rows) else rows.slice(start, stop)
