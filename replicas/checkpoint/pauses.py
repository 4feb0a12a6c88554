"""Decides how long a checkpoint log pauses between two slices (rule G7).  Pure.

A slice takes time even if little has changed, and nothing is acknowledged before the next sync.  Upstream keeps the
rows since T in any case, and they are replayed; so the next slice may wait until some more have come.
"""

from __future__ import annotations

from typing import Final

from operators.steps import SPARE
from replicas.checkpoint.extent import Extent
from replicas.checkpoint.targets import SLICES_MOST
from spe.stream.times import END_OF_TIME, MILLISECOND

#: Least time between the beginnings of two slices.
EVERY_US: Final = 100 * MILLISECOND
#: The same as a multiple of the last slice's duration: frequent slices are made rarer and larger.
_RESTS: Final = 4
#: The same up to the next sync, before which nothing is acknowledged; unless a producer waits for this replica.
_RESTS_TO_SYNC: Final = 500
#: Time between two syncs: upstream keeps unsynced input so long, because it is not acknowledged.
SYNC_US: Final = 500 * MILLISECOND
#: The next slice may wait for one row per so many that upstream keeps anyway, and at most for this time.
_FEW: Final = 16
_LATEST_US: Final = 4_000 * MILLISECOND
#: After a refusal the next try, with a complete state, comes after this time, which doubles with each further refusal.
AGAIN_US: Final = 200 * MILLISECOND
AGAIN_MOST_US: Final = 10_000 * MILLISECOND


class Pauses:
    """Computes the pauses of one log.

    Args:
      every_us: least time between the beginnings of two slices.
      rests: the same as a multiple of the last slice's duration, larger up to a sync; 0: no such limit.
    """

    def __init__(self, every_us: int = EVERY_US, rests: int = _RESTS) -> None:
        self._every_us = every_us
        self._rests = rests
        self._least_us = self._rest_us = self._latest_us = every_us
        self._few_rows = 0

    @property
    def least_us(self) -> int:
        """Least time from the beginning of the last slice to the next one."""
        return self._least_us

    @property
    def rest_us(self) -> int:
        """The same if no producer waits."""
        return self._rest_us

    def refused(self) -> None:
        """Notes that the disk has refused a slice."""
        self._least_us = min(max(AGAIN_US, 2 * self._least_us), AGAIN_MOST_US)
        self.left_out()

    def left_out(self) -> None:
        """Notes that a slice was not written: the next one comes soon."""
        self._rest_us = self._latest_us = self._least_us

    def wrote(self, extent: Extent, end: int, took_us: float, longest_us: int) -> None:
        """Notes that a slice is in the log.

        Args:
          extent: extent of the log, with the slice.
          end: end of the slice.
          took_us: its duration.
          longest_us: time limit for the next slice, if there was no time to rewrite all that is due.
        """
        self._least_us = max(self._every_us, round(self._rests * took_us))
        self.left_out()
        if not self._rests:
            return
        to_sync_us = min(round(_RESTS_TO_SYNC * took_us), SYNC_US)
        self._rest_us = max(self._least_us, to_sync_us, _spread_us(extent, end))
        self._latest_us = max(self._rest_us, min(longest_us, _LATEST_US))
        # Pieces that begin and end between two slices take memory until the second one.
        self._few_rows = min(extent.behind() // _FEW, (extent.live() + SPARE) // 2)

    def is_over(self, waited_us: int, rows: int, *, hurries: bool) -> bool:
        """Returns whether the next slice may come.

        Args:
          waited_us: time since the beginning of the last one.
          rows: number of rows since then.
          hurries: a producer waits for an acknowledgement.
        """
        assert self._least_us <= self._rest_us <= self._latest_us, "G7: who hurries waits least, few rows wait longest"
        if hurries:
            return waited_us >= self._least_us
        return waited_us >= (self._rest_us if rows > self._few_rows else self._latest_us)

    def syncs(self, waited_us: int) -> bool:
        """Returns whether a sync is due.

        Args:
          waited_us: time since the last sync.
        """
        return waited_us + self._rest_us >= SYNC_US


def _spread_us(extent: Extent, end: int) -> int:
    """Returns the pause if many slices are read already: a join may keep its oldest row for long, and rewriting does
    not help.
    """
    ends = extent.ends
    if len(ends) < SLICES_MOST // 2 or end == END_OF_TIME:
        return 0
    return min((end - int(ends[0])) // SLICES_MOST, AGAIN_MOST_US)
