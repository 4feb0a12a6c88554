"""What a client is given: one element of one channel, with its time of arrival."""

from __future__ import annotations

from dataclasses import dataclass

from spe.stream.batch import Element
from spe.stream.ids import Channel


@dataclass(frozen=True, slots=True)
class Change:
    """One element of a channel as the client received it.

    Attributes:
      element: a stable or tentative Batch, a Boundary, an Undo (drop everything after its id) or a RecDone.
      arrived_us: wall time of arrival, microseconds since the epoch.
    """

    channel: Channel
    element: Element
    arrived_us: int
