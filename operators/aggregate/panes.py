"""Panes by number, the release of windows, and the base of operators on panes."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, Generic, TypeVar

from operators.operator import StepwiseOperator
from operators.windows import Late, horizon
from spe.query.windows import TimeWindow
from spe.stream.times import BEFORE_TIME

P = TypeVar("P")
_NEVER: Final = 2**90


class Panes(Generic[P]):
    """The panes with tuples, from their first tuple until the release of their last window."""

    __slots__ = ("_make", "_next_end", "_open", "_window", "by_number", "released", "since")

    def __init__(self, window: TimeWindow, make: Callable[[], P]) -> None:
        self._window = window
        self._make = make
        self.by_number: dict[int, P] = {}
        #: Tuple time of the first tuple of each pane, which may differ from its attribute.
        self.since: dict[int, int] = {}
        #: Windows that end at or before this are released.
        self.released = BEFORE_TIME
        #: End of the next window to release, or a smaller time.
        self._next_end: int = _NEVER
        #: Panes whose end has not passed.
        self._open: set[int] = set()

    def load(self, panes: dict[int, P], since: Sequence[int], released: int) -> None:
        """Restores panes, with the time of the first tuple of each, in the same order."""
        self.by_number, self.released = panes, released
        self.since = dict(zip(panes, since, strict=True))
        self._next_end = BEFORE_TIME if panes else _NEVER
        self._open = set(panes)

    def end(self, pane: int) -> int:
        """Returns the end time of a pane; not saturated."""
        return self._window.pane_start(pane + 1)

    def _windows_of(self, pane: int) -> tuple[int, int]:
        """Returns the first and the last window with this pane."""
        start = self._window.pane_start(pane)
        return self._window.first(start), self._window.last(start)

    def oldest(self) -> int | None:
        """Returns the tuple time of the oldest tuple in a pane; None: there is no pane."""
        return min(self.since.values(), default=None)

    def take(self, pane: int, time: int) -> P:
        """Returns the pane of this number, and makes it for a tuple of ``time`` if it does not exist."""
        members = self.by_number.get(pane)
        if members is None:
            members = self.by_number[pane] = self._make()
            self.since[pane] = time
            first, last = self._windows_of(pane)
            first = max(first, self._window.first(self.released))
            assert first <= last, "U2: a row counts in windows that have not left"
            self._next_end = min(self._next_end, self._window.end(first))
        self._open.add(pane)
        return members

    def release(self, upto: int) -> Iterator[tuple[int, int, list[P]]]:
        """Yields (start, end, panes, oldest first) of each window that ends by ``upto``; to be consumed at once.

        Windows without tuples are skipped.  Panes whose last window is released are dropped.
        """
        assert upto >= self.released, "U2: windows leave in the order of their ends"
        before, self.released = self.released, upto
        limit = horizon(upto)
        if self._next_end <= limit:
            yield from self._ended(limit, self._window.first(before))

    def _ended(self, limit: int, number: int) -> Iterator[tuple[int, int, list[P]]]:
        window, order, oldest = self._window, sorted(self.by_number), 0
        is_divided = window.panes > 1
        self._next_end = _NEVER
        while oldest < len(order):
            pane = order[oldest]
            first, last = self._windows_of(pane)
            number = max(number, first)
            if number > last:
                del self.by_number[pane], self.since[pane]
                self._open.discard(pane)
                oldest += 1
                continue
            end = window.end(number)
            if end > limit:
                self._next_end = end
                return
            members = [self.by_number[pane]]
            if is_divided:
                last = window.pane(end - 1)
                for at in order[oldest + 1 :]:
                    if at > last:
                        break
                    members.append(self.by_number[at])
            yield window.start(number), end, members
            number += 1

    def passed(self, boundary: int) -> list[P]:
        """Returns panes whose end has passed since the last call."""
        gone = [p for p in self._open if self.end(p) <= boundary]
        self._open.difference_update(gone)
        return [self.by_number[p] for p in sorted(gone)]


class PaneOperator(StepwiseOperator, Generic[P]):
    """An operator whose state consists of panes and a count of late rows."""

    _panes: Panes[P]
    _late: Late

    @abstractmethod
    def _reset(self) -> None:
        """Starts without panes and late rows."""

    def counters(self) -> Mapping[str, int]:
        return self._late.counters()

    def oldest_needed(self) -> int | None:
        return self._panes.oldest()

    def clear(self, boundary: int) -> None:
        self._left = None
        self._reset()
        self._panes.released = boundary

    def recount(self, counters: Mapping[str, int]) -> None:
        self._late = Late(**counters)

    def rewind(self, boundary: int) -> bool:
        self._panes.released = boundary  # no window has ended since then, or there would have been results
        return True
