"""Thresholds of Python's cycle collector.

One read of small frames makes more than the default of 700 objects between two collections: the collector would walk
all tuples waiting in the SUnion again and again, and find nothing, since there are no cycles.  It would take an eighth
of a simulated run.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

#: Number of new objects that starts a collection, and numbers of collections that start one of the next generation.
THRESHOLDS: Final = (50_000, 20, 50)


@contextmanager
def seldom() -> Iterator[None]:
    """Makes the collector run seldom within the block."""
    before = gc.get_threshold()
    gc.set_threshold(*THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
