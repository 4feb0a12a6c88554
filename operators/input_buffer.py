"""Keeps the input of one operator for undo/redo, as far back as its state reaches.

An operator with finite windows needs its own window's worth of tuples to be rebuilt, however long it has run; what is
older is forgotten slice by slice.  One whose state reaches back without bound (count windows per group, operators of
one's own that cannot say) is not buffered at all: its markers carry a snapshot (rule R9).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from operators import steps
from operators.operator import Operator, OperatorState
from operators.steps import Steps
from spe.stream.batch import Rows, concat_rows
from spe.stream.times import BEFORE_TIME


class Given(NamedTuple):
    """One slice of one operator: the rows of each port, and between which boundaries they lie."""

    ports: Sequence[Rows | None]
    begin: int
    end: int

    @property
    def last(self) -> int:
        """Time of the last row: that of the end, where the next slice has more rows of this time."""
        return max(int(rows.time[-1]) for rows in self.ports if rows is not None and len(rows))

    def __len__(self) -> int:
        return sum(len(rows) for rows in self.ports if rows is not None)


@dataclass(frozen=True, slots=True)
class Marker:
    """A stream marker: what makes an operator's state at ``end`` again.

    Attributes:
      base: a snapshot at ``begin``, where the state owes something to tuples before it; None: nothing does.
      given: what came in [begin, end) and was not empty.
      counters: at ``end``.
    """

    begin: int
    end: int
    base: OperatorState | None
    given: tuple[Given, ...]
    counters: Mapping[str, int]

    def start(self, operator: Operator) -> None:
        """Puts ``operator`` where the slices in ``given`` begin; it is to be given them in order."""
        if self.base is None:
            operator.clear(self.begin)
        else:
            operator.restore(self.base)

    def again(self, operator: Operator, ports: int, max_rows: int) -> Steps[int]:
        """Makes the state of an operator that :meth:`start` was given, in portions of about ``max_rows`` rows.

        Returns how many rows were given again.
        """
        count = 0
        for one in _joined(self.given, max_rows):
            if count:
                yield
            count += len(one)
            for rows in operator.work(one.ports, one.end):
                if rows is None:
                    yield
        if (self.given[-1].end if self.given else self.begin) < self.end:
            for rows in operator.work([None] * ports, self.end):
                if rows is None:
                    yield
        while operator.load():
            yield
        operator.recount(self.counters)
        return count


def _joined(given: Sequence[Given], max_rows: int) -> Iterator[Given]:
    """The same input in fewer slices of at most ``max_rows`` rows each, where those given have no more.

    A step has a price of its own, and where the input is cut makes no difference (U3).
    """
    some: list[Given] = []
    count = 0
    for one in given:
        if some and (count + len(one) > max_rows or not _same_strings(some[-1], one)):
            yield _as_one(some)
            some, count = [], 0
        some.append(one)
        count += len(one)
    if some:
        yield _as_one(some)


def _same_strings(one: Given, other: Given) -> bool:
    """Do the rows of each port have their strings in the same dictionaries?  Others would have to be looked up."""
    for mine, theirs in zip(one.ports, other.ports, strict=True):
        if mine is not None and theirs is not None:
            for a, b in zip(mine.columns, theirs.columns, strict=True):
                if a.dictionary is not b.dictionary:
                    return False
    return True


def _as_one(given: Sequence[Given]) -> Given:
    if len(given) == 1:
        return given[0]
    ports = [[rows for rows in port if rows is not None] for port in zip(*(one.ports for one in given), strict=True)]
    return Given([concat_rows(parts) if parts else None for parts in ports], given[0].begin, given[-1].end)


class InputBuffer:
    """The input of one operator that its state still depends on.

    Args:
      operator: whose input it is.
      end: where the operator stands.
      state: what the operator was restored from there; None: it is asked for its state.
    """

    __slots__ = ("_base", "_begin", "_end", "_given", "_operator", "_spent")

    def __init__(self, operator: Operator, end: int = BEFORE_TIME, state: OperatorState | None = None) -> None:
        self._operator = operator
        #: A snapshot at _begin; needed as long as the state depends on earlier input.
        self._base = None if operator.oldest_needed() is None else operator.snapshot() if state is None else state
        self._begin = self._end = end
        self._given: deque[Given] = deque()
        #: Rows that are not needed any more.  They are freed in portions, since strings take long (B8).
        self._spent: deque[Given] = deque()

    @classmethod
    def at(cls, marker: Marker, operator: Operator) -> InputBuffer:
        """The buffer of an operator that was made again from a marker."""
        buffer = cls.__new__(cls)
        buffer._operator = operator
        buffer._base, buffer._begin, buffer._end = marker.base, marker.begin, marker.end
        buffer._given, buffer._spent = deque(marker.given), deque()
        return buffer

    def took(self, ports: Sequence[Rows | None], end: int) -> None:
        """The operator has taken in a slice; forgets what is too old."""
        assert end >= self._end, "R9: slices follow each other"
        begin, self._end = self._end, end
        freed = 0
        while self._spent and freed < steps.INDEXED:
            freed += len(self._spent.popleft())
        oldest = self._operator.oldest_needed()
        if oldest is None:
            self._spent.extend(self._given)
            self._given.clear()
            self._base, self._begin = None, end
            return
        if oldest == BEFORE_TIME:
            self._base = None  # the next marker takes one
            return
        given = Given(ports, begin, end)
        if len(given):
            self._given.append(given)
        if oldest >= self._begin:
            self._base = None
            while self._given and self._given[0].end <= oldest and self._given[0].last < oldest:
                self._spent.append(self._given.popleft())
            self._begin = self._given[0].begin if self._given else end

    def mark(self) -> Marker:
        """What makes the present state again."""
        counters = dict(self._operator.counters())
        if self._operator.oldest_needed() == BEFORE_TIME:
            return Marker(self._end, self._end, self._operator.snapshot(), (), counters)
        return Marker(self._begin, self._end, self._base, tuple(self._given), counters)

    def __len__(self) -> int:
        """Rows that are held."""
        return sum(map(len, self._given))
