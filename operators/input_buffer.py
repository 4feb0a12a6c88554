"""Buffers the input of an operator for undo/redo, as far back as its state reaches.

The state of an operator with finite windows can be rebuilt from the tuples of one window, however long it has run;
older input is dropped slice by slice.  Input of an operator with unbounded state (count windows per group, user-defined
operators with unknown bounds) is not buffered: its markers have a snapshot (rule R9).
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


class InputSlice(NamedTuple):
    """A slice of an operator's input: the rows of each port, and its boundaries."""

    ports: Sequence[Rows | None]
    begin: int
    end: int

    @property
    def last(self) -> int:
        """Time of the last row; it is ``end`` if the next slice has more rows of this time."""
        return max(int(rows.time[-1]) for rows in self.ports if rows is not None and len(rows))

    def __len__(self) -> int:
        return sum(len(rows) for rows in self.ports if rows is not None)


@dataclass(frozen=True, slots=True)
class Marker:
    """A stream marker: rebuilds an operator's state at ``end``.

    Attributes:
      base: snapshot at ``begin``, if the state depends on earlier tuples; None: it does not.
      slices: slices in [begin, end) with rows.
      counters: counters at ``end``.
    """

    begin: int
    end: int
    base: OperatorState | None
    slices: tuple[InputSlice, ...]
    counters: Mapping[str, int]

    def start(self, operator: Operator) -> None:
        """Sets ``operator`` to the begin of the slices."""
        if self.base is None:
            operator.clear(self.begin)
        else:
            operator.restore(self.base)

    def again(self, operator: Operator, ports: int, max_rows: int) -> Steps[int]:
        """Rebuilds the state of the operator after :meth:`start`, in portions of about ``max_rows`` rows.

        Returns the number of repeated rows.
        """
        assert max_rows > 0, "B8: a portion has rows"
        count = 0
        for piece in _joined(self.slices, max_rows):
            if count:
                yield
            count += len(piece)
            for rows in operator.work(piece.ports, piece.end):
                if rows is None:
                    yield
        if (self.slices[-1].end if self.slices else self.begin) < self.end:
            for rows in operator.work([None] * ports, self.end):
                if rows is None:
                    yield
        while operator.load():
            yield
        operator.recount(self.counters)
        return count


def _joined(slices: Sequence[InputSlice], max_rows: int) -> Iterator[InputSlice]:
    """Joins slices to fewer ones of at most ``max_rows`` rows each, unless a slice has more.

    U3: cuts of the input do not matter.  Each step has a fixed cost.
    """
    some: list[InputSlice] = []
    count = 0
    for piece in slices:
        if some and (count + len(piece) > max_rows or not _same_strings(some[-1], piece)):
            yield _as_one(some)
            some, count = [], 0
        some.append(piece)
        count += len(piece)
    if some:
        yield _as_one(some)


def _same_strings(first: InputSlice, second: InputSlice) -> bool:
    """Do the rows of each port share dictionaries, so that strings need no translation?"""
    for mine, theirs in zip(first.ports, second.ports, strict=True):
        if mine is not None and theirs is not None:
            for a, b in zip(mine.columns, theirs.columns, strict=True):
                if a.dictionary is not b.dictionary:
                    return False
    return True


def _as_one(slices: Sequence[InputSlice]) -> InputSlice:
    if len(slices) == 1:
        return slices[0]
    ports = [
        [rows for rows in port if rows is not None] for port in zip(*(piece.ports for piece in slices), strict=True)
    ]
    return InputSlice([concat_rows(parts) if parts else None for parts in ports], slices[0].begin, slices[-1].end)


class InputBuffer:
    """The input that the state of an operator depends on.

    Args:
      operator: the operator.
      end: end of its last slice.
      state: snapshot from which it was just restored; None: one is taken.
    """

    __slots__ = ("_base", "_begin", "_end", "_operator", "_slices", "_spent")

    def __init__(self, operator: Operator, end: int = BEFORE_TIME, state: OperatorState | None = None) -> None:
        self._operator = operator
        #: A snapshot at _begin; needed as long as the state depends on earlier input.
        self._base = None if operator.oldest_needed() is None else operator.snapshot() if state is None else state
        self._begin = self._end = end
        self._slices: deque[InputSlice] = deque()
        #: Rows that are not needed any more.  B8: they are freed in portions, since strings take long.
        self._spent: deque[InputSlice] = deque()

    @classmethod
    def at(cls, marker: Marker, operator: Operator) -> InputBuffer:
        """Makes the buffer of an operator that was rebuilt from a marker."""
        assert marker.begin <= marker.end, "R9: a marker stands at the end of what it keeps"
        buffer = cls.__new__(cls)
        buffer._operator = operator
        buffer._base, buffer._begin, buffer._end = marker.base, marker.begin, marker.end
        buffer._slices, buffer._spent = deque(marker.slices), deque()
        return buffer

    def took(self, ports: Sequence[Rows | None], end: int) -> None:
        """Adds a slice after the operator has processed it; drops old ones."""
        assert end >= self._end, "R9: slices follow each other"
        begin, self._end = self._end, end
        freed = 0
        while self._spent and freed < steps.INDEXED:
            freed += len(self._spent.popleft())
        oldest = self._operator.oldest_needed()
        if oldest is None:
            self._spent.extend(self._slices)
            self._slices.clear()
            self._base, self._begin = None, end
            return
        if oldest == BEFORE_TIME:
            self._base = None  # the next marker takes a snapshot
            return
        piece = InputSlice(ports, begin, end)
        if len(piece):
            self._slices.append(piece)
        if oldest >= self._begin:
            self._base = None
            while self._slices and self._slices[0].end <= oldest and self._slices[0].last < oldest:
                self._spent.append(self._slices.popleft())
            self._begin = self._slices[0].begin if self._slices else end
        assert self._begin <= end, "R9: a buffer reaches back from where its operator stands"

    def mark(self) -> Marker:
        """Returns a marker of the present state."""
        counters = dict(self._operator.counters())
        if self._operator.oldest_needed() == BEFORE_TIME:
            return Marker(self._end, self._end, self._operator.snapshot(), (), counters)
        return Marker(self._begin, self._end, self._base, tuple(self._slices), counters)

    def __len__(self) -> int:
        """Number of buffered rows."""
        return sum(map(len, self._slices))
