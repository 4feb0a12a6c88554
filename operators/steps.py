"""Limits of a step, and work that is divided into steps (rule B8).

Work that grows with the state is a generator: it yields None after each portion, so that its caller can let other
tasks run.  Small work is one portion, and does not yield.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TypeVar

R = TypeVar("R")
#: Work in portions; the return value is the result.
Steps = Generator[None, None, R]

#: Entries of one array that a step copies, fills or scans in order.
COPIED = 1 << 17
#: Keys that a step inserts into an index, or entries that it sorts or writes in any order.
INDEXED = 1 << 16
#: Rows that a step releases, or groups that it combines, or texts that it makes or looks up.
RELEASED = 1 << 13
#: Candidate pairs of a join that a step checks.
PAIRED = 1 << 17
#: Number of unused keys and texts, in addition to as many as are in use, from which they are dropped.
SPARE = 1 << 12


def portions(count: int, size: int) -> Iterator[tuple[int, int]]:
    """Divides 0 … count into ranges [start, stop) of at most ``size``."""
    assert size > 0, "B8: a portion has entries"
    for start in range(0, count, size):
        yield start, min(start + size, count)


class StepPace:
    """Tells when small parts of work add up to a portion."""

    __slots__ = ("_done", "_size")

    def __init__(self, size: int) -> None:
        self._size = size
        self._done = 0

    def is_through(self, count: int) -> bool:
        """Adds ``count`` done items; returns True at the end of a portion."""
        assert count >= 0, "B8: work is counted"
        self._done += count
        if self._done < self._size:
            return False
        self._done = 0
        return True


def finished(steps: Steps[R]) -> R:
    """Does work at once; returns its result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: R = end.value
            return result
