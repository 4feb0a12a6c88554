"""Finds the rows with which an operator of a user's raises, by trying it on parts of a slice (rule U15).

Let s be the operator's state at an instant t, after the rows that were kept before t.  A row of t is *rejected* iff
the operator, given in state s the rows of t that are kept and stand before it, and then this row, raises or returns
what :class:`CustomHost` refuses.  That depends on the stream and on nothing else: not on slices, for an operator gives
the same however it is cut (U3), and no cut divides an instant.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np

from operators.custom import CustomHost
from operators.operator import Operator, OperatorState
from operators.rejections import NOT_THE_ROWS, Refusals, RejectedRow, reason_of
from operators.steps import StepPace
from spe.stream.batch import Int64Array, Rows
from spe.stream.times import format_timestamp

#: Rows that are tried in one step.
_TRIED: Final = 1 << 10
#: Rows as which each trial counts besides, because it restores the state.
_TRIAL: Final = 1 << 6

#: The rows of each port that are tried, by their numbers.
_Some = Sequence[Int64Array]


class Trials(Operator):
    """Runs a user's operator without the rows with which it raises.

    A slice without such rows costs a snapshot more than it would.  Else it is divided in halves, between instants,
    until those that raise stand alone, and the rows of one instant are divided in the same way: some 2 log2(rows) calls
    for each row that is rejected.  Others get their turn between two calls, when some have been made.
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
        raise NotImplementedError("work() does it")

    def work(self, ports: Sequence[Rows | None], boundary: int) -> Iterator[Rows | None]:
        self._ports = ports
        before = self._host.snapshot()
        everything = [np.arange(0 if rows is None else len(rows)) for rows in ports]
        waiting: list[tuple[_Some, int]] = [(everything, boundary)]  # the earliest is the last one
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
                raise _nobody_is_to_blame(released, end) from released
            yield from self._turn(some)

    def _turn(self, some: _Some) -> Iterator[None]:
        """Lets others run when enough rows were tried."""
        if self._pace.is_through(_TRIAL + sum(map(len, some))):
            yield None

    def _instant(self, some: _Some, time: int, end: int) -> Iterator[Rows | None]:
        """The rows of one time, which is all that there is before ``end``."""
        nothing = [rows[:0] for rows in some]
        if self._host.previous < time:
            yield from self._passed(nothing, time)
        before = self._host.snapshot()
        kept = nothing
        waiting = [[(port, row) for port, rows in enumerate(some) for row in rows.tolist()]]
        while waiting:
            candidates = waiting.pop()
            more = [np.append(rows, [r for p, r in candidates if p == port]) for port, rows in enumerate(kept)]
            found = self._tried([rows.astype(np.int64) for rows in more], time + 1)
            self._host.restore(before)
            if not isinstance(found, Exception):
                kept = [rows.astype(np.int64) for rows in more]
            elif len(candidates) > 1:
                half = len(candidates) // 2
                waiting += [candidates[half:], candidates[:half]]
            else:
                ((port, row),) = candidates
                self.refusals.rows.append(RejectedRow(port, row, reason_of(found)))
            yield from self._turn(more)
        yield from self._passed(kept, time + 1)
        if time + 1 < end:
            yield from self._passed(nothing, end)

    def _tried(self, some: _Some, end: int) -> Rows | Exception | None:
        """What the operator releases for these rows, or raises."""
        given = [None if not len(index) else _taken(rows, index) for rows, index in zip(self._ports, some)]
        try:
            return self._host.step(given, end)
        except NOT_THE_ROWS:
            raise
        except Exception as error:  # a user's code
            return error

    def _passed(self, some: _Some, end: int) -> Iterator[Rows]:
        """What the operator releases for rows that raise nothing.  Raises RuntimeError where time alone raises."""
        released = self._tried(some, end)
        if isinstance(released, Exception):
            raise _nobody_is_to_blame(released, end) from released
        if released is not None:
            yield released

    def _times(self, some: _Some) -> Int64Array:
        found = [rows.time[index] for rows, index in zip(self._ports, some) if rows is not None]
        return np.unique(np.concatenate(found)) if found else np.empty(0, np.int64)

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


def _nobody_is_to_blame(error: Exception, end: int) -> RuntimeError:
    return RuntimeError(f"it raises though it is given no row, up to {format_timestamp(end)}: {reason_of(error)}")


def _taken(rows: Rows | None, index: Int64Array) -> Rows:
    """These rows, which are most often all, or follow each other."""
    assert rows is not None
    start, stop = int(index[0]), int(index[-1]) + 1
    if stop - start != len(index):
        return rows.take(index)
    return rows if len(index) == len(rows) else rows.slice(start, stop)
