"""How much one step may do, and work that is divided into steps (rule B8).

Work that grows with the state is a generator: it yields None after each portion, and whoever runs it lets others go
first.  What is small is one portion: it does not yield at all.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TypeVar

R = TypeVar("R")
#: Work in portions; its value is the result.
Steps = Generator[None, None, R]

#: Entries of one array that a step copies, fills or looks through in order.
COPIED = 1 << 17
#: Keys that a step puts into an index, entries that it sorts or writes in any order.
INDEXED = 1 << 16
#: Rows that a step releases, groups that it combines, texts that it makes or looks up.
RELEASED = 1 << 13
#: Candidate pairs of a join that a step looks at.
PAIRED = 1 << 17
#: Keys and texts that nothing refers to, beyond as many as are in use, before they are forgotten.
SPARE = 1 << 12


def portions(count: int, size: int) -> Iterator[tuple[int, int]]:
    """0 … count in ranges [start, stop) of at most ``size``."""
    for start in range(0, count, size):
        yield start, min(start + size, count)


class StepPace:
    """Tells when a portion of work that comes in small parts is done."""

    __slots__ = ("_done", "_size")

    def __init__(self, size: int) -> None:
        self._size = size
        self._done = 0

    def is_through(self, count: int) -> bool:
        """``count`` more are done."""
        self._done += count
        if self._done < self._size:
            return False
        self._done = 0
        return True


def finished(steps: Steps[R]) -> R:
    """The result of work that is done at once."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: R = end.value
            return result
