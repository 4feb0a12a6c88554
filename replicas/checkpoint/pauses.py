"""How long a checkpoint log rests between two slices (rule G7).  Pure.

A slice takes its time, however little has changed, and nothing is acknowledged before the next sync.  Upstream keeps
the rows since T in any case, and they are replayed; so the next slice may wait until some more have come.
"""

from __future__ import annotations

from typing import Final

from operators.steps import SPARE
from replicas.checkpoint.extent import Extent
from replicas.checkpoint.targets import SLICES_MOST
from spe.stream.times import END_OF_TIME, MILLISECOND

#: Slices of the log begin no closer than this.
EVERY_US: Final = 100 * MILLISECOND
#: Nor than so many times what the last one took: what comes often is written less often, and more of it at once.
_RESTS: Final = 4
#: Nor than so many, up to the next sync, for nothing is acknowledged before it; unless a producer waits for us.
_RESTS_TO_SYNC: Final = 500
#: Between two syncs: what is not synced is not acknowledged, so upstream keeps it for so long.
SYNC_US: Final = 500 * MILLISECOND
#: Of the rows that upstream keeps anyway so many may come before the next slice, and it comes after this at the latest.
_FEW: Final = 16
_LATEST_US: Final = 4_000 * MILLISECOND
#: After a refusal the next try, with a complete state, comes after this, and each one after twice as long.
AGAIN_US: Final = 200 * MILLISECOND
AGAIN_MOST_US: Final = 10_000 * MILLISECOND


class Pauses:
    """Of one log.

    Args:
      every_us: slices begin no closer.
      rests: nor than so many times what the last one took, or many more up to a sync; 0: not so.
    """

    def __init__(self, every_us: int = EVERY_US, rests: int = _RESTS) -> None:
        self._every_us = every_us
        self._rests = rests
        self._least_us = self._rest_us = self._latest_us = every_us
        self._few_rows = 0

    @property
    def least_us(self) -> int:
        """From the beginning of the last slice: the next one does not come sooner."""
        return self._least_us

    @property
    def rest_us(self) -> int:
        """The same where no producer waits."""
        return self._rest_us

    def refused(self) -> None:
        """The disk has refused a slice."""
        self._least_us = min(max(AGAIN_US, 2 * self._least_us), AGAIN_MOST_US)
        self.left_out()

    def left_out(self) -> None:
        """A slice was not written: the next one comes soon."""
        self._rest_us = self._latest_us = self._least_us

    def wrote(self, extent: Extent, end: int, took_us: float, longest_us: int) -> None:
        """A slice is in the log.

        Args:
          extent: of the log, with the slice.
          end: of the slice.
          took_us: what it took.
          longest_us: the next one is to come by then: more is to be rewritten than there was time for.
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
        """May the next slice come?

        Args:
          waited_us: since the last one began; ``rows``: how many have come since.
          hurries: a producer waits for what could be acknowledged.
        """
        if hurries:
            return waited_us >= self._least_us
        return waited_us >= (self._rest_us if rows > self._few_rows else self._latest_us)

    def syncs(self, waited_us: int) -> bool:
        """Is what was written synced now?

        Args:
          waited_us: since the last sync.
        """
        return waited_us + self._rest_us >= SYNC_US


def _spread_us(extent: Extent, end: int) -> int:
    """Between two slices where many are read already: rows that a join keeps may hold the oldest one for long, and no
    rewriting helps.
    """
    ends = extent.ends
    if len(ends) < SLICES_MOST // 2 or end == END_OF_TIME:
        return 0
    return min((end - int(ends[0])) // SLICES_MOST, AGAIN_MOST_US)
