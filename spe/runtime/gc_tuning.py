"""How often Python looks for cycles of objects.

Its own 700 objects between two looks are one read of small frames: the collector then walks everything that waits in
the SUnion, over and over, and finds nothing, for there are no cycles.  Of a simulated run it would take an eighth.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

#: Objects made since the last collection that start the next one, and how many of those start a deeper one.
THRESHOLDS: Final = (50_000, 20, 50)


@contextmanager
def seldom() -> Iterator[None]:
    """Makes the collector run seldom in the block, and as before after it."""
    before = gc.get_threshold()
    gc.set_threshold(*THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
