"""A history of limited size: all recent items, and of earlier ones every n-th, evenly spaced.  Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Thinned(Generic[T]):
    """Items in order of time.

    Args:
      recent: number of newest items that are all kept.
      earlier: largest number of earlier items; beyond it, each two are merged into one.
      merge: merges two consecutive items.
    """

    def __init__(self, recent: int, earlier: int, merge: Callable[[T, T], T]) -> None:
        self._recent_max = recent
        self._earlier_max = earlier
        self._merge = merge
        self._earlier: list[T] = []
        self._recent: deque[T] = deque()
        #: Number of items that each earlier item represents, and the items that wait to be merged.
        self._stride = 1
        self._waiting: T | None = None
        self._waiting_count = 0

    def __len__(self) -> int:
        return len(self._earlier) + len(self._recent)

    def __iter__(self) -> Iterator[T]:
        yield from self._earlier
        if self._waiting is not None:
            yield self._waiting
        yield from self._recent

    def add(self, item: T) -> None:
        """Adds the newest item."""
        self._recent.append(item)
        if len(self._recent) > self._recent_max:
            self._retire(self._recent.popleft())

    def shrink(self) -> None:
        """Keeps half as many items from now on."""
        self._recent_max = max(2, self._recent_max // 2)
        self._earlier_max = max(2, self._earlier_max // 2)
        while len(self._recent) > self._recent_max:
            self._retire(self._recent.popleft())
        while len(self._earlier) > self._earlier_max:
            self._halve()

    def _retire(self, item: T) -> None:
        self._waiting = item if self._waiting is None else self._merge(self._waiting, item)
        self._waiting_count += 1
        if self._waiting_count >= self._stride:
            self._earlier.append(self._waiting)
            self._waiting, self._waiting_count = None, 0
            if len(self._earlier) > self._earlier_max:
                self._halve()

    def _halve(self) -> None:
        if len(self._earlier) % 2:
            last = self._earlier.pop()
            self._waiting = last if self._waiting is None else self._merge(last, self._waiting)
            self._waiting_count += self._stride
        self._earlier = [self._merge(a, b) for a, b in zip(self._earlier[::2], self._earlier[1::2])]
        self._stride *= 2
